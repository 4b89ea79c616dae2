# ruff: noqa: E501  (log lines as they are)
"""Claims: what a running program says of itself, behind any logger's prefix, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8verify.logs.claims import MAX_CLAIMS, read_claims, scan_text
from fp8verify.logs.wording import patterns
from fp8verify.report.model.parts import Claim

LINE = "Applied Float8 training: recipe=TENSORWISE, fsdp_float8_all_gather=True"


def scan_log(lines: Iterable[str]) -> list[Claim]:
    return scan_text("\n".join(line.rstrip("\n") for line in lines)).claims


def only(line: str) -> Claim:
    (claim,) = scan_log([line])
    return claim


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "INFO:root:",
        "[rank0]:",
        "[rank0]:[titan] 2025-06-01 10:00:00,000 - root - INFO - ",
        "[2025-06-01 10:00:00,000] [INFO] [axolotl.train.main:74] [PID:123] [RANK:0] ",
        "[INFO|2025-06-01 10:00:00] llamafactory.train.fp8_utils:143 >> ",
        "2025-06-01 10:00:00.123 | INFO     | prime_rl.trainer:train:137 - ",
        "INFO:accelerate.accelerator:[RANK 0] ",
        "(RayTrainWorker pid=123, ip=10.0.0.1) ",
        "[1,0]<stdout>:",
        "0: ",
        "trainer-1  | ",
        "Nov 22 10:00:00 node01 train[123]: ",
        "worker-1: [2025-06-01 10:00:00] [INFO] ",
        "2025-06-01T10:00:00.123456789Z stdout F ",
        "I1122 10:00:00.123456 1234 train.py:12] ",
        "\x1b[32m[titan]\x1b[0m  ",
        "\x1b[2K\x1b[1G",
        "✓ ",
        "> ",
        "\ufeff",
        "===== ",
    ],
)
def test_the_claim_is_found_behind_any_prefix(prefix: str) -> None:
    (claim,) = scan_log(["starting\n", f"{prefix}{LINE}\n"])
    assert (claim.line, claim.text, claim.says) == (2, LINE, "fp8")
    assert (claim.recipe, claim.all_gather, claim.format) == ("TENSORWISE", True, "fp8")


@pytest.mark.parametrize(
    "before",
    [
        " 40%|████      | 4/10 [00:01<00:02,  1.9it/s, loss=2.1]",
        "100%|##########| 10/10 [00:01<00:00]",
        "12it [00:01, 9.5it/s] ",
        "10%\b\b\b20%\b\b\b",
        " " * 5000,
        "x" * 1_000_000,
    ],
)
def test_the_claim_is_found_behind_what_a_progress_bar_left(before: str) -> None:
    assert only(before + LINE).text == LINE


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({"log": LINE + "\n", "stream": "stdout", "time": "2025"}),
        json.dumps({"message": LINE}),
        json.dumps({"level": "info", "text": LINE}),
        json.dumps({"event": LINE, "logger": "train"}),
        json.dumps({"jsonPayload": {"message": LINE}, "severity": "INFO"}),
        json.dumps({"log": json.dumps({"msg": "[rank0] " + LINE}) + "\n", "stream": "stdout"}),
        json.dumps({"log": f"\r 40%|██| 4/10 [00:01<00:02]\r{LINE}\n", "stream": "stderr"}),
        f'2025-06-01 10:00:00 {{"msg": "{LINE}"}}',
        f'time="2025-06-01T10:00:00Z" level=info msg="{LINE}"',
    ],
)
def test_the_message_of_a_structured_log_is_read(line: str) -> None:
    assert only(line).text == LINE


# One line at least of each row of the table: whose it is, what it says, and how the source words it.
LINES = [
    row.split(" | ", 2)
    for row in """\
KempnerForge | fp8 | Applied Float8 training: recipe=TENSORWISE, fsdp_float8_all_gather=True
nanochat | fp8 | ✓ FP8 training enabled (tensorwise scaling) - converted 48/49 linear layers, skipped 1 (too small)
nanochat | not_fp8 | Warning: FP8 training requires CUDA, ignoring --fp8 flag
torchtitan | fp8 | Float8 training active
torchtitan | fp8 | Float8 training active with recipe rowwise
torchtitan | fp8 | Float8 tensorwise scaled training active
torchtitan | fp8 | Swapped to Float8Linear layers with enable_fsdp_float8_all_gather=True
torchtitan | fp8 | Swapped to dynamic float8 linear layers
torchtitan | fp8 | Converted GroupedExperts to use dynamic float8 rowwise quantization with scaled grouped GEMMs
torchtitan | fp8 | Converted Linear layers to MXFP8Linear
torchtitan | fp8 | Converted Linear layers to NVFP4Linear
torchtitan | fp8 | MX training active with recipe mxfp8_cublas
torchtitan | fp8 | MXFP8 MoE training enabled
torchtitan | not_fp8 | Failed to swap to Float8Linear because float8 is only supported on SM89 or later
torchtitan | scope | Using _auto_filter_for_recipe to avoid converting linear layers with dims too small to benefit from float8 training
torchao | fp8 | Swapped layers.0.experts.w1 to Float8TrainingWeightWrapperTensor
torchao | fp8 | PYTORCH_API_USAGE torchao.float8.convert_to_float8_training
accelerate | fp8 | Found `torchao` installed, using it for FP8 training.
accelerate | fp8 | Mixed precision type: fp8
accelerate | not_fp8 | The current device has compute capability of (8, 0) which is insufficient for FP8 mixed precision training (requires a GPU Hopper/Ada Lovelace or higher, compute capability of 8.9 or higher). Will use FP16 instead.
accelerate | not_fp8 | The current HPU device is Gaudi1 which does not support FP8 mixed precision training (requires Gaudi2 or higher). Will use BF16 instead.
training script | fp8 | FP8 training enabled with TorchAO backend. For optimal performance, ensure model layer dimensions are mostly divisible by 16. If you encounter issues, try fp8_backend='te'.
LLaMA-Factory | fp8 | Accelerate FP8 status - enabled: True, backend: AO
LLaMA-Factory | fp8 | FP8 environment configured - all FP8 training handled by HuggingFace Accelerate
LLaMA-Factory | not_fp8 | WARNING: FP8 was requested but Accelerate shows fp8_enabled=False. FP8 may not be working
axolotl | scope | Patched accelerate fp8 conversion to skip MoE router/gate linears
Megatron-LM | fp8 |   fp8 ............................................. hybrid
Megatron-LM | scope | /opt/megatron/arguments.py:1061: UserWarning: FSDP2 FP4 param gather is not supported yet in TE 2.0, will fallback to bf16
MS-AMP | fp8 | [INFO] [config.py:1007:print]   msamp_enabled ................ True
prime-rl | fp8 | Replacing linear layers with FP8 blockwise linear layers (ignore=[])
prime-rl | fp8 | Replaced 48 linear layers with FP8 blockwise linear (skipped 1 by name, 0 by 128-divisibility); first replaced=layers.0.wq, first skipped(name)=lm_head
NeMo Automodel | fp8 | experts='torch_mm_mxfp8': MXFP8 grouped GEMM active (routing expert GEMMs through torchao.prototype.moe_training).
NeMo Automodel | fp8 | [INFO] Transformer Engine FP8: True (recipe=delayed, amax_history_len=16, amax_compute_algo=max)
training script | fp8 | Using Transformer Engine FP8 backend
NeMo | not_fp8 | Transformer Engine is not available and the FP8 autocast will not be applied.
NeMo Automodel | fp8 | Successfully converted model to FP8 with torchAO, recipe: rowwise, fp8 all-gather enabled: False, force recompute FP8 weight in backward pass: False
NeMo Automodel | fp8 | FP8 quantization applied successfully
NeMo Automodel | scope | FP8 conversion: 48 Float8Linear modules, 49 total linear modules
NeMo Automodel | not_fp8 | FP8 quantization is disabled
Lightning | scope | Support for FP8 in the linear layers with this plugin is currently limited to tensors
training script | fp8 | Float8 training enabled (rowwise recipe)
training script | fp8 | Training in FP8
training script | fp8 | Converted 48/49 Linear layers to Float8Linear
training script | fp8 | Mixed precision: fp8
training script | not_fp8 | Float8 conversion failed: no torchao. Continuing with bf16.
training script | not_fp8 | Using BF16 training instead
training script | fp8 | [Trainer] FP8 mixed precision: True
training script | fp8 | te.fp8_autocast enabled with recipe DelayedScaling
training script | fp8 | Model converted to FP8 for training
training script | fp8 | fp8_recipe: DelayedScaling(margin=0)
training script | not_fp8 | convert_to_float8_training ran but no Float8 modules found
training script | not_fp8 | UserWarning: Please install Transformer engine for FP8 training!
training script | not_fp8 | FP8 training enabled: False
training script | not_fp8 | [INFO] Float8 linear is disabled.
training script | fp8 | INFO Float8 conversion complete
training script | fp8 | INFO Applied fp8 rowwise quantization to model
training script | fp8 | Using MXFP8BlockScaling recipe (Blackwell optimized)
nanochat | not_fp8 | FP8 training enabled (tensorwise) - converted 0 layers, skipped 49
torchtitan | fp8 | Using mxfp8 for _scaled_grouped_mm
Primus | fp8 | [titan] 2026-08-22 12:00:00,000 - root - INFO - module wq shape torch.Size([64, 64]), replaced to FP8Linear
Composer | fp8 | 2026-08-01 10:00:00 INFO     | composer.trainer.trainer: precision: amp_fp8
training script | not_fp8 | mxfp8 needs sm_100+, running W8A8 in bf16
training script | not_fp8 | Disabling FP8 training
training script | not_fp8 | FP8 not available (compute capability 8.0 < 8.9). Using bf16.
training script | not_fp8 | FP8 status - enabled: False
training script | not_fp8 | No FP8 support detected, using BF16
training script | fp8 | Enabled FP8 via transformer_engine
training script | not_fp8 | relaunching with --precision bf16
training script | fp8 | Using Transformer Engine with FP8 autocast (DelayedScaling, HYBRID)
training script | fp8 | 2026-06-22 10:00:00.123\tnode-17:0\tolmo_core.train.common:63\tINFO\tSwapped linear layers to Float8 linear layers
""".splitlines()
]


@pytest.mark.parametrize(("framework", "says", "line"), LINES)
def test_each_framework_is_understood(framework: str, says: str, line: str) -> None:
    claim = only(line)
    assert (claim.framework, claim.says) == (framework, says)


def test_every_row_of_the_table_has_a_line_here() -> None:
    for framework, says, row, _ in patterns():
        assert any(row.search(line) for *said, line in LINES if said == [framework, says])


@pytest.mark.parametrize(
    "line",
    [
        # denied, conditional, planned
        f"NOT {LINE}",
        "Applied Float8 training: skipped",
        "Applied Float8 training: failed (no torchao)",
        "Applied Float8 training: recipe=None",
        "Applied Float8 training: recipe=None, fsdp_float8_all_gather=False",
        "Float8 training active with recipe rowwise is not supported",
        "[dry-run] would log: " + LINE,
        f"[dry-run] {LINE}",
        f"2025-06-01 10:00:00 - INFO - would log: {LINE}",
        "Applied Float8 training: recipe=TENSORWISE (dry run)",
        "❌ FP8 training enabled",
        "[ ] FP8 training enabled",
        # source code, comments, shells, documents
        f"# {LINE}",
        f'    logger.info("{LINE}")',
        f'            "{LINE}"',
        f"            {LINE}",
        f'{LINE}")',
        'Applied Float8 training: recipe=TENSORWISE\\n", flush=True)',
        "Applied Float8 training: recipe={config.recipe}",
        "Applied Float8 training: recipe=%s",
        f'src/x.py:172:        logger.info("{LINE}")',
        f"+ echo {LINE}",
        f'{LINE}, compile=True")',
        f"# 3/10 [00:01<00:02, 3it/s]{LINE}",
        f"ValueError: {LINE}",
        "| Float8 training active | yes |",
        "* `Applied Float8 training` line",
        "Applied Float8 training is the line that it prints",
        # help texts
        f"  --fp8   {LINE}",
        "                        FP8 training enabled with the given recipe",
        # texts that are trained on
        f"text: {LINE}",
        f"marker: {LINE}",
        f'he: "at 3/10 [00:01<00:02, 3it/s]{LINE}, and so on" she said',
        f"sample 3: '{LINE}'",
        f"the log says {LINE}",
        json.dumps({"text": LINE}),
        json.dumps({"message": LINE, "response": "yes"}),
        f'"a text with 3/10 [00:01<00:02, 3it/s]{LINE}"',
        # other things than the GEMMs of linear layers
        "Using FP8 KV cache",
        "Applying FP8 low-precision attention (torchao)",
        "Quantized optimizer state to FP8",
        # settings that are off
        "[INFO] Transformer Engine FP8: False (recipe=delayed, amax_history_len=16)",
        "  fp8 ............................................. None",
        "  fp8_recipe ...................................... mxfp8",
        "Mixed precision type: bf16, fp8_backend: no",
        "the paper on FP8 training is worth reading",
    ],
)
def test_lines_that_promise_nothing_are_no_claims(line: str) -> None:
    assert scan_log([line]) == []


@pytest.mark.parametrize(
    ("line", "format_", "recipe"),
    [
        ("Float8 training active with recipe rowwise", "fp8", "rowwise"),
        ("Float8 training enabled (rowwise recipe)", "fp8", "rowwise"),
        ("MX training active with recipe mxfp8_cublas", "mxfp8", "mxfp8_cublas"),
        ("MX training active with recipe mxfp4_cutlass", "mxfp4", "mxfp4_cutlass"),
        ("Swapped to MXLinear layers", "mxfp8", None),
        ("Converted Linear layers to NVFP4Linear", "nvfp4", None),
        (
            "Converted GroupedExperts to use dynamic mxfp8_rceil quantization for grouped_mm ops",
            "mxfp8",
            "mxfp8_rceil",
        ),
        ("FP4 training enabled", "fp4", None),
        ("Mixed precision type: fp8", "fp8", None),
    ],
)
def test_a_claim_says_which_format_it_promises(line: str, format_: str, recipe: str | None) -> None:
    claim = only(line)
    assert (claim.format, claim.recipe, claim.legs) == (format_, recipe, {})


@pytest.mark.parametrize(
    ("line", "format_"),
    [
        ("Float8 training active with recipe rowwise_with_gw_hp", "fp8"),
        (
            (
                "Converted modules to use dynamic mxfp8_rceil_wgrad_with_hp quantization for "
                "grouped_mm and linear ops"
            ),
            "mxfp8",
        ),
    ],
)
def test_a_recipe_that_leaves_a_leg_in_high_precision_says_so(line: str, format_: str) -> None:
    legs = only(line).legs
    assert legs == {"fprop": format_, "dgrad": format_, "wgrad": "high_precision"}


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("✓ FP8 training enabled (tensorwise scaling) - converted 48/49 linear layers", (48, 49)),
        ("FP8 training enabled (rowwise) - converted 48 layers", (48, None)),
        ("Converted 48 of 49 Linear layers to Float8Linear", (48, 49)),
        ("FP8 conversion: 48 Float8Linear modules, 49 total linear modules", (48, 49)),
        ("Float8 training active", (None, None)),
    ],
)
def test_a_claim_says_how_many_layers_it_counts(
    line: str, counts: tuple[int | None, int | None]
) -> None:
    claim = only(line)
    assert (claim.converted, claim.total) == counts


def dump(**values: str) -> list[str]:
    lines = [f"[default0]:  {name} {'.' * (48 - len(name))} {v}" for name, v in values.items()]
    return ["---- arguments ----", *lines, "---- end of arguments ----"]


def test_megatrons_arguments_are_read_together() -> None:
    (claim,) = scan_log(
        dump(
            fp4="None",
            fp4_recipe="nvfp4",
            fp8="hybrid",
            fp8_param_gather="True",
            fp8_recipe="mxfp8",
            fp8_wgrad="False",
        )
    )
    assert (claim.line, claim.framework, claim.recipe) == (4, "Megatron-LM", "mxfp8")
    assert (claim.format, claim.all_gather) == ("mxfp8", True)
    assert claim.legs == {"fprop": "mxfp8", "dgrad": "mxfp8", "wgrad": "high_precision"}


def test_megatrons_fp4_is_nvfp4_and_its_defaults_promise_nothing() -> None:
    (claim,) = scan_log(
        dump(fp4="e2m1", fp4_param_gather="False", fp4_recipe="nvfp4", fp8_recipe="delayed")
    )
    assert (claim.format, claim.recipe, claim.legs) == ("nvfp4", "nvfp4", {})
    assert claim.all_gather is False


@pytest.mark.parametrize(
    ("first", "second", "lines"),
    [("hybrid", "None", []), ("None", "hybrid", [6])],
)
def test_each_dump_is_read_on_its_own_and_the_later_one_holds(
    first: str, second: str, lines: list[int]
) -> None:
    both = dump(fp8=first, fp8_recipe="x") + dump(fp8=second, fp8_recipe="mxfp8")
    claims = [claim for claim in scan_log(both) if claim.says == "fp8"]
    assert [claim.line for claim in claims] == lines
    assert all(claim.recipe == "mxfp8" for claim in claims)


def test_a_claim_repeated_by_every_rank_is_kept_once() -> None:
    assert len(scan_log(f"[rank{rank}]:{LINE}" for rank in range(64))) == 1


def test_a_claim_for_each_layer_is_kept_once() -> None:
    lines = (f"Swapped layers.{i}.w1 to Float8TrainingWeightWrapperTensor" for i in range(500))
    assert len(scan_log(lines)) == 1


def test_claims_are_kept_up_to_a_limit() -> None:
    lines = (f"Float8 training active with recipe r{index}" for index in range(MAX_CLAIMS + 7))
    assert len(scan_log(lines)) == MAX_CLAIMS


def test_lines_that_differ_in_counters_only_do_not_hide_a_claim(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    steps = [f"step {i} | FP16 training | fp8 scale {i}" for i in range(50)]
    log.write_text("\n".join([*steps, "FP8 training is slow", "FP8 training enabled!"]))
    assert [claim.line for claim in read_claims(log).claims] == [52]


@pytest.mark.parametrize("text", ["FP8 " * 2000, "MXFP8 training in " * 500, "fp8" + "." * 4000])
def test_a_hostile_line_takes_no_longer_than_another(text: str) -> None:
    assert scan_log([text + "applied converted"] * 20) == []


MARKS = st.text(
    alphabet="{}[]\"':|=<>#/-. \t\bfp8FP8Float8 training enabled 0123\x1b", max_size=200
)


@given(st.lists(st.text(max_size=80) | MARKS, max_size=20))
def test_any_text_is_read_without_an_error(lines: list[str]) -> None:
    scan_log([f"{line} fp8 training {line}" for line in lines])
