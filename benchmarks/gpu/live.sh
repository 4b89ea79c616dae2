#!/usr/bin/env bash
# What watching a run costs on a GPU, and that it finds what ran; under three minutes.
#   benchmarks/gpu/live.sh [PYTHON]
set -uo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
python=${1:-python}; script=$PWD/benchmarks/gpu/live_steps.py; out=$(mktemp -d); failed=0
check() { if [ "$2" = "$3" ]; then echo "ok    $1: $2"; else echo "FAIL  $1: $2, not $3"; failed=1; fi; }
field() { "$python" -c "import json,sys; r=json.load(open(sys.argv[1])); print(eval(sys.argv[2]))" "$@"; }

echo "-- step time between windows, and what a window costs"
TOKENS=32768 "$python" "$script" measure; check "limits kept (exit code)" $? 0

echo "-- a script with a profiler of its own over the window"
cd "$out"
PROFILE=1 "$python" -m fp8verify run --steps 8-10 --trace-dir own --format json -o own.json \
  -- "$python" "$script" train 14 > own.log 2>&1
check "exit code" $? 0
check "verdict" "$(field own.json 'r["verdict"]')" ACTIVE
check "whose trace" "$(field own/rank0.meta.json 'r["window"][0]["profiler"]')" script

echo "-- watched from outside"
"$python" -m fp8verify run --every 20 --metrics one.jsonl --trace-dir one \
  -- "$python" "$script" train 110 > one.log 2>&1
check "exit code" $? 0
check "windows" "$(wc -l < one.jsonl)" 5
check "verdicts" "$(grep -c '"verdict": "ACTIVE"' one.jsonl)" 5

echo "-- two ranks under torchrun, on one GPU if there is but one"
"$python" -m fp8verify run --every 20 --ranks all --metrics two.jsonl --trace-dir two \
  -- "$python" -m torch.distributed.run --nproc-per-node 2 "$script" train 70 > two.log 2>&1
check "exit code" $? 0
check "verdicts" "$(grep -c '"verdict": "ACTIVE"' two.jsonl)" 3
check "ranks" "$(field two/kept/step-000000020/report.json 'len(r["ranks"])')" 2
[ $failed = 0 ] || { echo "logs are in $out"; tail -n 15 ./*.log; }
echo "took $SECONDS s"
exit $failed
