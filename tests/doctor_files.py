"""Configurations in the form that each framework's own examples have, and facts about a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.gpus import Gpu, Gpus
from fp8verify.doctor.interpreter import Installed, Interpreter
from fp8verify.doctor.launch import read_launch
from fp8verify.doctor.rules import judge

H100 = Gpu("NVIDIA H100 80GB HBM3", "9.0", "580.65.06", "81559 MiB")
H20 = Gpu("NVIDIA H20", "9.0", "580.65.06", "97871 MiB")
A100 = Gpu("NVIDIA A100-SXM4-80GB", "8.0", "580.65.06", "81920 MiB")
B200 = Gpu("NVIDIA B200", "10.0", "580.65.06", "183359 MiB")
RTX6000_PRO = Gpu("NVIDIA RTX PRO 6000 Blackwell", "12.0", "580.65.06", "97887 MiB")
MI300X = Gpu("AMD Instinct MI300X", "gfx942")
GOOD = {
    "torch": "2.11.0+cu130",
    "triton": "3.6.0",
    "torchao": "0.18.0",
    "transformer_engine": "2.19.0",
    "accelerate": "1.15.0",
}

KEMPNERFORGE = """\
[model]
dim = 4096
n_layers = 32
n_heads = 32
n_kv_heads = 8
vocab_size = 128256
ffn_dim_multiplier = 1.3
max_seq_len = 4096

[train]
batch_size = 8
seq_len = 4096
max_steps = 50
compile_model = true
mixed_precision = "fp8"
activation_checkpointing = "full"

[distributed]
dp_shard = -1
nccl_timeout_sec = 600

[profiling]
enable = true
start_step = 5
end_step = 8
"""
ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: "NO"
mixed_precision: "fp8"
num_processes: 1
fp8_config:
  backend: TE # Can be TE | MS-AMP
  amax_history_len: 1024
  fp8_format: E4M3
  interval: 1
  margin: 0
  override_linear_precision: [false, false, false]
  use_autocast_during_eval: false
"""
ACCELERATE_AO = """\
distributed_type: FSDP
mixed_precision: fp8
num_processes: 8
fsdp_config:
  fsdp_version: 2
  fsdp_cpu_ram_efficient_loading: false
dynamo_config:
  dynamo_backend: INDUCTOR
fp8_config:
  backend: AO
  enable_fsdp_float8_all_gather: true
  pad_inner_dim: true
"""
TORCHTITAN_TOML = """\
[job]
dump_folder = "./outputs"

[model]
name = "llama3"
flavor = "405B"
converters = ["float8"]

[training]
local_batch_size = 2
seq_len = 8192
steps = 3000

[parallelism]
tensor_parallel_degree = 8

[compile]
enable = true
components = ["model", "loss"]

[quantize.linear.float8]
enable_fsdp_float8_all_gather = true
precompute_float8_dynamic_scale_for_fsdp = true
filter_fqns = ["output"]
"""
TORCHTITAN_PRESET = """\
[job]
description = "Llama 3 8B training"

[model]
name = "llama3"
flavor = "8B"
# converters = ["float8"]

[training]
steps = 1000

[compile]
enable = false

[quantize.linear.float8]
enable_fsdp_float8_all_gather = false
precompute_float8_dynamic_scale_for_fsdp = false
filter_fqns = ["output"]
"""
TORCHTITAN_PYTHON = """\
from torchtitan.components.quantization import Float8LinearConverter, NVFP4LinearConverter
from torchtitan.config import CompileConfig


def llama3_8b_float8():
    config = llama3_8b()
    config.compile = CompileConfig(enable=True, components=["model"])
    config.model_spec = model_registry(
        "8B",
        converters=[
            Float8LinearConverter.Config(
                recipe_name="rowwise",
                filter_fqns=["lm_head"],
                model_compile_enabled=True,
            ),
        ],
    )
    return config


def llama3_8b_nvfp4():
    return model_registry(
        "8B", converters=[NVFP4LinearConverter.Config(fqns=["layers"], model_compile_enabled=True)]
    )
"""
MEGATRON_SH = """\
#!/bin/bash
TP_SIZE=1
SEQ_LENGTH=8192
MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --seq-length $SEQ_LENGTH
    --swiglu
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --train-samples 1953125000
    --bf16
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=(
        "--fp8-format hybrid"
        "--fp8-amax-history-len 1024"
        "--fp8-amax-compute-algo max"
        "--fp8-param-gather"
    )
fi
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP_SIZE
    # --pipeline-model-parallel-size $PP_SIZE
    --sequence-parallel  # always
)
EVAL_ARGS=(--profile --profile-step-start 4 --profile-step-end 6)
torchrun pretrain_gpt.py ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} ${DTYPE_ARGS[@]}
"""
MEGATRON_YAML = """\
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 24
  --hidden-size: 4096
  --num-attention-heads: 32
  --micro-batch-size: 2
  --train-iters: 2000
  --transformer-impl: transformer_engine
  --tensor-model-parallel-size: 2
  --fp8-format: hybrid
  --fp8-recipe: tensorwise
  --fp8-param-gather: true
  --use-distributed-optimizer: true
  --bf16: true
TEST_TYPE: regular
"""
AXOLOTL = """\
base_model: meta-llama/Llama-3.2-3B
datasets:
  - path: yahma/alpaca-cleaned
    type: alpaca
sequence_len: 512
torch_compile: true
micro_batch_size: 16
wandb_project:
fp8: true
fp8_enable_fsdp_float8_all_gather: true
fsdp_version: 2
fsdp_config:
  offload_params: false
  activation_checkpointing: false
special_tokens:
  pad_token: <|end_of_text|>
"""
LLAMA_FACTORY = """\
### Model configuration
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
do_train: true
finetuning_type: full
template: llama3
cutoff_len: 1024
per_device_train_batch_size: 1
bf16: true
fp8: true
fp8_backend: torchao  # Use TorchAO backend for FP8
deepspeed: examples/deepspeed/ds_z3_fp8_config.json
"""
TRL = """\
model_name_or_path: Qwen/Qwen2-0.5B
dataset_name: trl-lib/Capybara
output_dir: out
per_device_train_batch_size: 2
bf16: true
"""
DEEPSPEED = """\
{
  "train_micro_batch_size_per_gpu": "auto",
  "bf16": {"enabled": "auto"},
  "zero_optimization": {"stage": 3, "overlap_comm": false}
}
"""
NEMO = """\
trainer:
  devices: 8
  precision: bf16
model:
  micro_batch_size: 4
  tensor_model_parallel_size: 1
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 11008
  num_attention_heads: 32
  transformer_engine: True
  fp8: True # enables fp8 in TransformerLayer forward
  fp8_e4m3: False
  fp8_hybrid: True
  fp8_margin: 0
  fp8_interval: 1
  fp8_amax_history_len: 1024
  fp8_amax_compute_algo: max
"""
BRIDGE = """\
mixed_precision: bf16_with_mxfp8_mixed
model:
  tensor_model_parallel_size: 2
"""
AUTOMODEL = """\
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
step_scheduler:
  max_steps: 10
compile:
  enabled: true
fp8:
  enabled: true
  recipe_name: tensorwise
  enable_fsdp_float8_all_gather: true
  filter_fqns: ["lm_head"]
  emulate: false
"""
LIGHTNING = """\
trainer:
  precision: transformer-engine
  max_steps: 100
model:
  class_path: MyModel
data:
  class_path: MyData
"""
PRIME_RL = """\
[trainer.model]
name = "zai-org/GLM-5.1"
impl = "custom"

[trainer.model.quantization]
type = "fp8"
"""
TORCHTUNE = """\
model:
  _component_: torchtune.models.llama3_1.llama3_1_8b
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: /tmp/Meta-Llama-3.1-8B-Instruct/
batch_size: 2
compile: True
enable_activation_checkpointing: False
enable_fp8_training: True
fp8_recipe_name: tensorwise
context_parallel_dim: 1
"""
LITGPT = """\
checkpoint_dir: checkpoints/meta-llama/Meta-Llama-3.1-8B
out_dir: out/finetune/full-llama-3.1-8b
precision: bf16-true
devices: 4
train:
  save_interval: 200
  micro_batch_size: 1
"""
MS_SWIFT = """\
# 8 * 95GiB
PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \\
NPROC_PER_NODE=8 \\
megatron sft \\
    --model Qwen/Qwen3-30B-A3B-Instruct-2507-FP8 \\
    --fp8_recipe blockwise \\
    --fp8_format e4m3 \\
    --fp8_param_gather true \\
    --dataset 'swift/Chinese-Qwen3-235B-2507-Distill-data-110k-SFT#2000' \\
              'swift/self-cognition#1000' \\
    --tensor_model_parallel_size 2 \\
    --micro_batch_size 4 \\
    --global_batch_size 16 \\
    --recompute_granularity full \\
    --train_iters 100 \\
    --sequence_parallel true
"""
BRIDGE_SH = """\
#!/bin/bash
CLI_OVERRIDES="\\
    model.seq_length=4096 \\
    train.train_iters=10 \\
    mixed_precision=bf16_with_fp8_current_scaling_mixed \\
    model.sequence_parallel=True "
uv run python scripts/training/run_recipe.py --recipe llama3_8b_pretrain_config $CLI_OVERRIDES
"""
# nanochat's runs/speedrun.sh
NANOCHAT_SH = """\
#!/bin/bash
WANDB_RUN=${WANDB_RUN:-dummy}
python -m scripts.tok_train
torchrun --standalone --nproc_per_node=8 -m scripts.base_train -- --depth=24 \
    --target-param-data-ratio=8 --device-batch-size=16 --fp8 --run=$WANDB_RUN
"""
PRIME_RL_SFT = """\
max_steps = 100

[model]
name = "PrimeIntellect/Qwen3-0.6B"
impl = "custom"

[model.quantization]
type = "fp8"

[data]
seq_len = 4096
"""


def write(folder: Path, name: str, text: str) -> str:
    """Write a configuration and return its path."""
    path = folder / name
    path.write_text(text)
    return str(path)


def facts_of(
    *configs: str,
    command: Sequence[str] = (),
    gpus: Sequence[Gpu] = (H100,),
    versions: Mapping[str, str] = GOOD,
    environment: Mapping[str, str] | None = None,
    require_gpu: bool = True,
) -> Facts:
    """Return facts about files on a machine that is written down, not looked at."""
    launch = read_launch(configs, command, environment or {})
    return Facts(
        gpus=Gpus(tuple(gpus), "" if gpus else "no tool is here"),
        installed=Installed(Interpreter("/venv/bin/python", "of the PATH", named=False), versions),
        environment=launch.environment,
        configs=launch.configs,
        scripts=launch.scripts,
        unrecognised=launch.unrecognised,
        command=tuple(command),
        require_gpu=require_gpu,
    )


def complaints(facts: Facts) -> dict[str, Check]:
    """Return what warns or fails, by code."""
    grave = (Status.WARN, Status.FAIL)
    return {check.code: check for check in judge(facts) if check.status in grave}
