#!/usr/bin/env bash
# The main job on a fresh machine: verify a capture that ships with the project and, where there is
# a GPU, a live training too. Installs into .venv; torch only where a GPU can use it.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh

gpu=$([ -e /dev/nvidiactl ] && echo yes || echo no)
if [ ! -x .venv/bin/python ]; then
  step "making .venv"
  # A machine that trains has torch already: its packages are seen, and left as they are.
  if [ "$gpu" = yes ]; then
    python3 -m venv --system-site-packages .venv
  else
    python3 -m venv .venv
  fi
fi
if [ "$gpu" = yes ]; then
  step "installing fp8verify, and torch if this machine has none (that takes minutes)"
  install '.[train]' --quiet
else
  step "installing fp8verify (no NVIDIA GPU here: without torch)"
  install . -c constraints.txt --quiet
fi

show() {
  step "$*"
  .venv/bin/"$@"
}
show fp8verify inspect traces/fp8_compiled
show fp8verify inspect traces/bf16_torchtitan_auto_filter --exit-zero
if [ "$gpu" = yes ]; then
  show fp8verify run --steps 10-12 examples/train_gpt.py --precision fp8 --compile
fi
