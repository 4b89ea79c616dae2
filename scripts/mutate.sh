#!/usr/bin/env bash
# How many mutations of the code that decides do unit and golden tests notice? Takes an hour or so.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt cosmic-ray coverage pytest-timeout
exec .venv/bin/python scripts/mutate.py "$@"
