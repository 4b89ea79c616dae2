#!/usr/bin/env bash
# What FP8 gains over BF16 at several sizes, on one GPU, compiled, torchao tensorwise:
#     benchmarks/fp8_gain.sh FOLDER
# Leaves FOLDER/SIZE-bf16 and FOLDER/SIZE-fp8 (captures of steps 12-16) and prints what
# `fp8verify compare` says of each pair.
set -u
out=$(realpath -m "$1")
cd "$(dirname "$0")/.."
mkdir -p "$out"
pair() { # SIZE, then the sizes of train_gpt.py
  local size=$1 precision
  shift
  for precision in bf16 fp8; do
    timeout 140 python3 -m fp8verify run --steps 12-16 --trace-dir "$out/$size-$precision" \
      --exit-zero -o "$out/$size-$precision.report.txt" \
      examples/train_gpt.py --steps 18 --compile --precision $precision "$@" >/dev/null 2>"$out/$size-$precision.stderr.txt"
  done
  echo "== $size"
  python3 -m fp8verify compare "$out/$size-bf16" "$out/$size-fp8" | tee "$out/$size.compare.txt" | head -12
}
gpt2=(--dim 768 --hidden 2048 --layers 12 --vocab 50304 --seq 1024)
pair width4096 --dim 4096 --hidden 14336 --layers 2 --vocab 32000 --batch 8 --seq 1024
pair width2048 --dim 2048 --hidden 8192 --layers 6 --vocab 32000 --batch 16 --seq 1024
pair gpt2-batch32 "${gpt2[@]}" --batch 32
pair gpt2-batch64 "${gpt2[@]}" --batch 64
pair gpt2-batch128 "${gpt2[@]}" --batch 128
