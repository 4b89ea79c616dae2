#!/usr/bin/env bash
# Run the same training N times without us and N times with windows, in turns, and count the crashes:
#     benchmarks/gpu/repeat_runs.sh N [AT_ONCE [FOLDER]]
#     benchmarks/gpu/repeat_runs.sh 100 12        # about four minutes on 16 cores; 12 share the GPU
# TRAINING may hold another command for Python, WINDOWS its windows, COMPILE what makes it compile.
# Prints one line for each failure and, at the end, one JSON line with both counts. Exits with 1 if
# attached runs fail where plain ones do not, if an outcome differs, or if a window was not recorded.
set -u
count=${1:?how many runs}
at_once=${2:-1}
[[ $at_once =~ ^[1-9][0-9]*$ ]] || { echo "how many at once is a number, not $at_once" >&2; exit 2; }
out=$(realpath -m "${3:-$(mktemp -d)}")
cd "$(dirname "$0")/../.." || exit 2
mkdir -p "$out"
python=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" CUBLAS_WORKSPACE_CONFIG=:4096:8
((at_once == 1)) || export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
read -ra training <<<"${TRAINING:-benchmarks/gpu/deterministic.py examples/train_gpt.py --precision fp8 --steps 14 --batch 4}"
windows=${WINDOWS:-3-4,7,10-12}
traces=$(tr ',' '\n' <<<"$windows" | wc -l)
losses() { grep -aoE "^step +[0-9]+ [|]? ?loss [0-9.a-z]+" "$1"; }

# One pair of runs; what went wrong is appended to $out/failures, a word a line, and told.
pair() {
  local run=$1 folder=$out/$1 code compile=()
  mkdir -p "$folder"
  # A fourth of them: compiling takes most of the time.
  ((run % 4)) || read -ra compile <<<"${COMPILE---compile}"
  "$python" "${training[@]}" "${compile[@]}" >"$folder/plain.out" 2>"$folder/plain.err"
  code=$?
  ((code)) && wrong plain "plain ended with $code: $(tail -n 1 "$folder/plain.err")"
  "$python" -m fp8verify run --steps "$windows" --trace-dir "$folder/capture" \
    -o "$folder/report.json" --format json --exit-zero "${training[@]}" "${compile[@]}" \
    >"$folder/ours.out" 2>"$folder/ours.err"
  code=$?
  if ((code)); then
    wrong ours "attached ended with $code: $(tail -n 1 "$folder/ours.err")"
  elif (($(find "$folder/capture" -name 'rank0*.json.gz' | wc -l) != traces)); then
    wrong unseen "not every window left a trace"
  fi
  # Without --compile the same seed gives the same losses, to the digits that are printed.
  if ((run % 4)) && [[ $(losses "$folder/plain.out") != "$(losses "$folder/ours.out")" ]]; then
    wrong differ "losses differ"
  fi
  [[ -e $folder/wrong ]] || rm -rf "$folder" # a hundred captures are not needed
}

wrong() {
  touch "$out/$run/wrong"
  echo "$1" >>"$out/failures"
  echo "run $run: $2 ($out/$run)"
}

number_of() { grep -cx "$1" "$out/failures"; }

: >"$out/failures"
for ((run = 1; run <= count; run++)); do
  while (($(jobs -rp | wc -l) >= at_once)); do wait -n; done
  pair "$run" &
  ((run % 10)) || echo "run $run of $count begins"
done
wait
plain=$(number_of plain) ours=$(number_of ours) unseen=$(number_of unseen) differ=$(number_of differ)
torch=$("$python" -c 'import torch; print(torch.__version__)')
echo "{\"torch\": \"$torch\", \"runs\": $count, \"plain_failures\": $plain, \"attached_failures\": $ours, \"windows_missing\": $unseen, \"losses_differ\": $differ}"
((ours <= plain && unseen == 0))
