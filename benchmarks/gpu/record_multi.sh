#!/usr/bin/env bash
# Record the runs on two GPUs, all ranks:  benchmarks/gpu/record_multi.sh FOLDER
set -u
out=$(realpath -m "$1")
cd "$(dirname "$0")/../.."
mkdir -p "$out"
verify() { # NAME, then arguments of train_fsdp.py
  local name=$1 begin=$SECONDS
  shift
  timeout 120 python3 -m fp8verify run --steps 5-7 --ranks all --trace-dir "$out/$name" \
    -o "$out/$name.report.txt" -- \
    torchrun --nproc-per-node 2 examples/train_fsdp.py "$@" \
    >"$out/$name.stdout.txt" 2>"$out/$name.stderr.txt"
  echo "exit $?" >>"$out/$name.report.txt"
  printf '%-22s %4d s  %s\n' "$name" $((SECONDS - begin)) "$(grep -aE '^(ACTIVE|PARTIAL|INACTIVE|CONTRADICTED|EMULATED|INCONCLUSIVE)|^exit' "$out/$name.report.txt" | tr '\n' ' ')"
}
verify fsdp_bf16 --precision bf16
verify fsdp_fp8 --precision fp8
verify fsdp_fp8_all_gather --precision fp8 --fp8-all-gather
verify ddp_one_rank_bf16 --parallel ddp --bf16-rank 1
ranks() { # NAME MODE: benchmarks/gpu/ranks.py, small
  RANKS_BLOCKS=3 RANKS_MICRO=1 timeout 120 python3 -m fp8verify run --steps 6 --ranks all \
    --trace-dir "$out/$1" -o "$out/$1.report.txt" -- \
    torchrun --nproc-per-node 2 benchmarks/gpu/ranks.py "$2" >"$out/$1.stdout.txt" 2>"$out/$1.stderr.txt"
  echo "$1: exit $?"
}
ranks ddp_one_layer_bf16 ddp_layer
ranks ddp_beside_generation rollout
