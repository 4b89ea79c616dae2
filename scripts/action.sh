#!/usr/bin/env bash
# The judging step of action.yml: annotations, page, test results, outputs; exits as `inspect` does.
# Reads FP8_PATH, FP8_LOG, FP8_MIN_SHARE, FP8_STRICT, FP8_BASELINE, FP8_TOLERANCE, FP8_HTML, FP8_JUNIT,
# and FP8_INSTALLED: whether fp8verify is in the environment that action.yml made.
set -uo pipefail

program=fp8verify
if [ "${FP8_INSTALLED:-false}" = true ]; then
  for own in "${RUNNER_TEMP:-/tmp}/fp8verify"/{bin,Scripts}/fp8verify*; do
    [ -x "$own" ] && program=$own
  done
fi

options=(--min-share "$FP8_MIN_SHARE")
[ -z "${FP8_LOG:-}" ] || options+=(--log "$FP8_LOG")
case "${FP8_STRICT:-false}" in
  true) options+=(--strict) ;;
  false) ;;
  *) # a gate that is taken for stricter than it is lets PARTIAL pass
    echo "::error::strict is true or false, not '${FP8_STRICT//[^[:alnum:]]/}'"
    exit 2
    ;;
esac
[ -z "${FP8_BASELINE:-}" ] || options+=(--baseline "$FP8_BASELINE" --tolerance "${FP8_TOLERANCE:-2%}")

inspect() {
  "$program" inspect "${options[@]}" "$@" -- "$FP8_PATH"
}

errors=$(mktemp)
inspect --format github 2>"$errors"
code=$?
cat "$errors" >&2
if [ "$code" -eq 2 ]; then # such as a path that is missing: the job's page shows annotations only
  echo "::error title=fp8verify::$(sed -e 's/%/%25/g' -e 's/\r/%0D/g' "$errors" |
    awk 'NR > 1 { printf "%%0A" } { printf "%s", $0 }')"
fi
rm -f "$errors"
verdict=
if [ "$code" -ne 2 ]; then # wrong usage was said once
  [ -z "${FP8_HTML:-}" ] || inspect --format html -o "$FP8_HTML"
  [ -z "${FP8_JUNIT:-}" ] || inspect --format junit -o "$FP8_JUNIT"
  verdict=$(inspect --format json | sed -n 's/^  "verdict": "\([A-Z]*\)".*/\1/p')
fi
{
  echo "verdict=$verdict"
  echo "exit-code=$code"
} >>"${GITHUB_OUTPUT:-/dev/null}"
exit "$code"
