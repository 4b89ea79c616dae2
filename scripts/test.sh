#!/usr/bin/env bash
# Every check of the project on a fresh machine: style, types, the site, tests. Installs into .venv; what is
# pinned is in constraints.txt. Arguments go to pytest, which without any runs side by side.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh
unset PYTHONDONTWRITEBYTECODE # else each of the hundreds of processes compiles all that it imports

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
run ruff check .
run ruff format --check .
run mypy
NO_MKDOCS_2_WARNING=1 run mkdocs build --strict --quiet # the site, into build/site; a dead link fails
if [ $# -eq 0 ]; then
  processes=$(($(nproc) + 1)) # one waits now and then, for a run that it started
  set -- -n $((processes < 5 ? processes : 5)) --dist worksteal
fi
run pytest "$@"
step "done"
