"""Measure what attaching costs a compiled FP8 training.

    python tests/gpu/overhead.py

Equal runs differ by more than we add, so that what can be is compared inside one process: steps
with and without our hooks, and the steps of many windows with their neighbours. Step times are
those that examples/train_gpt.py prints; the runner works inside the optimizer's step, so they hold
all that it does. Prints a Markdown table and a line of JSON.
"""

from __future__ import annotations

import compileall
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
GPT = [str(ROOT / "examples" / "train_gpt.py"), "--precision", "fp8", "--compile", "--batch", "8"]
SETTLED = 20  # compilation and the first, slower steps
WINDOWS = [(first, first + 2) for first in range(40, 400, 24)]
STARTS = 15
STEP = re.compile(r"^step +(\d+) .* ([0-9.]+) ms$", re.MULTILINE)


def execute(
    arguments: list[str], folder: Path, *, steps: str | None = None, python: str = sys.executable
) -> str:
    """Run a script, with us if `steps` are to be recorded, and return what it printed."""
    capture = folder / "capture"
    runner = ["-m", "fp8verify", "run", "--steps", f"{steps}", "--exit-zero"]
    where = ["--trace-dir", str(capture), "-o", str(folder / "report.txt")]
    inherited = os.environ.get("PYTHONPATH")
    done = subprocess.run(
        [python, *([*runner, *where] if steps else []), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (f"{ROOT}", inherited)))},
        capture_output=True,
        text=True,
        check=True,
    )
    shutil.rmtree(capture, ignore_errors=True)
    return done.stdout


def inside(folder: Path) -> dict[str, float]:
    """Compare the steps of many windows with those just before and after each."""
    wanted = ",".join(f"{first}-{last}" for first, last in WINDOWS)
    count = WINDOWS[-1][1] + 12
    output = execute([*GPT, "--steps", str(count)], folder, steps=wanted)
    taken = {int(step): float(ms) for step, ms in STEP.findall(output)}
    changes, extras = [], []
    for first, last in WINDOWS:
        # The profiler is prepared in step first - 2, started in first - 1 and stopped in last.
        near = median(
            taken[s] for s in (*range(first - 10, first - 2), *range(last + 3, last + 11))
        )
        changes += [taken[step] / near - 1 for step in range(first, last)]
        extras.append(sum(taken[step] - near for step in range(first - 2, last + 1)) / 1000)
    return {
        "inside_change": median(changes),
        "first_window_s": extras[0],
        "window_s": median(extras),
    }


def outside(folder: Path) -> dict[str, float]:
    """Compare steps with our hooks with steps without, in one process that has been profiled."""
    script = str(Path(__file__).with_name("hooks_on_off.py"))
    found = json.loads(execute([script], folder, steps="30-32").splitlines()[-1])
    return {f"outside_{name}": value for name, value in found.items()}


def fresh_python(folder: Path) -> str:
    """Return a Python with the same packages, of which none has a start-up hook of its own."""
    venv.create(folder / "venv", symlinks=True)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (packages / "outer.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return str(folder / "venv" / "bin" / "python")


def start_up(folder: Path, python: str, line: str = "") -> dict[str, float]:
    """Return the seconds until a script is past `line`, without us and with us."""
    script = folder / "script.py"
    script.write_text(f"{line}\nimport time\nprint(time.time())\n")
    taken: dict[str | None, list[float]] = {None: [], "10-12": []}
    for _ in range(STARTS):
        for steps, times in taken.items():
            begin = time.time()
            shown = execute([str(script)], folder, steps=steps, python=python)
            times.append(float(shown) - begin)
    return {"plain_s": median(taken[None]), "attached_s": median(taken["10-12"])}


def main() -> None:
    """Measure and print."""
    # As an installation leaves it: without that, each start compiles what it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compileall.compile_dir(ROOT / "fp8verify", quiet=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        starts = {
            "start_fresh": start_up(folder, fresh_python(folder)),
            "start": start_up(folder, sys.executable),
            "start_torch": start_up(folder, sys.executable, "import torch"),
        }
        figures = {**outside(folder), **inside(folder)}
    error = figures["outside_standard_error"]
    print("| | change |\n|---|---|")
    print(f"| step outside a window | {figures['outside_change']:+.2%} ± {error:.2%} |")
    print(f"| step inside a window | {figures['inside_change']:+.2%} |")
    print(f"| first window of three steps, in all | {figures['first_window_s']:+.3f} s |")
    print(f"| each later one | {figures['window_s']:+.3f} s |")
    for what, found in starts.items():
        extra = found["attached_s"] - found["plain_s"]
        print(f"| {what} | {found['plain_s']:.3f} s, {extra:+.3f} s |")
    print(json.dumps({**starts, **figures}))


if __name__ == "__main__":
    main()
