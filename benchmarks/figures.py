"""How often `compare` is wrong: simulated step times of equal runs, and of a run 10% slower.

usage: python benchmarks/figures.py [--runs N] [--seed N] [--numerics] [--markdown FILE]

A row is a number of steps and a variation of their times. "called different" counts equal runs that
are called FASTER or SLOWER, "10% found" runs whose steps take 10% longer and that are called
SLOWER, "5% found" likewise. "drifting" are equal runs whose neighboring steps resemble each other
(correlation 0.5), "heavy" ones of which one step in twenty takes up to three times as long.
`--numerics` appends the table of `figures_numerics.py`: injected runs, and their figures' truth.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from fp8verify.analysis.timeline import step_statistics
from fp8verify.comparison.measure import GEMM, IDLE, Measured
from fp8verify.comparison.speed import measure_speed
from fp8verify.model.comparison import Outcome

STEPS = (1, 3, 10, 50)
VARIATIONS = (0.01, 0.03, 0.10)
_STEP_US = 100_000.0
Steps = Callable[[random.Random, int, float], list[float]]


def independent(draw: random.Random, steps: int, variation: float) -> list[float]:
    """Return normal step times that do not depend on each other."""
    return [max(0.01, draw.gauss(1.0, variation)) for _ in range(steps)]


def drifting(draw: random.Random, steps: int, variation: float) -> list[float]:
    """Return normal step times of which neighbors correlate by 0.5."""
    state, found = draw.gauss(0.0, 1.0), []
    for _ in range(steps):
        found.append(max(0.01, 1 + variation * state))
        state = 0.5 * state + 0.75**0.5 * draw.gauss(0.0, 1.0)
    return found


def heavy(draw: random.Random, steps: int, variation: float) -> list[float]:
    """Return normal step times of which one in twenty is up to three times as long."""
    return [
        time * (draw.uniform(1.0, 3.0) if draw.random() < 0.05 else 1.0)
        for time in independent(draw, steps, variation)
    ]


def outcome(before: Sequence[float], after: Sequence[float]) -> Outcome:
    """Compare two runs of these step times."""
    return measure_speed(_side(before), _side(after)).outcome


def _side(times: Sequence[float]) -> Measured:
    found = step_statistics([[_STEP_US * time for time in times]])
    if found is None:
        raise ValueError("no step")
    return Measured((), found, "gpu", None, None, 1.0, {GEMM: found.mean_us, IDLE: 0.0})


def share(
    runs: int,
    seed: int,
    steps: int,
    variation: float,
    called: Sequence[Outcome],
    *,
    kind: Steps = independent,
    slower: float = 1.0,
) -> float:
    """Return the share of simulated pairs with one of these outcomes."""
    draw = random.Random(f"{seed} {kind.__name__} {steps} {variation} {slower}")
    found = (
        outcome(
            kind(draw, steps, variation),
            [slower * time for time in kind(draw, steps, variation)],
        )
        for _ in range(runs)
    )
    return fmean(one in called for one in found)


def table(runs: int, seed: int) -> list[tuple[str, ...]]:
    """Return a row for each number of steps and variation."""
    different = (Outcome.FASTER, Outcome.SLOWER)
    rows = []
    for steps in STEPS:
        for variation in VARIATIONS:
            figures = [
                share(runs, seed, steps, variation, different, kind=kind)
                for kind in (independent, drifting, heavy)
            ]
            figures += [
                share(
                    runs, seed, steps, variation, (Outcome.SLOWER,), slower=1 + change
                )
                for change in (0.10, 0.05)
            ]
            rows.append(
                (str(steps), f"{variation:.0%}", *(f"{one:.1%}" for one in figures))
            )
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--numerics", action="store_true")
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    names = (
        "steps", "variation", "called different", "drifting", "heavy", "10% found", "5% found"
    )  # fmt: skip
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in table(given.runs, given.seed)]
    if given.numerics:
        from figures_numerics import table as numerics_table

        lines += ["", *numerics_table()[0]]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if given.markdown is not None:
        given.markdown.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
