#!/usr/bin/env bash
# What a machine of 16 cores makes of one trace of 1 GB and of 64 ranks of 100 MB, in 280 seconds at
# the most: the one trace first, then the ranks, then the packed trace. Each row is printed and
# written to OUTPUT when it is measured, so that a run that is cut short still leaves the others.
#
#     benchmarks/many_cores.sh [FOLDER] [OUTPUT.md] [OPTIONS of fleet.py]
#
# PYTHON is the Python to use; it needs msgspec, isal, click, rich and pandas, and dask with
# distributed for the row of a cluster. fp8verify itself need not be installed.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-/tmp/fp8verify-many-cores}
output=${2:-$folder/fleet.md}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec timeout 280 "${PYTHON:-python3}" benchmarks/fleet.py --folder "$folder" --output "$output" \
    --repeats 2 "${@:3}"
