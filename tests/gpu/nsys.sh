#!/usr/bin/env bash
# `fp8verify run --profiler nsys` with the real Nsight Systems on a GPU, held against Kineto; under
# five minutes. Looks for nsys on the PATH, then where CUDA and Nsight Compute put it.
#   tests/gpu/nsys.sh [PYTHON]
# With $OUT set, what is small enough to look at later is copied there.
set -uo pipefail
cd "$(dirname "$0")/../.."
root=$PWD; export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
# The interpreter itself: a name or a shim may be another one under another PATH.
python=$("${1:-python}" -c 'import sys; print(sys.executable)') || exit 2
script=$root/examples/train_gpt.py; work=$(mktemp -d); failed=0
check() { if [ "$2" = "$3" ]; then echo "ok    $1: $2"; else echo "FAIL  $1: $2, not $3"; failed=1; fi; }
field() { "$python" -c "import json,sys; r=json.load(open(sys.argv[1])); print(eval(sys.argv[2]))" "$@"; }
# A progress bar draws itself anew behind \r: of each line the last state is enough.
shown() { tr -d '\000' < "$1" | sed 's/\r*$//; s/.*\r//' | cut -c1-200; }
keep() { [ -n "${OUT:-}" ] && for f in "$@"; do [ -f "$f" ] && [ "$(stat -c %s "$f")" -lt 30000000 ] && cp "$f" "$OUT"; done; }

find_nsys() {
  command -v nsys && return
  local found
  for found in /usr/local/cuda*/bin/nsys /opt/nvidia/nsight-systems*/*/bin/nsys \
      /opt/nvidia/nsight-systems*/*/target-linux-x64/nsys \
      /opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys; do
    [ -x "$found" ] && { echo "$found"; return; }
  done
  return 1
}
nsys=$(find_nsys) || { echo "no nsys on this machine"; find / -name 'nsys*' -not -path '/proc/*' 2>/dev/null | head; exit 2; }
echo "nsys      $nsys"; export PATH="$(dirname "$nsys"):$PATH"
nsys --version 2>&1 | head -2
importer=$(find "$(dirname "$nsys")/.." /opt/nvidia -name QdstrmImporter 2>/dev/null | head -1)
echo "importer  ${importer:-none}"
echo "options   $(nsys profile --help 2>&1 | grep -oE -- '--(discard-environment|wait|cuda-graph-trace|capture-range-end|pytorch)\b' | sort -u | tr '\n' ' ')"

cd "$work"
run() { # NAME STEPS OPTIONS...
  local name=$1 steps=$2; shift 2
  "$python" -m fp8verify run "$@" --steps "$steps" --trace-dir "$name" --format json -o "$name.json" \
    -- "$python" "$script" --precision fp8 --steps 12 > "$name.log" 2>&1
  echo "      exit code of $name: $?"; ls -la "$name" | sed 's/^/        /'
}
echo "-- by Kineto"; run kineto 6-7
echo "-- by nsys, one window"; run one 6-7 --profiler nsys
echo "-- by nsys, two windows"; run two 5-6,10 --profiler nsys

compare() {
  "$python" - "$1.json" kineto.json <<'PY'
import json, sys
found, known = (json.load(open(path)) for path in sys.argv[1:])
print("      verdict", found["verdict"], "|", found["reason"][:150])
for note in found["notes"]: print("      note   ", note[:240])
for one in found["findings"]: print("      finding", one["code"], one["message"][:160])
for name, rank in (("nsys", found["ranks"][0]), ("kineto", known["ranks"][0])):
    print(f"      {name:7}", {k: v for k, v in rank["gemm"]["kernels"].items() if v},
          "steps", [s["step"] for s in rank["steps"]],
          "legs", {l["leg"]: l["kernels"] for l in rank["legs"]},
          "flops", rank["gemm"].get("flops_coverage"))
PY
}
for name in one two; do echo "-- $name"; compare "$name"; shown "$name.log" | tail -n 12 | sed 's/^/      | /'; done

if ls one/*.sqlite > /dev/null 2>&1; then
  check "verdict" "$(field one.json 'r["verdict"]')" "$(field kineto.json 'r["verdict"]')"
  legs='{l["leg"]: l["kernels"] for l in r["ranks"][0]["legs"]}'
  check "legs" "$(field one.json "$legs")" "$(field kineto.json "$legs")"
  check "steps" "$(field one.json '[s["step"] for s in r["ranks"][0]["steps"]]')" "[6, 7]"
  check "steps of two windows" "$(field two.json '[s["step"] for s in r["ranks"][0]["steps"]]')" "[5, 6, 10]"
  (export PATH=/usr/bin:/bin; "$python" -m fp8verify inspect one --format json > later.json)
  check "inspected later" "$(field later.json 'r["verdict"]')" "$(field one.json 'r["verdict"]')"
  "$python" - one/*.sqlite <<'PY'
import sqlite3, sys
for path in sys.argv[1:]:
    db = sqlite3.connect(path)
    print("     ", path)
    for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1").fetchall():
        count = db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]
        columns = [row[1] for row in db.execute(f'PRAGMA table_info("{name}")')]
        if count and not name.startswith("ENUM_"): print(f"        {name} {count}: {' '.join(columns)[:200]}")
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'NVTX_EVENTS'").fetchone():
        for row in db.execute("SELECT eventType, domainId, coalesce(text, (SELECT value FROM StringIds WHERE id = textId)), end IS NULL, count(*) FROM NVTX_EVENTS GROUP BY 1, 2, substr(3, 1, 12) LIMIT 12"): print("        nvtx", row)
        for row in db.execute("SELECT start, end, text FROM NVTX_EVENTS WHERE eventType = 60 LIMIT 6"): print("        range", row)
PY
  keep one/*.sqlite one/*.nsys-rep
else
  echo "-- no export; what nsys says when it is asked alone"
  nsys profile --trace=cuda,nvtx --sample=none --cpuctxsw=none --capture-range=cudaProfilerApi \
    --capture-range-end=stop --output="$work/alone" "$python" -c '
import torch
x = torch.ones(8, device="cuda"); torch.cuda.synchronize(); torch.cuda.profiler.start()
h = torch.cuda.nvtx.range_start("ProfilerStep#1")
with torch.autograd.profiler.emit_nvtx(record_shapes=True): (x + 1).sum().item()
torch.cuda.nvtx.range_end(h); torch.cuda.profiler.stop()' 2>&1 | tail -20
  echo "      exit code ${PIPESTATUS[0]}"; ls -la "$work" | sed 's/^/        /'
  for raw in alone*.qdstrm one/*.qdstrm; do
    [ -f "$raw" ] && [ -n "$importer" ] && { "$importer" -i "$raw" 2>&1 | tail -5; ls -la "${raw%.qdstrm}"*; }
    [ -f "$raw" ] && keep "$raw"
  done
  for made in alone*.nsys-rep; do [ -f "$made" ] && nsys export --type sqlite --output alone.sqlite "$made" 2>&1 | tail -5; done
  failed=1
fi
check "a training that fails keeps its exit code" \
  "$("$python" -m fp8verify run --profiler nsys --steps 3 --trace-dir fails -o fails.txt -- "$python" -c 'import sys; sys.exit(7)' > /dev/null 2>&1; echo $?)" 7
keep ./*.json ./*.log
[ $failed = 0 ] || echo "all of it is in $work"
exit $failed
