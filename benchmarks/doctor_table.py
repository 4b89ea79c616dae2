"""Lay what the doctor measured beside what runs measured; see doctor_measure.sh.

    python benchmarks/doctor_table.py FOLDER GAIN

A run's speed-up is that of the steps before its profiler starts, and its bounds those of their
quartiles. The doctor measures layers alone, so training gains at least what it says: the two
agree where a step that saves that much is no faster than the run's, to 5%. Below the table is
where the doctor and `fp8verify compare` see the time go, for each model. FOLDER also gets
doctor_measure.json: copied to benchmarks/results, it is the table of the documentation
(`python -m scripts.docs`).
"""

from __future__ import annotations

import json
import re
import sys
from datetime import date
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

MARGIN = 0.05  # fp8verify/preflight/measure.py; also for the speed-up of a step
FIRST = 3  # the steps before compile, and fill caches
PROFILER_LEAD = 3  # the profiler's own warm-up before the window
HEADS = (
    "model",
    "layers, BF16 ms",
    "FP8 ms",
    "the doctor says",
    "saves ms",
    "step, BF16 ms",
    "step, FP8 ms",
    "training says",
    "it saves ms",
    "agree",
)
Row = dict[str, str]
_MODEL = re.compile(
    r"BF16 ([\d.]+) ms a step, \w+ ([\d.]+) ms with casts, ([\d.]+)x(?: \(([\d.]+-[\d.]+)\))?: "
    r"(pays|does not pay alone|cannot tell)"
)


class Said(NamedTuple):
    """What the doctor says of a model's layers."""

    bf16: float
    fp8: float
    speed_up: float
    bounds: str
    answer: str


class Trained(NamedTuple):
    """The speed-up of a run, with its bounds; both medians of a step in ms."""

    bf16: float
    fp8: float
    low: float
    high: float

    @property
    def speed_up(self) -> float:
        """How many times as fast FP8 is."""
        return self.bf16 / self.fp8


def main() -> None:
    """Print the table, then the details."""
    folder, gain = Path(sys.argv[1]), Path(sys.argv[2])
    sizes = sorted(
        path.name.removesuffix(".doctor.json") for path in folder.glob("*.doctor.json")
    )
    rows = [
        row(size, said(folder / f"{size}.doctor.json"), trained(gain, size))
        for size in sizes
    ]
    found = {"date": date.today().isoformat(), "where": where(folder), "rows": rows}
    (folder / "doctor_measure.json").write_text(json.dumps(found, indent=2) + "\n")
    print(table(rows))
    for size in sizes:
        print(f"\n== {size}, doctor")
        details(folder / f"{size}.doctor.json")
        compared = gain / f"{size}.compare.txt"
        if compared.exists():
            print(f"== {size}, training\n" + "\n".join(budget(compared.read_text())))


def table(rows: list[Row]) -> str:
    """Return the rows as Markdown."""
    heads = list(rows[0]) if rows else []
    lines = [heads, ["---"] * len(heads), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def row(size: str, doctor: Said | None, training: Trained | None) -> Row:
    """Return one row of the table."""
    left = ["-", "-", "not measured", "-"]
    if doctor is not None:
        bounds = f" ({doctor.bounds})" if doctor.bounds else ""
        left = [f"{doctor.bf16:.1f}", f"{doctor.fp8:.1f}"]
        left += [f"{doctor.speed_up:.2f}x{bounds}: {doctor.answer}"]
        left += [f"{doctor.bf16 - doctor.fp8:.1f}"]
    right = ["-", "-", "-", "-"]
    if training is not None:
        right = [f"{training.bf16:.1f}", f"{training.fp8:.1f}"]
        right += [f"{training.speed_up:.2f}x ({training.low:.2f}-{training.high:.2f})"]
        right += [f"{training.bf16 - training.fp8:.1f}"]
    cells = [size, *left, *right, agreement(doctor, training)]
    return dict(zip(HEADS, cells, strict=True))


def where(folder: Path) -> str:
    """Return the GPU and the versions on which the doctor measured."""
    for path in folder.glob("*.doctor.json"):
        for check in json.loads(path.read_text())["checks"]:
            if check["code"] == "measured-model":
                return (
                    check["source"]
                    .removeprefix("measured on ")
                    .rpartition(", compiled")[0]
                )
    return "unknown"


def agreement(doctor: Said | None, training: Trained | None) -> str:
    """Return whether the two say the same."""
    if doctor is None or training is None:
        return "-"
    predicted = training.bf16 / (training.bf16 - (doctor.bf16 - doctor.fp8))
    if predicted > training.high * (1 + MARGIN):
        return "NO"
    return "yes" if doctor.answer != "pays" or training.high > 1 else "NO"


def said(path: Path) -> Said | None:
    """Return what the doctor's report says of the whole model."""
    for check in json.loads(path.read_text())["checks"]:
        match = (
            _MODEL.search(check["message"])
            if check["code"] == "measured-model"
            else None
        )
        if match:
            bf16, fp8, speed_up = map(float, match.groups()[:3])
            return Said(bf16, fp8, speed_up, match[4] or "", match[5])
    return None


def trained(gain: Path, size: str) -> Trained | None:
    """Return the speed-up of a run by its steps without the profiler."""
    bf16, fp8 = (steps(gain / f"{size}-{precision}") for precision in ("bf16", "fp8"))
    if len(bf16) < 4 or len(fp8) < 4:
        return None
    slow, fast = quantiles(bf16, n=4), quantiles(fp8, n=4)
    return Trained(median(bf16), median(fp8), slow[0] / fast[2], slow[2] / fast[0])


def steps(capture: Path) -> list[float]:
    """Return the ms of the steps before the profiler starts."""
    log, meta = capture / "log.txt", capture / "rank0.meta.json"
    if not (log.exists() and meta.exists()):
        return []
    last = json.loads(meta.read_text())["window"][0]["first"] - PROFILER_LEAD
    found = re.findall(
        r"^step +(\d+) \|.*\| ([\d.]+) ms$", log.read_text(), re.MULTILINE
    )
    return [float(ms) for step, ms in found if FIRST <= int(step) <= last]


def details(path: Path) -> None:
    """Print every measured line of a doctor's report."""
    for check in json.loads(path.read_text())["checks"]:
        if check["code"].startswith(("measured", "model")):
            print(f"{check['code']}: {check['message']}")


def budget(text: str) -> list[str]:
    """Return the budget of a mean step, and its GEMMs by leg, of what `compare` printed."""
    lines = text.splitlines()
    starts = [
        i
        for i, line in enumerate(lines)
        if line.startswith(("ms a mean step", "GEMM leg"))
    ]
    found = []
    for start in starts:
        end = next(
            (i for i in range(start, len(lines)) if not lines[i].strip()), len(lines)
        )
        found += lines[start:end]
    return found


if __name__ == "__main__":
    main()
