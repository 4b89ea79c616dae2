"""Hold the estimates of `inspect` against the measured pairs of `gpu/pairs.py`.

    python benchmarks/payoff_table.py FOLDER

FOLDER has `times.json` and the traces. Prints the table of results/measured.md, and fails if an
estimate has the wrong sign, or where the GPU limits both runs, is off by more than a tenth.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import fp8verify
from fp8verify import Report
from fp8verify.report.payoff import payoff

EVEN = 0.05
WITHIN = 0.10


class Row(NamedTuple):
    """One pair: measured, what the report says, and its estimate if it has one."""

    name: str
    bf16_ms: float
    fp8_ms: float
    said: str
    estimate: float | None
    waits: bool

    @property
    def measured(self) -> float:
        """How many times as fast a step is in FP8."""
        return self.bf16_ms / self.fp8_ms

    @property
    def is_right(self) -> bool:
        """Whether what is said and what was measured are on the same side of even."""
        if self.said.startswith("no estimate"):
            return True
        if self.said.startswith("no gain"):
            return self.measured <= 1 + EVEN
        if self.estimate is None:
            return False
        near = abs(self.estimate - self.measured) <= EVEN
        return near or (self.estimate > 1) is (self.measured > 1)

    @property
    def error(self) -> float | None:
        """The share by which an estimate of the step is off; those of GPU kernels are not held."""
        if self.estimate is None or self.waits:
            return None
        return self.estimate / self.measured - 1


def report_of(trace: Path, steps_ms: list[float]) -> Report:
    """Return the report of a trace, with the times of steps outside of its window."""
    samples = [round(ms * 1e6) for ms in steps_ms]
    meta: dict[str, Any] = {
        "schema": 1,
        "rank": 0,
        "world_size": 1,
        "window": [],
        "steps_seen": len(samples) + 6,
        "steps_outside": {
            "count": len(samples),
            "total_ns": sum(samples),
            "median_ns": sorted(samples)[len(samples) // 2],
            "samples_ns": samples,
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(trace, Path(folder, "rank0.json.gz"))
        Path(folder, "rank0.meta.json").write_text(json.dumps(meta))
        return fp8verify.inspect(folder)


def rows_of(folder: Path) -> list[Row]:
    """Return every pair of the folder that was measured whole."""
    times = json.loads((folder / "times.json").read_text())
    rows = []
    for name, run in times.items():
        if not isinstance(run, dict) or "ms" not in run or name.endswith("bf16"):
            continue
        start, _, recipe = name.rpartition(" ")
        base = "lora-bf16" if recipe.startswith("lora-") else "bf16"
        before = times.get(f"{start} {base}", {})
        trace = folder / f"{name.replace(' ', '_')}.json.gz"
        if "ms" not in before or not trace.exists():
            continue
        report = report_of(trace, run["ms"])
        said = payoff(report)
        figures = report.ranks[0].payoff
        rows.append(
            Row(
                name=name,
                bf16_ms=before["median_ms"],
                fp8_ms=run["median_ms"],
                said="nothing" if said is None else said.text.split(" (")[0],
                estimate=None if said is None else said.speedup,
                waits=bool(figures and figures.waits),
            )
        )
    return rows


def main() -> int:
    """Print the table, and say what is wrong."""
    rows = rows_of(Path(sys.argv[1]))
    print(
        "| width, mode, recipe | ms a step, BF16, FP8 | measured | `inspect` says | off by |"
    )
    print("|---|---|---|---|---|")
    for row in rows:
        off = "-" if row.error is None else f"{row.error:+.0%}"
        print(
            f"| {row.name} | {row.bf16_ms:.1f}, {row.fp8_ms:.1f} | {row.measured:.2f}x "
            f"| {row.said} | {off} |"
        )
    wrong = [row for row in rows if not row.is_right]
    far = [row for row in rows if abs(row.error or 0.0) > WITHIN]
    print(
        f"{len(rows)} pairs, {len(wrong)} with a wrong sign, {len(far)} off by more than 10%"
    )
    for row in (*wrong, *far):
        print(f"  {row.name}: measured {row.measured:.2f}x, said {row.said}")
    return 1 if wrong or far else 0


if __name__ == "__main__":
    sys.exit(main())
