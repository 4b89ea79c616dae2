#!/usr/bin/env bash
# Does `fp8verify doctor --measure` say of each model what training it says? On one GPU:
#     benchmarks/doctor_measure.sh FOLDER [GAIN [SIZE…]]
# FOLDER gets SIZE.doctor.json for the models of gain_sizes.sh, or for those named, and table.md.
# GAIN is the folder that fp8_gain.sh left; without it fp8_gain.sh runs first, into FOLDER/gain.
# Takes some six minutes on an H200, without fp8_gain.sh.
set -u
out=$(realpath -m "$1")
gain=$(realpath -m "${2:-$out/gain}")
here=$(dirname "$0")/..
[ $# -ge 2 ] && shift 2 || { "$here/benchmarks/fp8_gain.sh" "$gain"; shift $#; }
cd "$here"
. benchmarks/gain_sizes.sh
mkdir -p "$out"
[ $# -gt 0 ] || set -- "${gain_sizes[@]}"
for size in "$@"; do
  arguments=$(gain_arguments "$size") || exit 2
  begin=$SECONDS
  # shellcheck disable=SC2086 # the arguments are words
  python3 -m fp8verify doctor --measure --recipe tensorwise --tokens "$(gain_tokens "$size")" \
    --format json -o "$out/$size.doctor.json" \
    -- python3 examples/train_gpt.py --compile --precision fp8 $arguments \
    || echo "doctor failed on $size: see $out/$size.doctor.json"
  echo "$size: $((SECONDS - begin)) s"
done
python3 benchmarks/doctor_table.py "$out" "$gain" | tee "$out/table.md"
