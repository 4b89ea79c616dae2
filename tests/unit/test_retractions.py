# ruff: noqa: RUF001  (lines of other languages)
"""What takes a claim back in the sentence in which it stands, and what does not."""

from __future__ import annotations

import json

import pytest

from fp8verify.logs.claims import scan_promises

TAKEN_BACK = r"""
Enabling fp8 layerwise casting for transformer
FP8 support available for maximum throughput
(EngineCore_0 pid=12) INFO 11-22 10:00:00 [x.py:3] FP8 enabled
[vLLM worker 0] FP8 enabled
FP8 training enabled, now disabled
FP8 training enabled (disabled on this GPU)
FP8 training enabled, but skipped because no layer matched
Disabling FP8 training
Skipping FP8 training
Not using FP8 training
Cannot use FP8 training
model: gpt-fp8
run: fp8-training-enabled
checkpoint: fp8 enabled
dataset: FP8 enabled
FP8 training enabled => no
FP8 training enabled … failed
Enabling FP8 training… failed
Using FP8 training... not supported
FP8 training enabled after warmup
FP8 training enabled after 1000 steps
FP8 training enabled after step 500
FP8 training enabled from step 500
FP8 training enabled from epoch 2 on
FP8 training enabled starting at step 100
FP8 training enabled at step 1000 (currently bf16)
FP8 training enabled in 200 steps
FP8 training enabled later
FP8 training enabled on the next restart
FP8 training enabled next epoch
FP8 training enabled, starting from step 2000
FP8 training enabled (starts at step 2000)
FP8 training enabled (after 100 warmup steps)
FP8 training enabled with 500 bf16 warmup steps
FP8 training active until step 1000
FP8 training enabled for the first 10 steps
FP8 training enabled for steps 1000-2000
Using FP8 training after step 100
Enabling FP8 training at step 1000
Enabling FP8 training in 3 hours
Switching to FP8 training at step 1000
Will enable FP8 training
Planning: FP8 training enabled
Training in FP8 from step 1000
Training in FP8 starts at step 1000
Training with FP8 begins after warm-up
Float8 training active soon
FP8 is enabled after calibration
FP8 enabled during evaluation only
FP8 training enabled once warmup ends
FP8 training enabled upon reaching loss 2.0
FP8 training enabled as soon as loss < 3
FP8 training enabled before phase 2
FP8 training enabled in phase 2
FP8 training enabled in stage 2
FP8 training enabled for the last 100 steps
FP8 training enabled every 10th step
FP8 training enabled -> False
FP8 training enabled on 0 layers
FP8 training enabled for 0 of 48 layers
FP8 training enabled for 0 layers
FP8 training enabled for no layers
FP8 training enabled for none of the layers
No FP8 training enabled
FP8 training turned on? no
FP8 training enabled by mistake; turning it off
FP8 training enabled earlier has been turned off
FP8 training enabled [SKIPPED]
FP8 training enabled ✗
FP8 training enabled: ✗
FP8 training enabled: ❌
FP8 training enabled ❌
fp8 enabled: N
fp8 enabled: [ ]
fp8 enabled: {}
fp8 enabled: []
fp8 enabled: -
fp8 enabled: unset
fp8 enabled: unknown
fp8 enabled: auto
FP8 training enabled = never
FP8 training enabled, however no layer was converted
FP8 training enabled but all layers were filtered out
FP8 training enabled but no layers matched the filter
FP8 training enabled but ignored on A100
FP8 training enabled without effect
FP8 training enabled; emulated in bf16
FP8 training enabled (emulation)
Using FP8 recipe none
Using FP8 recipe: None
Using FP8 precision = False
Using FP8 training: False
Using FP8 training=False
Using fp8 autocast (enabled=False)
Using fp8 autocast enabled: False
Mixed precision: fp8=False
Mixed precision = fp8: off
Training with FP8: False
Training in FP8: no
Training with fp8=0
Training with FP8 turned off
Training in fp8 mode is unsupported
FP8 training enabled when torchao is installed
FP8 training enabled only if SM89
Is FP8 training enabled?
Enabling FP8 training requires SM89
Enabling FP8 training can speed up training
Training with fp8 would give 1.5x throughput
Training in FP8 vs BF16
Training with FP8 / BF16 comparison
Tip: FP8 training enabled gives more speed
hint: Using FP8 training
Note: FP8 training enabled by default in the next release
Recommendation: Training in FP8
Suggestion: Using FP8 training
Consider: Training with FP8
To speed up: Using FP8 training
--fp8    FP8 training enabled
usage: train.py [--fp8] FP8 training enabled
options: FP8 training enabled (default: False)
FP8 training enabled (default: False)
FP8 training enabled (default: off)
2x faster than fp8
BF16 is 2x slower than FP8 training enabled runs
Comparing against: FP8 training enabled
baseline: FP8 training enabled
reference: Training in FP8
[vllm] FP8 enabled for KV cache
FP8 enabled for KV cache
FP8 training enabled for optimizer states
Using FP8 quantization for the rollout engine
(EngineCore pid=1) Using FP8 compute for rollout
Using fp8 linear layers in the inference engine
FP8 enabled for rollouts
FP8 enabled for the teacher model
FP8 enabled for the reference model
FP8 enabled for the reward model
FP8 enabled for the frozen text encoder
Converting model to FP8 for export
Converting model weights to FP8 for inference
FP8 enabled for all-gather
FP8 active for communication
Converted layers to FP8 storage
Converted model to FP8 weights (layerwise casting, compute in bf16)
FP8 enabled (weights only)
FP8 enabled (weight-only)
FP8 enabled for storage, compute in bf16
Mixed precision: /runs/fp8/config.yaml
Training with fp8_baseline.yaml
Training with fp8-vs-bf16 run name
Saving run to fp8_training_enabled/ckpt
wandb: Syncing run fp8 training enabled
run_name: FP8 training enabled
Experiment: FP8 training enabled
output_dir=/runs/fp8-training-enabled
Loading config fp8 training enabled.yaml
fp8: False
fp8=False
'fp8': False,
  fp8_enabled: false
fp8.enabled=False
"fp8": {"enabled": false}
Namespace(fp8=None)
float8.enable_fsdp_float8_all_gather = False
FP8 training enabled 失败
FP8 training enabled: 否
FP8 training enabled: nein
FP8 training enabled: non
FP8训练未启用
FP8-Training deaktiviert
Training in FP8 nicht möglich
Training in FP8 不支持
FP8 training enabled（已禁用）
FP8 training enabled：否
RuntimeError: FP8 training enabled on a GPU without FP8
AssertionError: FP8 training enabled
raise ValueError: Training in FP8
E   AssertionError: Training in FP8
Error: Using FP8 training on unsupported device
ERROR: Using FP8 training on unsupported device
FP8 training enabled by user, overriding with bf16
FP8 training enabled in config but overridden by bf16=True
Attempting: Using FP8 training
Trying: Training in FP8
Enabling FP8 training... not available
Enabling FP8 training: error: no module torchao
Converting layers to Float8Linear: 0 converted
Converting model to Float8Linear (0 modules)
Converted model to Float8Linear: 0 layers
Converted linear layers to Float8Linear (0/48)
Applied FP8 recipe to the KV cache
Simulating: FP8 training enabled
"""

CLAIMS = r"""
FP8 training enabled (recipe=tensorwise, emulate=False)
FP8 training enabled: 48 layers, 0 skipped
Converted 48 linear layers to Float8Linear, 0 layers skipped
FP8 training enabled, lm_head not converted
Converting model to Float8Linear from checkpoint step 1000
FP8 training enabled; resuming at step 1000
FP8 training enabled, evaluating every 100 steps
FP8 training enabled, checkpoint every 1000 steps, eval after epoch 1
FP8 training enabled, lm_head forced to bf16
FP8 training enabled (auto filter)
FP8 training enabled - disabling flash attention
FP8 training enabled (skipped lm_head)
FP8 training enabled (skipped: lm_head)
FP8 training enabled, skipped for lm_head
FP8 training enabled, lm_head kept in bf16
FP8 training enabled with bf16 master weights
FP8 training enabled, optimizer states in fp32
FP8 training enabled — nn.Linear layers replaced with FP8Linear
FP8 training enabled for attention and MLP layers
FP8 enabled for MLP and attention projections
FP8: converted 48 Linear layers to Float8Linear
Training in FP8 for 1000 steps
Training in FP8/BF16 mixed precision
Training with FP8-hybrid
Training with fp8 precision, eval in bf16
FP8 training enabled. Evaluation runs in bf16.
FP8 training enabled, fp8 all-gather enabled: False
FP8 training enabled, fp8_wgrad=False
FP8 training enabled [48 layers]
FP8 mixed precision: enabled
FP8 training enabled: 1
FP8 training enabled=1
FP8 training enabled（张量级缩放）
Enabled FP8 training for 224 Linear modules (skipped 1: lm_head)
Using float8 training with tensorwise scaling; comparing losses every 100 steps
Using fp8 autocast (enabled=True)
FP8 training enabled for 48 of 49 layers
FP8 training enabled from config
FP8 training enabled on rank 0
FP8 training enabled on 8 GPUs
FP8 training enabled via torchao
FP8 training enabled in 3.2s
FP8 training enabled with delayed scaling, amax history 1024
FP8 training enabled (recipe=tensorwise)
FP8 training enabled and starting at step 0
FP8 training enabled from step 0
Applied Float8 training: recipe=TENSORWISE, fsdp_float8_all_gather=False
Applied Float8 training to 48 layers before torch.compile
Converted 48 linear layers to Float8Linear after meta init
[rank0]: FP8 training enabled
 10%|#         | 1/10 [00:01<00:10, 1.1s/it]FP8 training enabled
2026-11-22 10:00:00,123 - INFO - Training in FP8
Using delayed scaling FP8 recipe
Using FP8 mixed precision (TransformerEngine)
Enabling FP8 training... ok
FP8 enabled: True
FP8 training enabled: true
FP8 training enabled ✓
FP8 training is now enabled.
FP8 mixed precision training is active
Training in FP8 on 8x H200
Training with FP8 (hybrid)
FP8 training enabled | lr warmup 100 steps
FP8 training enabled with lr warmup 100
"""


def lines(block: str) -> list[str]:
    return [line for line in block.splitlines() if line]


def promises(line: str) -> bool:
    """Whether a line says that this training runs in FP8, and of at least one layer."""
    claims = scan_promises([line]).claims
    return any(claim.says == "fp8" and claim.converted != 0 for claim in claims)


@pytest.mark.parametrize("line", lines(TAKEN_BACK))
def test_a_line_that_takes_its_claim_back_promises_nothing(line: str) -> None:
    assert not promises(line)


@pytest.mark.parametrize("line", lines(CLAIMS))
def test_what_else_a_line_says_leaves_its_claim(line: str) -> None:
    assert promises(line)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_field_of_a_structured_log_may_switch_its_message_off(*, enabled: bool) -> None:
    fields = {"level": "info", "msg": "FP8 training enabled", "enabled": enabled}
    assert promises(json.dumps(fields)) is enabled
