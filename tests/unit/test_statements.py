"""Settings that ask for FP8, and what the statements of a log come to."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8verify.logs.claims import read_claims
from tests.log_text import read_text

ASK = [
    "model:\n  fp8: true\n  fp8_hybrid: true",
    "0: Model config: GPTConfig(\n0:     num_layers=32,\n0:     fp8='hybrid',",
    '[INFO] config:\n{\n  "bf16": true,\n  "fp8": true,\n  "lr": 1e-4\n}',
    "Args(bf16=True, use_fp8=True, out='o')",
    "config: {'precision': 'bf16', 'fp8': {'enabled': True, 'recipe': 'rowwise'}}",
    "fp8:\n  recipe_name: rowwise\n  enabled: true",
    "float8_config=Float8Config(enabled=True, ao=Config(...))",
    "python train.py trainer.devices=8 model.fp8=hybrid",
    "[rank3]: fp8: hybrid  # on",
    '{"lr": 0.1, "fp8": true}',
    "\x1b[32mfp8\x1b[0m: true",
    "| fp8 | hybrid |",
    "| mixed_precision | fp8 |",
    "precision=Precision.AMP_FP8",
    "trainer:\n  precision: bf16-mixed\n  plugins:\n    precision: fp8",
    "actor_rollout_ref:\n  actor:\n    fp8: true",
]
ASK_NOT = [
    "fp8: null\nfp8_format: hybrid",
    "fp8_recipe: tensorwise\nfp8_margin: 0\nfp8_wgrad: true\nfp8_param_gather: true",
    "fp8:\n  recipe_name: rowwise\n  enabled: false",
    "fp8:\n  recipe_name: rowwise",
    "profiles:\n  h100:\n    precision: fp8\nactive: a100",
    "actor_rollout_ref:\n  rollout:\n    fp8: true",
    "Teacher config:\n{\n  \"fp8\": true\n}",
    "---- reference model ----\nfp8: true",
    "RolloutConfig(tp=2, fp8=True)",
    "Set fp8=True to train faster",
    "fp8=True requires SM89",
    "ValueError: fp8=True",
    "# fp8: true",
    "usage: train.py fp8=true",
    '{"prompt": "a config, fp8: true, lr: 1", "id": 3}',
    "kv_cache_dtype: fp8",
    "optimizer:\n  fp8: true",
    "fp8: 123.4 ms",
    "precision: bf16 (fp8 is available)",
    "fp8: true\nfp8: false",
    '  File "train.py", line 3, in main\n    use_fp8=True,',
]  # fmt: skip


@pytest.mark.parametrize("text", ASK)
def test_a_setting_that_asks_for_fp8_is_a_claim_by_configuration(text: str) -> None:
    claims = read_text(text).claims_at()
    assert {(claim.says, claim.strength) for claim in claims} == {("fp8", "configuration")}
    assert all("8" in claim.text for claim in claims)


@pytest.mark.parametrize("text", ASK_NOT)
def test_what_asks_for_nothing_of_this_run_is_a_mention(text: str) -> None:
    found = read_text(text)
    assert all(claim.says == "revoked" for claim in found.claims_at())
    assert found.mention is not None


@pytest.mark.parametrize(
    "text", ["fp8 " + " " * 60_000 + ": true a", "fp8 | " * 12_000, "fp8: {" * 9_000, "{" * 30_000]
)
def test_a_hostile_line_of_settings_takes_no_longer_than_another(text: str) -> None:
    assert all(claim.text for claim in read_text(f"{text}\nfp8: x").claims_at())


CLAIM = "Float8 training active with recipe rowwise"
DENIAL = "WARNING - self test failed: FP8 disabled, falling back to bf16"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([CLAIM, DENIAL], ["revoked", "not_fp8"]),
        ([CLAIM, DENIAL, CLAIM], ["revoked", "revoked", "fp8"]),
        (["fp8: true", DENIAL], ["revoked", "not_fp8"]),
        ([DENIAL, "fp8: true"], ["not_fp8", "revoked"]),
        ([f"[rank0]: {CLAIM}", f"[rank1]: {DENIAL}"], ["fp8", "not_fp8"]),
        ([f"[rank1]: {CLAIM}", f"[rank0]: {DENIAL}"], ["revoked", "not_fp8"]),
        ([CLAIM, f"{CLAIM}_with_gw_hp"], ["revoked", "fp8"]),
        (["fp8: true", "fp8: false", "fp8: true"], ["revoked", "fp8"]),
        ([f'{{"step": {step}, "fp8": true}}' for step in range(9)], ["fp8"]),
        ([CLAIM, "FP8 disabled for lm_head"], ["fp8"]),
        ([CLAIM, "FP8 disabled if the GPU is too old"], ["fp8"]),
        ([CLAIM, "Teacher: FP8 disabled"], ["fp8"]),
        ([CLAIM, "training in bf16"], ["fp8"]),
        ([CLAIM, "retrying without FP8"], ["revoked", "not_fp8"]),
    ],
)
def test_the_last_statement_holds(lines: list[str], says: list[str]) -> None:
    assert [claim.says for claim in read_text("\n".join(lines)).claims_at()] == says


@pytest.mark.parametrize(
    "prefix",
    [
        "INFO Teacher: ",
        "INFO Planned: ",
        "[teacher] ",
        "INFO teacher - ",
        "(RolloutWorker pid=3) ",
        "[RolloutWorker-1] ",
        "INFO rollout_engine | ",
        "INFO vllm.worker: ",
    ],
)
def test_a_prefix_gives_a_line_to_another_model(prefix: str) -> None:
    found = read_text(f"{prefix}FP8 training enabled")
    assert found.claims_at() == []
    assert found.mention is not None


def test_what_is_said_after_the_window_does_not_count(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    steps = [f"step {number} loss 2.0" for number in range(100)]
    log.write_text("\n".join([CLAIM, *steps[:50], DENIAL, *steps[50:]]))
    found = read_claims(log)
    assert [claim.says for claim in found.claims_at(10)] == ["fp8"]
    assert [claim.says for claim in found.claims_at(60)] == ["revoked", "not_fp8"]
    assert [claim.says for claim in found.claims_at()] == ["revoked", "not_fp8"]
