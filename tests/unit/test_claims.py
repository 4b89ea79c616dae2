"""Claims: what a running program says of itself, behind any logger's prefix, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8verify.logs.claims import MAX_CLAIMS, read_claims
from fp8verify.logs.rows import rows
from fp8verify.model.claims import Claim
from tests.log_text import labelled_lines, read_text

LINE = "Applied Float8 training: recipe=TENSORWISE, fsdp_float8_all_gather=True"


def scan_log(lines: Iterable[str]) -> list[Claim]:
    return read_text("\n".join(line.rstrip("\n") for line in lines)).claims_at()


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
        json.dumps(
            {"log": json.dumps({"msg": "[rank0] " + LINE}) + "\n", "stream": "stdout"}
        ),
        json.dumps(
            {"log": f"\r 40%|██| 4/10 [00:01<00:02]\r{LINE}\n", "stream": "stderr"}
        ),
        f'2025-06-01 10:00:00 {{"msg": "{LINE}"}}',
        f'time="2025-06-01T10:00:00Z" level=info msg="{LINE}"',
    ],
)
def test_the_message_of_a_structured_log_is_read(line: str) -> None:
    assert only(line).text == LINE


LINES = labelled_lines("fp8", "not_fp8", "scope")


@pytest.mark.parametrize(("says", "framework", "line"), LINES)
def test_each_framework_is_understood(says: str, framework: str, line: str) -> None:
    claims = [(claim.framework, claim.says) for claim in scan_log([line])]
    assert claims == [(framework, says)], (
        "no row matches, or a prefix is taken for the logger's, or the logger's is not known"
    )


def test_every_row_of_the_table_has_a_line_here() -> None:
    for framework, says, row, _ in rows():
        lines = [line for *said, line in LINES if said == [says, framework]]
        assert any(map(row.search, lines)), (
            f"log_lines.csv has no line “{says},{framework},…” that {row.pattern} matches"
        )


@pytest.mark.parametrize("line", [line for *_, line in labelled_lines("nothing")])
def test_lines_that_promise_nothing_are_no_claims(line: str) -> None:
    assert scan_log([line]) == []


def promises(line: str) -> bool:
    """Whether a line says that this run trains in FP8, and of at least one layer."""
    claims = read_text(line).claims_at()
    return any(claim.says == "fp8" and claim.converted != 0 for claim in claims)


@pytest.mark.parametrize(
    ("said", "_", "line"), labelled_lines("promised", "not promised")
)
def test_what_takes_a_claim_back_in_its_sentence_and_what_does_not(
    said: str, _: str, line: str
) -> None:
    assert promises(line) is (said == "promised")


@pytest.mark.parametrize("enabled", [True, False])
def test_a_field_of_a_structured_log_may_switch_its_message_off(
    *, enabled: bool
) -> None:
    fields = {"level": "info", "msg": "FP8 training enabled", "enabled": enabled}
    assert promises(json.dumps(fields)) is enabled


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
def test_a_claim_says_which_format_it_promises(
    line: str, format_: str, recipe: str | None
) -> None:
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
def test_a_recipe_that_leaves_a_leg_in_high_precision_says_so(
    line: str, format_: str
) -> None:
    legs = only(line).legs
    assert legs == {"fprop": format_, "dgrad": format_, "wgrad": "high_precision"}


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        (
            "✓ FP8 training enabled (tensorwise scaling) - converted 48/49 linear layers",
            (48, 49),
        ),
        ("FP8 training enabled (rowwise) - converted 48 layers", (48, None)),
        ("FP8Linear is active in 21 linear layers (head in bf16)", (21, None)),
        ("Float8 training enabled: 96 linears", (96, None)),
        ("FP8 training enabled in 32 layers", (None, None)),
        ("Converted 48 of 49 Linear layers to Float8Linear", (48, 49)),
        ("swapped 16 of 17 nn.Linear for Float8Linear", (16, 17)),
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
    lines = [
        f"[default0]:  {name} {'.' * (48 - len(name))} {v}"
        for name, v in values.items()
    ]
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
        dump(
            fp4="e2m1",
            fp4_param_gather="False",
            fp4_recipe="nvfp4",
            fp8_recipe="delayed",
        )
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
    lines = (
        f"Swapped layers.{i}.w1 to Float8TrainingWeightWrapperTensor"
        for i in range(500)
    )
    assert len(scan_log(lines)) == 1


def test_claims_are_kept_up_to_a_limit() -> None:
    lines = (
        f"Float8 training active with recipe r{index}"
        for index in range(MAX_CLAIMS + 7)
    )
    assert len(scan_log(lines)) == MAX_CLAIMS


def test_lines_that_differ_in_counters_only_do_not_hide_a_claim(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    steps = [f"step {i} | FP16 training | fp8 scale {i}" for i in range(50)]
    log.write_text("\n".join([*steps, "FP8 training is slow", "FP8 training enabled!"]))
    assert [claim.line for claim in read_claims(log).claims_at()] == [52]


@pytest.mark.parametrize(
    "text",
    [
        "FP8 " * 2000,
        "MXFP8 training in " * 500,
        "fp8" + "." * 4000,
        "fp8 " + " " * 60_000 + ": true a",
        "fp8 | " * 12_000,
        "fp8: {" * 9_000,
        "filter_fqns=[" * 50_000,
        f"Context (MatchContext(module_path='{'a' * 100_000}', x)) matched to quant config "
        * 3,
    ],
)
def test_a_hostile_line_takes_no_longer_than_another(text: str) -> None:
    claims = scan_log([text + "applied converted"])
    assert {claim.strength for claim in claims} <= {"configuration"}


MARKS = st.text(
    alphabet="{}[]\"':|=<>#/-. \t\bfp8FP8Float8 training enabled 0123\x1b", max_size=200
)


@given(st.lists(st.text(max_size=80) | MARKS, max_size=20))
def test_any_text_is_read_without_an_error(lines: list[str]) -> None:
    scan_log([f"{line} fp8 training {line}" for line in lines])
