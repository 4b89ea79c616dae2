#!/usr/bin/env bash
# Build wheel and sdist, check them, and install the wheel alone into a fresh environment of each
# Python at hand, where it must judge captures rightly; then run the pre-commit hook and the Action
# with what they install themselves:
#     scripts/release.sh [FOLDER]        # leaves the two files in FOLDER, by default dist
# PYTHONS names other interpreters: PYTHONS="python3.10 python3.13" scripts/release.sh
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh
dist=$(realpath -m "${1:-dist}")
pythons=${PYTHONS:-python3.10 python3.11 python3.12 python3.13 python3.14}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

step "building into $dist"
rm -rf "$dist"
python3 -m venv "$work/build"
"$work/build/bin/python" -m pip install -qq --disable-pip-version-check -c constraints.txt build twine check-wheel-contents
"$work/build/bin/python" -m build --outdir "$dist" . >"$work/build.log" || { cat "$work/build.log"; exit 1; }
wheel=$(echo "$dist"/*.whl)

step "metadata and contents"
"$work/build/bin/twine" check --strict "$dist"/*
"$work/build/bin/check-wheel-contents" "$wheel"

verify() { # PYTHON
  local venv=$work/$1
  "$1" -m venv "$venv"
  "$venv/bin/python" -m pip install -qq --disable-pip-version-check "$wheel"
  (
    cd "$work" # away from the checkout: only what is installed is imported
    "$venv/bin/fp8verify" --version
    "$venv/bin/fp8verify" inspect "$traces/fp8_compiled" -o "$venv/active.txt"
    grep -q '^ACTIVE' "$venv/active.txt"
    if "$venv/bin/fp8verify" inspect "$traces/bf16_filter_rejects_all" -o "$venv/no.txt"; then
      echo "a run without FP8 passed" >&2
      exit 1
    fi
    grep -q '^CONTRADICTED' "$venv/no.txt"
    "$venv/bin/fp8verify" explain nvjet_sm90_qqtst_128x128_64x4_1x2_h_bz_TNT | grep -q fp8
  )
}
traces=$PWD/traces
tried=()
for python in $pythons; do
  "$python" -c '' 2>/dev/null || continue
  step "the wheel alone on $("$python" --version)"
  verify "$python"
  tried+=("$python")
done
[ ${#tried[@]} -gt 0 ] || { echo "none of these is here: $pythons" >&2; exit 1; }

step "the pre-commit hook, in a repository with a sound configuration and one with a slip"
"$work/build/bin/python" -m pip install -qq --disable-pip-version-check -c constraints.txt pre-commit
mkdir "$work/user"
cp examples/kempnerforge/7b.toml "$work/user/sound.toml"
(
  here=$PWD
  cd "$work/user"
  git init -q .
  git add .
  try() { PRE_COMMIT_HOME=$work/hooks "$work/build/bin/pre-commit" try-repo "$here" --all-files >"$1"; }
  try sound.txt || { cat sound.txt; exit 1; }
  sed 's/"fp8"/"FP8"/' sound.toml >slip.toml
  git add .
  if try slip.txt; then echo "a slip passed the hook" >&2; exit 1; fi
  grep -q config-value-unknown slip.txt
)

step "the Action's own steps"
(
  export GITHUB_ACTION_PATH=$PWD GITHUB_OUTPUT=$work/outputs RUNNER_TEMP=$work FP8_INSTALLED=true
  eval "$("$work/build/bin/python" -c '
import yaml
print(yaml.safe_load(open("action.yml"))["runs"]["steps"][0]["run"])')"
  cd "$work"
  FP8_PATH=$traces/fp8_compiled FP8_MIN_SHARE=50% FP8_HTML=fp8.html FP8_JUNIT=fp8.xml \
    bash "$GITHUB_ACTION_PATH/scripts/action.sh" >/dev/null
  grep -q '^verdict=ACTIVE' outputs
  test -s fp8.html -a -s fp8.xml
)
step "tried on: ${tried[*]}"
sha256sum "$dist"/*
