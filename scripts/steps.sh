# Sourced by the other scripts: each step is announced with the seconds since the start.

unset PYTHONDONTWRITEBYTECODE # else each of the hundreds of processes compiles all that it imports

step() {
  printf '[%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"
}

# install '.[EXTRAS]' [OPTIONS OF PIP]: install the project in editable mode, without pip's warnings
# about other packages of the machine. Each package is a line, so a slow network shows progress.
install() {
  .venv/bin/python -m pip install --disable-pip-version-check --no-warn-conflicts "${@:2}" -e "$1" |
    { grep --line-buffered -E '^(Collecting|Processing) ' || true; }
}
