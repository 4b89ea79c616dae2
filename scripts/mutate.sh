#!/usr/bin/env bash
# How many mutations of the code that decides do unit and golden tests notice? Takes an hour or so.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python -m pip install -qq --disable-pip-version-check 'cosmic-ray>=8.4' 'coverage>=7.6' 'pytest-timeout>=2.3'
exec .venv/bin/python scripts/mutate.py "$@"
