"""`python -m tests.laws`: see tests/laws/__init__.py."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.laws import captures, laws, runs


def main() -> int:
    """Print each broken law and the counts; 1 if one is broken."""
    parser = argparse.ArgumentParser(prog="tests.laws", description=__doc__)
    parser.add_argument("captures", nargs="*", type=Path)
    parser.add_argument("--law", default="", help="comma-separated; default: all")
    parser.add_argument("--every", action="store_true", help="flip every call, not one")
    parser.add_argument("--random", type=int, default=0, help="so many random runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep", type=Path, help="leave the captures of random runs here"
    )
    options = parser.parse_args()
    known = [*laws.RANDOM, *laws.OF_CAPTURES]
    wanted = options.law.split(",") if options.law else list(dict.fromkeys(known))
    unknown = [law for law in wanted if law not in known]
    if unknown:
        parser.error(
            f"no such law: {unknown[0]}; known: {', '.join(dict.fromkeys(known))}"
        )
    count = broken = 0
    for check in _checks(options, wanted):
        count += 1
        if check.broken is not None:
            broken += 1
            print(
                f"BROKEN {check.law}, {check.kind} | {check.case} | {check.broken}",
                flush=True,
            )
    print(f"{count} checks, {broken} laws broken")
    return int(broken > 0)


def _checks(options: argparse.Namespace, wanted: list[str]) -> Iterator[laws.Check]:
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        for folder in _folders(options.captures):
            subject = laws.Subject(folder, folder.name, scratch, options.seed)
            for law in wanted:
                if law == "flip":
                    yield from laws.flip(subject, None if options.every else 1)
                elif law in laws.OF_CAPTURES:
                    yield from laws.OF_CAPTURES[law](subject)
        for seed in range(options.seed, options.seed + options.random):
            run = runs.random_run(random.Random(seed).choice)
            if options.keep is not None:
                runs.write(run, options.keep / f"random_{seed}")
            for law in wanted:
                choose = random.Random(f"{law} {seed}").choice
                if law in laws.RANDOM:
                    yield from laws.of_run(
                        run, law, f"random {seed}", choose, scratch / "runs"
                    )


def _folders(paths: list[Path]) -> Iterator[Path]:
    """Yield captures: folders with traces, or those within a folder."""
    for path in paths:
        if captures.trace_files(path):
            yield path
            continue
        for inner in sorted(path.iterdir()):
            if inner.is_dir() and captures.trace_files(inner):
                yield inner


sys.exit(main())
