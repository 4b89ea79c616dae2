#!/usr/bin/env bash
# Measure the speed that README.md and benchmarks/README.md quote, and write it into them. On a quiet machine
# with 10 GB of memory and 5 GB of disk, about twenty minutes:
#     benchmarks/readme_figures.sh [FOLDER]     # where the environment and the big traces go
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-/tmp/fp8verify-figures}
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q . orjson HolisticTraceAnalysis
"$folder/venv/bin/python" benchmarks/trace_speed.py --folder "$folder/traces" --hta-python "$folder/venv/bin/python"
"$folder/venv/bin/python" benchmarks/door.py
.venv/bin/python -m scripts.docs
