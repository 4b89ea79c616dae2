"""Count how often the verdict breaks its laws: `python -m benchmarks.laws --random 2000`.

    python -m benchmarks.laws [--random N] [--jobs N] [-o benchmarks/results/laws.md] [CAPTURES...]

Tries every law of tests/laws on random runs whose truth is known and on captures (those of traces/
by default), and flips every call of these to BF16. Prints a Markdown table; with -o also what broke,
in a file beside it that ends in .txt. With --minutes, no run is begun later than that.
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from fp8verify.version import __version__  # noqa: E402
from tests.laws import captures, laws, runs  # noqa: E402

MEANING = {
    "sound": "a sound run is not accused",
    "time": "other durations change nothing that is said of what ran",
    "order": "nor do the order of the file and the numbers of processes, threads, streams, ranks",
    "sources": "a source less: the same verdict, or INCONCLUSIVE, or ACTIVE where it alone stated",
    "flip": "a converted layer's call in BF16 is not passed over",
    "outside": "what is no layer's changes nothing",
    "numbers": "numbers in sentences are those of the ledger's entries",
    "entries": "the ledger's entries are what the run did",
    "repetition": "a window twice as long says the same",
}
Task = tuple[str, str | int]


def main() -> int:
    """Try the laws, print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("captures", nargs="*", type=Path)
    parser.add_argument("--random", type=int, default=2000)
    parser.add_argument(
        "--flips", type=int, default=0, help="of a capture; 0: every call"
    )
    parser.add_argument("--first", type=int, default=0, help="seed of the first run")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    folders = list(_folders(options.captures or [ROOT / "traces"]))
    tasks: list[Task] = [("capture", f"{folder}|{options.flips}") for folder in folders]
    seeds = range(options.first, options.first + options.random)
    tasks += [("random", seed) for seed in seeds]
    end = time.time() + 60 * options.minutes
    checks: list[laws.Check] = []
    tried = 0
    with ProcessPoolExecutor(options.jobs) as pool:
        for task, found in zip(
            tasks, pool.map(_try, tasks, repeat(end), chunksize=1), strict=True
        ):
            checks += found
            tried += task[0] == "random" and bool(found)
            if sys.stderr.isatty():
                print(f"\r{len(checks)} checks", end="", file=sys.stderr)
    table = _table(checks, len(folders), options.first, tried)
    print(table)
    if options.output is not None:
        options.output.write_text(table, encoding="utf-8")
        broken = [
            f"{one.law}, {one.kind} | {one.case} | {one.broken}\n"
            for one in checks
            if one.broken is not None
        ]
        options.output.with_suffix(".txt").write_text("".join(broken), encoding="utf-8")
    return 0


def _folders(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        inner = [path] if captures.trace_files(path) else sorted(path.iterdir())
        yield from (one for one in inner if one.is_dir() and captures.trace_files(one))


def _try(task: Task, end: float) -> list[laws.Check]:
    """Try all laws on one capture or one random run, none after the end."""
    kind, what = task
    if time.time() > end:
        return []
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        if kind == "random":
            return list(_of_seed(int(what), scratch))
        folder, _, flips = str(what).partition("|")
        subject = laws.Subject(Path(folder), Path(folder).name, scratch)
        found: list[laws.Check] = []
        for law, checks in laws.OF_CAPTURES.items():
            if law == "flip":
                found += laws.flip(subject, int(flips) or None)
            else:
                found += checks(subject)
        return found


def _of_seed(seed: int, scratch: Path) -> Iterator[laws.Check]:
    run = runs.random_run(random.Random(seed).choice)
    for law in laws.RANDOM:
        choose = random.Random(f"{law} {seed}").choice
        yield from laws.of_run(run, law, f"random {seed}", choose, scratch / "runs")


def _table(checks: list[laws.Check], folders: int, first: int, seeds: int) -> str:
    today = datetime.datetime.now(tz=datetime.timezone.utc).date()
    lines = [
        "# Laws of the verdict, and how often they are broken",
        "",
        f"`benchmarks/laws.py`, {today}, fp8verify {__version__}: {seeds} random runs whose truth is",
        f"known (seeds from {first} on), and {folders} recorded captures.",
        "",
        "| law | of | what | checks | broken |",
        "|---|---|---|---|---|",
    ]
    total: Counter[tuple[str, str, str]] = Counter()
    broken: Counter[tuple[str, str, str]] = Counter()
    for one in checks:
        key = (
            one.law,
            "random runs" if one.case.startswith("random ") else "captures",
            one.kind,
        )
        total[key] += 1
        broken[key] += one.broken is not None
    order = list(MEANING)
    for key in sorted(total, key=lambda key: (order.index(key[0]), key[1], key[2])):
        law, of, kind = key
        lines.append(
            f"| {MEANING[law]} | {of} | {_of_kind(law, kind)} | {total[key]} | {broken[key]} |"
        )
    return "\n".join([*lines, ""])


def _of_kind(law: str, kind: str) -> str:
    if law == "flip":
        return f"shown by {kind}" if kind != "nothing" else "nothing shows it"
    return kind


if __name__ == "__main__":
    sys.exit(main())
