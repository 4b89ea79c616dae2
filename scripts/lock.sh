#!/usr/bin/env bash
# Write constraints.txt: one version of each package that tests, docs and tools install, for all Pythons of the
# classifiers. What is locked already stays, unless an argument for `uv pip compile` says otherwise:
#     scripts/lock.sh --upgrade-package click
#     scripts/lock.sh --upgrade
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
python3 -m venv "$venv"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check -c constraints.txt uv
oldest=$(sed -n 's/^requires-python = ">=\(.*\)"/\1/p' pyproject.toml)
# uv would download another Python to build with; all that is needed here are wheels.
UV_PYTHON_DOWNLOADS=never "$venv/bin/uv" pip compile --quiet --universal --python-version "$oldest" --no-annotate \
  --custom-compile-command scripts/lock.sh --all-extras pyproject.toml scripts/lock.in -o constraints.txt "$@"
