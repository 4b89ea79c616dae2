#!/usr/bin/env bash
# Every check of the project on a fresh machine: style, types, tests. Installs into .venv; torch is
# pinned in constraints.txt. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

[ -x .venv/bin/python ] || python3 -m venv .venv
.venv/bin/pip install -q -c constraints.txt -e '.[train,test,dev]'

.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
.venv/bin/pytest "$@"
