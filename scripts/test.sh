#!/usr/bin/env bash
# Every check of the project on a fresh machine: style, types, the site, tests. Installs into .venv; what is
# pinned is in constraints.txt. Arguments go to pytest, which without any runs side by side.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh

if [ ! -x .venv/bin/python ]; then
  step "making .venv"
  python3 -m venv .venv
fi
pins=(-c constraints.txt)
if grep -q 'include-system-site-packages = true' .venv/pyvenv.cfg; then
  pins=() # made by demo.sh where there is a GPU: its torch is the machine's
fi
step "installing fp8verify, torch, HolisticTraceAnalysis and the tools of tests and docs (the first time takes minutes)"
install '.[train,test,dev,hta]' "${pins[@]}"

run() {
  step "$*"
  .venv/bin/python -m "$@"
}
# What mypy leaves idle, which uses one core: the site, into build/site, where a dead link fails; and the tests'
# bytecode, which else each process of the tests would make.
beside_mypy() {
  NO_MKDOCS_2_WARNING=1 run mkdocs build --strict --quiet
  .venv/bin/python -m pytest --collect-only -qq > /dev/null || true # the tests say it again
}
beside_mypy &
beside=$!
trap 'kill "$beside" 2> /dev/null || true' EXIT
run ruff check .
run ruff format --check .
run mypy
wait "$beside"
export FP8VERIFY_TESTS_SITE=$PWD/build/site
if [ $# -eq 0 ]; then
  processes=$(($(nproc) + 1)) # one waits now and then, for a run that it started
  set -- -n $((processes < 5 ? processes : 5)) --dist worksteal
fi
run pytest "$@"
step "done"
