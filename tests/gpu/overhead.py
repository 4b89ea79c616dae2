"""Measure what attaching costs a compiled FP8 training: the same one with and without us.

    python tests/gpu/overhead.py

Runs alternate, so that drifting clocks hit both alike. Prints a Markdown table and a line of JSON.
Step times are those that examples/train_gpt.py prints; the runner works inside the optimizer's
step, so they hold all that it does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
GPT = [str(ROOT / "examples" / "train_gpt.py"), "--precision", "fp8", "--compile", "--batch", "8"]
STEPS, FIRST, LAST = 150, 70, 72
SETTLED = 20  # compilation and the first, slower steps
MIN_ROUNDS, BUDGET_S = 4, 75
STARTS = 5
STEP = re.compile(r"^step +(\d+) .* ([0-9.]+) ms$", re.MULTILINE)


class Costs(NamedTuple):
    """What one round found; milliseconds, but for the last, in seconds."""

    plain_step: float
    outside_step: float
    plain_window_step: float
    inside_step: float
    window_extra_s: float


def middle_mean(values: list[float]) -> float:
    """Return the mean of the middle half: as robust as a median, finer than the printed 0.1 ms."""
    ordered = sorted(values)
    half = ordered[len(ordered) // 4 : len(ordered) - len(ordered) // 4]
    return sum(half) / len(half)


def execute(arguments: list[str], folder: Path, *, attached: bool) -> str:
    """Run a script with or without us and return what it printed."""
    capture = folder / "capture"
    runner = ["-m", "fp8verify", "run", "--steps", f"{FIRST}-{LAST}", "--exit-zero"]
    where = ["--trace-dir", str(capture), "-o", str(folder / "report.txt")]
    inherited = os.environ.get("PYTHONPATH")
    done = subprocess.run(
        [sys.executable, *([*runner, *where] if attached else []), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (f"{ROOT}", inherited)))},
        capture_output=True,
        text=True,
        check=True,
    )
    shutil.rmtree(capture, ignore_errors=True)
    return done.stdout


def train(folder: Path, *, attached: bool, steps: int = STEPS) -> dict[int, float]:
    """Return the milliseconds of each step of a training."""
    output = execute([*GPT, "--steps", str(steps)], folder, attached=attached)
    return {int(step): float(ms) for step, ms in STEP.findall(output)}


def one_round(folder: Path, *, attached_first: bool) -> Costs:
    """Train once without and once with us; the same steps are compared, as runs get faster."""
    found = {
        attached: train(folder, attached=attached)
        for attached in (attached_first, not attached_first)
    }
    plain, attached = found[False], found[True]
    # The profiler is prepared in step FIRST - 2, started in FIRST - 1 and stopped in LAST.
    touched = range(FIRST - 2, LAST + 1)
    outside = [step for step in plain if step > SETTLED and step not in touched]
    inside = range(FIRST, LAST)  # the last one holds the stop and the writing of the trace
    near = middle_mean([plain[step] for step in touched])
    return Costs(
        middle_mean([plain[step] for step in outside]),
        middle_mean([attached[step] for step in outside]),
        near,
        median(attached[step] for step in inside),
        sum(attached[step] - near for step in touched) / 1000,
    )


def start_up(folder: Path, line: str) -> tuple[float, float]:
    """Return the seconds until a script is past `line`, without and with us."""
    script = folder / "script.py"
    script.write_text(f"{line}\nimport time\nprint(time.time())\n")
    taken: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(STARTS):
        for attached, times in taken.items():
            begin = time.time()
            times.append(float(execute([str(script)], folder, attached=attached)) - begin)
    return median(taken[False]), median(taken[True])


def main() -> None:
    """Measure and print."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train(folder, attached=False, steps=5)  # fills Inductor's cache
        rounds: list[Costs] = []
        while len(rounds) < MIN_ROUNDS or time.monotonic() - begin < BUDGET_S:
            rounds.append(one_round(folder, attached_first=len(rounds) % 2 == 1))
        bare, torch = start_up(folder, ""), start_up(folder, "import torch")
    plain, outside, near, inside, extra = (median(found) for found in zip(*rounds, strict=True))
    rows = [
        ("step outside the window", f"{plain:.2f} ms", f"{outside:.2f} ms", outside / plain - 1),
        ("step inside the window", f"{near:.2f} ms", f"{inside:.2f} ms", inside / near - 1),
        ("start of a script", f"{bare[0]:.3f} s", f"{bare[1]:.3f} s", None),
        ("start of a script, with torch", f"{torch[0]:.3f} s", f"{torch[1]:.3f} s", None),
        ("window of three steps, in all", "", f"{extra:+.3f} s", None),
    ]
    print("| | without | attached | change |\n|---|---|---|---|")
    for what, without, attached, change in rows:
        print(f"| {what} | {without} | {attached} | {'' if change is None else f'{change:+.2%}'} |")
    figures = {
        "rounds": len(rounds),
        "plain_step_ms": plain,
        "outside_step_ms": outside,
        "plain_window_step_ms": near,
        "inside_step_ms": inside,
        "window_extra_s": extra,
        "start_extra_s": bare[1] - bare[0],
        "start_with_torch_extra_s": torch[1] - torch[0],
    }
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
