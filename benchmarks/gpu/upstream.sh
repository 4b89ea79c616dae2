#!/usr/bin/env bash
# Try the patches of examples/upstream on a GPU: each must pass as it is and fail on an injected fault.
#     benchmarks/gpu/upstream.sh SOURCES [torchao torchtitan transformer-engine megatron]
# SOURCES holds ao/test, torchtitan, TransformerEngine/qa and Megatron-LM of the commits named there;
# torchtitan's after the `setup` of its row in frameworks.toml, for torch 2.11.
set -u
sources=$(realpath "$1")
shift
here=$(cd "$(dirname "$0")/../.." && pwd)
export PYTHONPATH=$here:${PYTHONPATH:-}
work=$(mktemp -d)
mkdir "$work/bin"
printf '#!/bin/sh\nexec python3 -m fp8verify "$@"\n' >"$work/bin/fp8verify"
chmod +x "$work/bin/fp8verify"
export PATH=$work/bin:$PATH

check() { # NAME EXPECTED COMMAND…: run it, compare "pass" or "fail"
  local name=$1 expected=$2 begin=$SECONDS got=pass
  shift 2
  timeout 200 "$@" >"$work/$name.log" 2>&1 || got=fail
  printf '%-36s %-5s expected %-5s %4d s\n' "$name" "$got" "$expected" $((SECONDS - begin))
  [ "$got" = "$expected" ] || grep -E 'Error|error:' "$work/$name.log" | cut -c 1-300 | head -n 8
}
patched() { patch -s -p1 -d "$work/$1" <"$here/examples/upstream/$2.patch"; }

torchao() {
  cp -r "$sources/ao" "$work/"
  patched ao ao
  local test_file=$work/ao/test/float8/test_fp8_kernels.py
  local pytest="python3 -m pytest -q -p fp8verify.pytest_plugin --rootdir $work/ao"
  check torchao pass $pytest "$test_file"
  sed -i 's/convert_to_float8_training(model, /&module_filter_fn=lambda *_: False, /' "$test_file"
  check torchao-empty-filter fail $pytest "$test_file"
}

torchtitan() {
  cp -r "$sources/torchtitan" "$work/"
  cd "$work/torchtitan" || return
  touch tests/__init__.py # this repository has a package of that name too
  sed -i 's/ngpu: int = 4/ngpu: int = 1/' tests/integration_tests/__init__.py # one GPU here
  sed -i 's/disable_cuda_graphs: bool = False/disable_cuda_graphs: bool = True/' torchtitan/config/configs.py
  # Other models need names that torch 2.11 lacks; the suite of H100 names one of them.
  sed -i '/build_features_test_list/d; /build_model_tests_list/d' tests/integration_tests/run_tests.py
  sed -i '/^from torchtitan.models.deepseek_v3/,/^)/d' torchtitan_recipes/tests/h100.py
  local test="python3 -m tests.integration_tests.run_tests --test_suite h100 --test_name float8 --ngpu 1"
  check torchtitan-unpatched pass $test "$work/titan1"
  patched torchtitan torchtitan
  check torchtitan pass $test "$work/titan2"
  # The fault is torchtitan's own: its documented filter leaves out every layer.
  sed -i "0,/model_compile_enabled=model_compile_enabled/s//&, filter_fqns=['auto_filter_small_kn']/" \
    torchtitan/models/llama3/config_registry.py
  check torchtitan-auto-filter fail $test "$work/titan3"
}

transformer-engine() {
  cp -r "$sources/TransformerEngine" "$work/"
  local qa=$work/TransformerEngine/qa/L1_pytorch_mcore_integration/test.sh
  export TE_PATH=$work/TransformerEngine MCORE_PATH=$sources/Megatron-LM WITH_FP8=1
  # Megatron-LM of today loads the tokenizer of these files from a hub; no vocabulary is
  # needed here. The fused accumulation of gradients needs APEX. Weights made on the CPU stay there.
  sed -i 's/^--vocab-file.*/--tokenizer-type NullTokenizer --vocab-size 4095 --no-gradient-accumulation-fusion --eval-interval 1000/; /^--merge-file/d; /^--use-cpu-initialization/d' "$qa"
  check transformer-engine-unpatched pass bash "$qa"
  patched TransformerEngine transformerengine
  check transformer-engine pass bash "$qa"
  sed -i 's/${WITH_FP8:+--fp8-format hybrid}//' "$qa"
  check transformer-engine-no-autocast fail bash "$qa"
}

megatron() {
  cp -r "$sources/Megatron-LM" "$work/"
  cd "$work/Megatron-LM" || return
  local script=tests/functional_tests/shell_test_utils/_run_training.sh
  # Its image has yq, uv and envsubst; these do what the script needs of them.
  cat >"$work/bin/yq" <<'PYTHON'
#!/usr/bin/env python3
import re, sys, yaml
expression, *files = sys.argv[1:]
data = yaml.safe_load(open(files[0]) if files else sys.stdin)
if "ENV_VARS" in expression:
    print(*(f"{name}={value}" for name, value in data["ENV_VARS"].items()), sep="\n")
elif "env(KEY)" in expression:
    arguments = data["MODEL_ARGS"].items()
    print(*(f"{name}: {'true' if value is True else value}" for name, value in arguments), sep="\n")
else:
    name, default = re.match(r'\.(\w+)(?: // "(.*)")?', expression).groups()
    print(data.get(name, "null" if default is None else default))
PYTHON
  printf '#!/bin/sh\nshift 2\nexec "$@"\n' >"$work/bin/uv"
  printf '#!/bin/sh\nexec cat\n' >"$work/bin/envsubst"
  chmod +x "$work/bin/"*
  sed -i 's,/usr/local/bin/yq,yq,' "$script"
  cat >config.yaml <<'YAML'
ENV_VARS: {CUDA_DEVICE_MAX_CONNECTIONS: 1, NVTE_ALLOW_NONDETERMINISTIC_ALGO: 0}
REQUIRE_FORMAT: fp8
MODEL_ARGS:
  --num-layers: 4
  --hidden-size: 2048
  --num-attention-heads: 16
  --seq-length: 1024
  --max-position-embeddings: 1024
  --micro-batch-size: 2
  --global-batch-size: 8
  --train-iters: 20
  --mock-data: true
  --tokenizer-type: NullTokenizer
  --vocab-size: 32000
  --split: 100,0,0
  --lr: 0.00015
  --lr-decay-style: constant
  --log-interval: 1
  --eval-interval: 1000
  --eval-iters: 0
  --transformer-impl: transformer_engine
  --no-gradient-accumulation-fusion: true
  --bf16: true
  --normalization: RMSNorm
  --fp8-format: hybrid
  --fp8-recipe: tensorwise
YAML
  export TRAINING_SCRIPT_PATH=pretrain_gpt.py TRAINING_PARAMS_PATH=config.yaml OUTPUT_PATH=$work/megatron
  export TENSORBOARD_PATH=- CHECKPOINT_SAVE_PATH=- CHECKPOINT_LOAD_PATH=- DATA_PATH=- RUN_NUMBER=1
  export GPUS_PER_NODE=1 MASTER_PORT=29477 IS_NEMO_TEST=false RECORD_CHECKPOINTS=false
  REPEAT=1 check megatron-unpatched pass bash "$script"
  patched Megatron-LM megatron-lm
  sed -i 's,/usr/local/bin/yq,yq,' "$script"
  REPEAT=2 check megatron pass bash "$script"
  sed -i '/--fp8-/d' config.yaml # BF16, as where a recipe falls back
  REPEAT=3 check megatron-bf16 fail bash "$script"
}

for name in "${@:-torchao torchtitan transformer-engine megatron}"; do
  for one in $name; do (eval "$one"); done
done
