"""Are the figures of `run --numerics` right, and are injected faults found: runs on a CPU.

usage: python benchmarks/figures_numerics.py [--only WORD] [--markdown FILE]

Each run (`figures_training.py`) computes the true figures of every step over whole tensors
with plain torch casts. It runs under `fp8verify run --numerics-every 1`; each figure of the capture
is compared with the truth. Faults are injected from step 7 on; they must be found in that step, on
their layer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fp8verify
from fp8verify.capture.files import read_numerics

HERE = Path(__file__).parent
SOWN, LAYER = 7, "layers.2"
# Of a figure that is of the whole tensor: five digits are kept, sums are rounded in float32.
EXACT, EXACT_DB = 2e-4, 0.01
RELATIVE = ("amax", "rms")


class Training(NamedTuple):
    """A run and the finding that it must have; None for a sound one, "any" for an odd one."""

    arguments: str
    expected: str | None = None


TRAININGS = (
    Training("--recipe tensorwise"),
    Training("--recipe rowwise"),
    Training("--recipe rowwise_with_gw_hp --checkpoint"),
    Training("--recipe tensorwise --accumulate 2 --clip 0.001"),
    Training("--recipe rowwise --accumulate 3 --checkpoint --seed 1"),
    Training("--recipe tensorwise --kind heavy", "any"),
    Training("--recipe rowwise --kind heavy --seed 2", "any"),
    Training("--recipe tensorwise --kind sparse --seed 3", "any"),
    Training("--recipe rowwise --kind sparse --clip 1e9", "any"),
    Training("--recipe tensorwise --kind clumped", "any"),
    Training("--recipe rowwise --kind clumped --seed 4", "any"),
    Training("--fault gradient", "gradient-flushed"),
    Training("--fault dead", "gradient-flushed"),
    Training("--fault inf", "nan-or-inf"),
    Training("--fault inf --recipe rowwise --checkpoint", "nan-or-inf"),
    Training("--fault weight", "outlier-layer"),
    Training("--fault input --recipe rowwise", "outlier-layer"),
    Training("--fault input", "outlier-layer"),
    Training("--fault underflow", "underflow-high"),
    Training("--fault zero-rows --recipe rowwise", "zero-rows"),
    Training("--fault padding"),  # no fault under one scale
)


class Result(NamedTuple):
    """What was checked, by figure, and what was wrong."""

    checked: Counter[str]
    wrong: list[str]
    findings: str


def measure(training: Training, folder: Path) -> Result:
    """Train, and compare the capture with its truth."""
    truth, capture = folder / "truth.jsonl", folder / "capture"
    command = [
        sys.executable, "-m", "fp8verify", "run", "--steps", "2-3", "--numerics-every", "1",
        "--trace-dir", str(capture), "--exit-zero", "--",
        sys.executable, str(HERE / "figures_training.py"), str(truth),
        *training.arguments.split(),
    ]  # fmt: skip
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    numerics = read_numerics(capture)[0]
    steps = {
        line["step"]: line for line in map(json.loads, truth.read_text().splitlines())
    }
    found = Result(Counter(), [], "")
    measured = numerics.record.measured
    if measured is None or [line.step for line in numerics.series] != sorted(steps):
        found.wrong.append(
            f"steps {[line.step for line in numerics.series]} of {sorted(steps)}"
        )
        return found
    first = {f"{row.layer} {row.tensor}": row for row in measured.rows}
    for line in numerics.series:
        here = steps[line.step]
        rows = {f"{row.layer} {row.tensor}": row for row in line.rows}
        if sorted(rows) != sorted(here["rows"]):
            found.wrong.append(f"step {line.step}: rows {sorted(rows)}")
        for name, measured_row in rows.items():
            row = {key: getattr(measured_row, key) for key in ("amax", "nan", "inf", "rms",
                   "flushed", "sqnr_db", "zero_rows", "what_if")}  # fmt: skip
            if line.step == measured.step:
                row["zeros"] = first[name].zeros
            _compare(found, f"step {line.step} {name}", row, here["rows"].get(name, {}))
        if line.gradient is not None:
            for key in ("norm", "clip_ratio"):
                _check(found, f"step {line.step} gradient {key}", key,
                       getattr(line.gradient, key), here[key], 1e-3)  # fmt: skip
    return found._replace(findings=_judge(training, capture, found.wrong))


def _compare(
    found: Result, where: str, row: dict[str, Any], truth: dict[str, Any]
) -> None:
    """Compare the figures of a tensor."""
    for key, value in _flat(row):
        name = key.split(".")[0]
        if name in ("nan", "inf"):
            _check(found, f"{where} {key}", key, float(value > 0),
                   float(truth.get(key, 0.0) > 0), 0.0)  # fmt: skip
            continue
        decibels = name in ("sqnr_db", "what_if")
        wanted = dict(_flat(truth)).get(key)
        rounding = (
            EXACT_DB
            if decibels
            else EXACT * (abs(wanted or 0.0) if name in RELATIVE else 1)
        )
        _check(found, f"{where} {key}", name, value, wanted, rounding)


def _flat(figures: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in figures.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{name}", one) for name, one in value.items())
        else:
            yield key, value


def _check(
    found: Result,
    where: str,
    name: str,
    value: float | None,
    truth: float | None,
    rounding: float,
) -> None:
    found.checked[name] += 1
    if value is None or truth is None:
        if value is not truth:
            found.wrong.append(f"{where}: {value}, truth {truth}")
        return
    relative = rounding * abs(truth) if name in ("norm", "clip_ratio") else rounding
    if abs(value - truth) > relative:
        found.wrong.append(f"{where}: {value}, truth {truth}")


def _judge(training: Training, capture: Path, wrong: list[str]) -> str:
    """Return what was found of the injected fault; note what is missing, late or too much."""
    report = fp8verify.inspect(capture)
    found = [
        one for one in report.findings if one.layers and one.code != "layer-not-fp8"
    ]
    numbers = [one for one in found if "measured steps" in one.message]
    if training.expected == "any":
        return ", ".join(sorted({one.code for one in numbers})) or "-"
    codes = {one.code: one for one in numbers}
    if training.expected is None:
        wrong.extend(f"accused: {one.message}" for one in numbers)
        return "none, none injected" if not numbers else "accused"
    one = codes.get(training.expected)
    if (
        one is None
        or one.layers[0] != LAYER
        or f"first in step {SOWN}" not in one.message
    ):
        wrong.append(f"missed {training.expected}: {one and one.message}")
        return "missed"
    return f"{training.expected} from step {SOWN}"


def table(only: str = "") -> tuple[list[str], int]:
    """Return the table in Markdown, and how much is wrong; says on standard error what."""
    lines = ["| training | figures checked | wrong | findings |", "|---" * 4 + "|"]
    total = Result(Counter(), [], "")
    for training in TRAININGS:
        if only not in training.arguments:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = measure(training, Path(folder))
        counts = (sum(found.checked.values()), len(found.wrong))
        cells = (f"`{training.arguments}`", *(f"{n:,}" for n in counts), found.findings)
        lines.append("| " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
        for wrong in found.wrong[:10]:
            print(f"  wrong: {wrong}", file=sys.stderr, flush=True)
        total.checked.update(found.checked)
        total.wrong.extend(found.wrong)
    counts = (sum(total.checked.values()), len(total.wrong))
    lines.append("| all | " + " | ".join(f"{n:,}" for n in counts) + " | |")
    return lines, len(total.wrong)


def main() -> None:
    """Print the table; exit with 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="trainings with this word alone")
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    lines, wrong = table(given.only)
    print(lines[-1])
    if given.markdown is not None:
        given.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
