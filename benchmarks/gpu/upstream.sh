#!/usr/bin/env bash
# Try the patches of examples/upstream on a GPU: each must pass as it is and fail on a sown fault.
#     benchmarks/gpu/upstream.sh SOURCES
# SOURCES holds TransformerEngine/qa, ao/test and Megatron-LM of the commits named there.
set -u
sources=$(realpath "$1")
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
  printf '%-34s %-5s expected %-5s %4d s\n' "$name" "$got" "$expected" $((SECONDS - begin))
  [ "$got" = "$expected" ] || grep -E 'Error|error:' "$work/$name.log" | head -n 8
}
cp -r "$sources/ao" "$sources/TransformerEngine" "$work/"
patch -s -p1 -d "$work/ao" <"$here/examples/upstream/ao.patch"
test_file=$work/ao/test/float8/test_fp8_kernels.py
pytest="python3 -m pytest -q -p fp8verify.pytest_plugin --rootdir $work/ao"
check torchao pass $pytest "$test_file"
sed -i 's/convert_to_float8_training(model, /&module_filter_fn=lambda *_: False, /' "$test_file"
check torchao-empty-filter fail $pytest "$test_file"
qa=TransformerEngine/qa/L1_pytorch_mcore_integration/test.sh
export TE_PATH=$work/TransformerEngine MCORE_PATH=$sources/Megatron-LM WITH_FP8=1
# Megatron-LM of today loads the tokenizer of these files from a hub; no vocabulary is
# needed here. The fused accumulation of gradients needs APEX. Weights made on the CPU stay there.
sed -i 's/^--vocab-file.*/--tokenizer-type NullTokenizer --vocab-size 4095 --no-gradient-accumulation-fusion --eval-interval 1000/; /^--merge-file/d; /^--use-cpu-initialization/d' "$work/$qa"
check transformer-engine-unpatched pass bash "$work/$qa"
patch -s -p1 -d "$work/TransformerEngine" <"$here/examples/upstream/transformerengine.patch"
check transformer-engine pass bash "$work/$qa"
sed -i 's/${WITH_FP8:+--fp8-format hybrid}//' "$work/$qa"
check transformer-engine-no-autocast fail bash "$work/$qa"
