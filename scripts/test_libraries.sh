#!/usr/bin/env bash
# Runs by real libraries and after public sources, each plain and attached: all that can be seen of the two is
# equal. Needs the .venv of test.sh. Arguments go to benchmarks/attach_cases.py.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh
step "installing the libraries"
.venv/bin/python -m pip install -qq --disable-pip-version-check --no-warn-conflicts -c constraints.txt \
  peft trl diffusers schedulefree
# timm needs torchvision, whose wheel fails to load beside a torch without CUDA, and with it whatever imports it.
.venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps -c constraints.txt \
  --target build/libraries --upgrade timm torchvision
.venv/bin/python benchmarks/attach_cases.py "$@"
step "done"
