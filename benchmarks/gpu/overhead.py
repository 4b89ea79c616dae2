"""Measure what attaching costs a compiled FP8 training.

    python benchmarks/gpu/overhead.py [--parts outside,inside,start] [--against TREE]

Equal runs differ by more than we add, so what can be is compared inside one process: steps
with and without our hooks, and the steps of many windows with their neighbors. Step times are
those that examples/train_gpt.py prints; the runner works inside the optimizer's step, so they hold
all that it does. TREE holds another version of fp8verify: its start is measured by turns with ours,
and its windows after ours, since hosts differ. Prints a Markdown table and a line of JSON.
"""

from __future__ import annotations

import argparse
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
GPT = [
    str(ROOT / "examples" / "train_gpt.py"),
    "--precision",
    "fp8",
    "--compile",
    "--batch",
    "8",
]
SETTLED = 20  # compilation and the first, slower steps
WINDOWS = [(first, first + 2) for first in range(40, 400, 24)]
STARTS = 15
STEP = re.compile(r"^step +(\d+) .* ([0-9.]+) ms$", re.MULTILINE)


def execute(
    arguments: list[str],
    folder: Path,
    *,
    steps: str | None = None,
    python: str = sys.executable,
    tree: Path = ROOT,
) -> str:
    """Run a script, with us of `tree` if `steps` are to be recorded; return what it printed."""
    capture = folder / "capture"
    runner = ["-m", "fp8verify", "run", "--steps", f"{steps}", "--exit-zero"]
    where = ["--trace-dir", str(capture), "-o", str(folder / "report.txt")]
    inherited = os.environ.get("PYTHONPATH")
    done = subprocess.run(
        [python, *([*runner, *where] if steps else []), *arguments],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (f"{tree}", inherited))),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    shutil.rmtree(capture, ignore_errors=True)
    return done.stdout


def inside(folder: Path, tree: Path) -> dict[str, float]:
    """Compare the steps of many windows with those just before and after each."""
    wanted = ",".join(f"{first}-{last}" for first, last in WINDOWS)
    count = WINDOWS[-1][1] + 12
    output = execute([*GPT, "--steps", str(count)], folder, steps=wanted, tree=tree)
    taken = {int(step): float(ms) for step, ms in STEP.findall(output)}
    changes, extras = [], []
    for first, last in WINDOWS:
        # The profiler is prepared in step first - 2, started in first - 1 and stopped in last.
        near = median(
            taken[s]
            for s in (*range(first - 10, first - 2), *range(last + 3, last + 11))
        )
        changes += [taken[step] / near - 1 for step in range(first, last)]
        extras.append(
            sum(taken[step] - near for step in range(first - 2, last + 1)) / 1000
        )
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


def start_up(
    folder: Path, python: str, trees: dict[str, Path], line: str = ""
) -> dict[str, float]:
    """Return the seconds until a script is past `line`, without us and with each of `trees`."""
    script = folder / "script.py"
    script.write_text(f"{line}\nimport time\nprint(time.time())\n")
    taken: dict[str, list[float]] = {name: [] for name in ("plain_s", *trees)}
    for _ in range(STARTS):
        for name, times in taken.items():
            tree = {"steps": "10-12", "tree": trees[name]} if name in trees else {}
            begin = time.time()
            shown = execute([str(script)], folder, python=python, **tree)
            times.append(float(shown) - begin)
    return {name: median(times) for name, times in taken.items()}


def all_starts(folder: Path, trees: dict[str, Path]) -> dict[str, dict[str, float]]:
    """Measure the start of a bare script, in two Pythons, and of one that imports torch."""
    fresh = fresh_python(folder)
    for (
        tree
    ) in trees.values():  # as an installation leaves it: else each start compiles
        compileall.compile_dir(tree / "fp8verify", quiet=1)
    return {
        "start_fresh": start_up(folder, fresh, trees),
        "start": start_up(folder, sys.executable, trees),
        "start_torch": start_up(folder, fresh, trees, "import torch"),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--against", type=Path, metavar="TREE")
    parser.add_argument("--parts", default="outside,inside,start")
    arguments = parser.parse_args()
    other, parts = arguments.against, arguments.parts.split(",")
    trees = {"attached_s": ROOT, **({"other_s": other.absolute()} if other else {})}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        starts = all_starts(folder, trees) if "start" in parts else {}
        found = outside(folder) if "outside" in parts else {}
        windows = {
            tree: inside(folder, path)
            for tree, path in trees.items()
            if "inside" in parts
        }
    print("| | change |\n|---|---|")
    if found:
        error = found["outside_standard_error"]
        print(
            f"| step outside a window | {found['outside_change']:+.2%} ± {error:.2%} |"
        )
    for tree, figures in windows.items():
        print(f"| {tree}: step inside a window | {figures['inside_change']:+.2%} |")
        print(
            f"| {tree}: first window of three steps | {figures['first_window_s']:+.3f} s |"
        )
        print(f"| {tree}: each later one | {figures['window_s']:+.3f} s |")
    for what, taken in starts.items():
        extras = (f"{taken[tree] - taken['plain_s']:+.3f} s" for tree in trees)
        print(f"| {what} | {taken['plain_s']:.3f} s, {', '.join(extras)} |")
    print(json.dumps({**starts, **found, "windows": windows}))


if __name__ == "__main__":
    main()
