#!/usr/bin/env bash
# Record every capture of traces/ and of the GPU tests on a machine with a GPU:
#     benchmarks/gpu/record.sh FOLDER
# Each run leaves FOLDER/NAME (the capture) and FOLDER/NAME.report.txt; what the
# training printed is in NAME.stdout.txt and NAME.stderr.txt.
set -u
out=$(realpath -m "$1")
only=${2:-.}
cd "$(dirname "$0")/../.."
verify() { # NAME, then the arguments of `fp8verify run`
  local name=$1
  shift
  [[ $name =~ $only ]] || return 0
  local begin=$SECONDS
  timeout 150 python3 -m fp8verify run --trace-dir "$out/$name" -o "$out/$name.report.txt" "$@" \
    >"$out/$name.stdout.txt" 2>"$out/$name.stderr.txt"
  echo "exit $?" >>"$out/$name.report.txt"
  printf '%-28s %4d s  %s\n' "$name" $((SECONDS - begin)) \
    "$(grep -aE '^(ACTIVE|PARTIAL|INACTIVE|CONTRADICTED|EMULATED|INCONCLUSIVE)|^exit|^error' "$out/$name.report.txt" "$out/$name.stderr.txt" -h | tr '\n' ' ')"
}
mkdir -p "$out"
gpt() { # NAME, then arguments of train_gpt.py
  local name=$1
  shift
  verify "$name" --steps 10-12 examples/train_gpt.py "$@"
}
gpt fp8_compiled --precision fp8 --compile
gpt bf16_compiled --precision bf16 --compile
gpt bf16_filter_rejects_all --precision fp8 --compile --skip-layers '.*'
gpt fp8_emulated --precision fp8 --compile --emulate
gpt fp8_eager --precision fp8
gpt fp8_rowwise_gw_hp --precision fp8 --compile --recipe rowwise_with_gw_hp
for name in blockwise-cublas blockwise-triton experts-fp8 experts-bf16 triton-template; do
  verify "$name" --steps 5-7 benchmarks/gpu/workloads.py "$name"
done
verify accelerate_ao --steps 5-7 examples/train_accelerate.py
for name in one-step one-micro-batch pinned-layer nvfp4-fallback own-kernel \
  own-op own-kernel-compiled graphed rollout recompute; do
  verify "fault-$name" --steps 5-7 benchmarks/gpu/faults.py "$name"
done
[[ storage =~ $only ]] && python3 benchmarks/gpu/storage.py "$out/storage"
