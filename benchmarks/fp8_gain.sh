#!/usr/bin/env bash
# What FP8 gains over BF16 at several sizes, on one GPU, compiled, torchao tensorwise:
#     benchmarks/fp8_gain.sh FOLDER [SIZE…]
# Leaves FOLDER/SIZE-bf16 and FOLDER/SIZE-fp8 (captures of steps 16-20; the steps before are not
# profiled) and prints what `fp8verify compare` says of each pair. SIZE: see gain_sizes.sh; all by
# default, which takes nine minutes on an H200, most of it in torch.compile.
set -u
out=$(realpath -m "$1")
shift
cd "$(dirname "$0")/.."
. benchmarks/gain_sizes.sh
mkdir -p "$out"
[ $# -gt 0 ] || set -- "${gain_sizes[@]}"
for size in "$@"; do
  arguments=$(gain_arguments "$size") || exit 2
  for precision in bf16 fp8; do
    # shellcheck disable=SC2086 # the arguments are words
    timeout 180 python3 -m fp8verify run --steps 16-20 --trace-dir "$out/$size-$precision" \
      --exit-zero -o "$out/$size-$precision.report.txt" \
      examples/train_gpt.py --steps 21 --compile --precision $precision $arguments \
      >/dev/null 2>"$out/$size-$precision.stderr.txt"
  done
  echo "== $size"
  python3 -m fp8verify compare "$out/$size-bf16" "$out/$size-fp8" >"$out/$size.compare.txt"
  head -18 "$out/$size.compare.txt"
done
