#!/usr/bin/env bash
# Trainings by real libraries and after public sources, each plain and attached: all that can be seen of the two is
# equal. Needs the .venv of test.sh. Arguments go to benchmarks/attach_cases.py.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh
step "installing the libraries"
.venv/bin/python -m pip install -qq --disable-pip-version-check --no-warn-conflicts -c constraints.txt \
  peft trl timm diffusers schedulefree
.venv/bin/python benchmarks/attach_cases.py "$@"
step "done"
