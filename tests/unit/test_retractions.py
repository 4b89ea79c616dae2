# ruff: noqa: RUF001  (lines of other languages)
"""What takes a claim back in the sentence in which it stands, and what does not."""

from __future__ import annotations

import json

import pytest

from fp8verify.logs.claims import scan_text

TAKEN_BACK = r"""
Enabling fp8 layerwise casting for transformer
FP8 support available for maximum throughput
(EngineCore_0 pid=12) INFO 11-22 10:00:00 [x.py:3] FP8 enabled
[vLLM worker 0] FP8 enabled
FP8 training enabled (disabled on this GPU)
FP8 training enabled, but skipped because no layer matched
Disabling FP8 training
Cannot use FP8 training
run: fp8-training-enabled
FP8 training enabled => no
Enabling FP8 training… failed
FP8 training enabled after 1000 steps
FP8 training enabled from step 500
FP8 training active until step 1000
Will enable FP8 training
Float8 training active soon
FP8 is enabled after calibration
FP8 enabled during evaluation only
FP8 training enabled once warmup ends
FP8 training enabled in phase 2
FP8 training enabled -> False
FP8 training enabled on 0 layers
No FP8 training enabled
FP8 training enabled by mistake; turning it off
FP8 training enabled [SKIPPED]
FP8 training enabled ✗
FP8 training enabled: ❌
fp8 enabled: N
fp8 enabled: []
fp8 enabled: unset
FP8 training enabled, however no layer was converted
FP8 training enabled without effect
FP8 training enabled; emulated in bf16
Using FP8 recipe none
Using fp8 autocast (enabled=False)
FP8 training enabled when torchao is installed
Is FP8 training enabled?
Training with fp8 would give 1.5x throughput
Tip: FP8 training enabled gives more speed
Note: FP8 training enabled by default in the next release
--fp8    FP8 training enabled
FP8 training enabled (default: False)
2x faster than fp8
Comparing against: FP8 training enabled
FP8 training enabled for optimizer states
(EngineCore pid=1) Using FP8 compute for rollout
FP8 enabled for the frozen text encoder
Converting model weights to FP8 for inference
FP8 enabled for all-gather
Converted model to FP8 weights (layerwise casting, compute in bf16)
Mixed precision: /runs/fp8/config.yaml
Saving run to fp8_training_enabled/ckpt
wandb: Syncing run fp8 training enabled
float8.enable_fsdp_float8_all_gather = False
FP8 training enabled 失败
Training in FP8 nicht möglich
FP8 training enabled（已禁用）
RuntimeError: FP8 training enabled on a GPU without FP8
Converting layers to Float8Linear: 0 converted
Applied FP8 recipe to the KV cache
Simulating: FP8 training enabled
"""

CLAIMS = r"""
FP8 training enabled, evaluating every 100 steps
FP8 training enabled for attention and MLP layers
FP8 training enabled, but lm_head stays in BF16
FP8 training enabled with the AdamW optimizer
FP8 training enabled: 48 layers, 0 skipped
FP8 training enabled (recipe=tensorwise, emulate=False)
FP8 training enabled, lm_head forced to bf16
FP8 training enabled with bf16 master weights
FP8 training enabled — nn.Linear layers replaced with FP8Linear
FP8: converted 48 Linear layers to Float8Linear
Training with FP8-hybrid
FP8 training enabled. Evaluation runs in bf16.
FP8 training enabled, fp8 all-gather enabled: False
FP8 training enabled, fp8_wgrad=False
FP8 training enabled [48 layers]
FP8 mixed precision: enabled
FP8 training enabled: 1
Enabled FP8 training for 224 Linear modules (skipped 1: lm_head)
Using fp8 autocast (enabled=True)
FP8 training enabled for 48 of 49 layers
FP8 training enabled from config
FP8 training enabled in 3.2s
FP8 training enabled with delayed scaling, amax history 1024
Applied Float8 training: recipe=TENSORWISE, fsdp_float8_all_gather=False
Applied Float8 training to 48 layers before torch.compile
 10%|#         | 1/10 [00:01<00:10, 1.1s/it]FP8 training enabled
Using delayed scaling FP8 recipe
Using FP8 mixed precision (TransformerEngine)
Enabling FP8 training... ok
FP8 enabled: True
FP8 training enabled ✓
FP8 training is now enabled.
"""


def lines(block: str) -> list[str]:
    return [line for line in block.splitlines() if line]


def promises(line: str) -> bool:
    """Whether a line says that this training runs in FP8, and of at least one layer."""
    claims = scan_text(line).claims
    return any(claim.says == "fp8" and claim.converted != 0 for claim in claims)


@pytest.mark.parametrize("line", lines(TAKEN_BACK))
def test_a_line_that_takes_its_claim_back_promises_nothing(line: str) -> None:
    assert not promises(line)


@pytest.mark.parametrize("line", lines(CLAIMS))
def test_what_else_a_line_says_leaves_its_claim(line: str) -> None:
    assert promises(line)


NOT_UNDERSTOOD = r"""
FP8 training enabled, lm_head not converted
FP8 training enabled（张量级缩放）
"""


@pytest.mark.parametrize("line", lines(NOT_UNDERSTOOD))
def test_what_is_not_understood_is_no_claim(line: str) -> None:
    assert not promises(line)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_field_of_a_structured_log_may_switch_its_message_off(*, enabled: bool) -> None:
    fields = {"level": "info", "msg": "FP8 training enabled", "enabled": enabled}
    assert promises(json.dumps(fields)) is enabled
