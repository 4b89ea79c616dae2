"""Train the cases of `attach/many.py` plain and attached, and compare all that they leave.

    python benchmarks/attach_many.py [--ways default,layers,numerics] [--names NAME …]

Compared are each case's exit status, standard output and error, and files. A case that differs
between two plain runs is left out and named. Prints a line for each difference and a table of
counts by library; exit code 1 if a case differs. Libraries that are not installed are skipped;
`MANY_DEVICE=cuda` trains on a GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.harness import scrub  # noqa: E402

MANY = ROOT / "benchmarks" / "attach" / "many.py"
WAYS = {
    "default": (),
    "layers": ("--steps", "3-4", "--layers"),
    "numerics": ("--steps", "3-4", "--numerics"),
}
SEEN = ("status", "stdout", "stderr", "files")
Outcomes = dict[str, dict[str, str]]


def start(
    folder: Path, way: str | None, names: list[str]
) -> tuple[Path, subprocess.Popen[bytes]]:
    """Start all cases, plain (no way) or attached."""
    out = folder / str(way)
    command = [sys.executable, str(MANY), str(out), *names]
    if way is not None and way not in ("plain", "again"):
        run = [sys.executable, "-m", "fp8verify", "run", "--exit-zero", *WAYS[way]]
        where = ["--trace-dir", f"{out}.capture", "-o", f"{out}.report"]
        command = [*run, *where, "--", *command]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with Path(f"{out}.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    return out, process


def outcomes(out: Path) -> Outcomes:
    """Return what each case left."""
    found: Outcomes = {}
    for folder in sorted(path for path in out.iterdir() if path.is_dir()):
        texts = {name: folder / name for name in SEEN}
        found[folder.name] = {
            name: scrub(path.read_text(errors="replace")) if path.is_file() else ""
            for name, path in texts.items()
        }
    return found


def first_difference(before: str, after: str) -> str:
    """Return the first line that differs."""
    pairs = zip(
        [*before.splitlines(), "(end)"], [*after.splitlines(), "(end)"], strict=False
    )
    return next((f"{a[:120]!r} -> {b[:120]!r}" for a, b in pairs if a != b), "length")


def main() -> int:
    """Run everything and print what differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--names", nargs="*", default=[])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--one-by-one", action="store_true")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    ways = given.ways.split(",")
    started = []
    for way in ("plain", "again", *ways):
        started.append(start(folder, way, given.names))
        if given.one_by_one:
            started[-1][1].wait()
    for _, process in started:
        process.wait()
    plain, again, *attached = [outcomes(out) for out, _ in started]
    unsteady = sorted(name for name in plain if plain[name] != again.get(name))
    failed = sorted(name for name in plain if plain[name]["status"].strip() != "0")
    steady = sorted(plain.keys() - set(unsteady))
    harmed = 0
    for way, seen in zip(ways, attached, strict=True):
        for name in steady:
            other = seen.get(name, dict.fromkeys(SEEN, "(missing)"))
            for what in SEEN:
                if plain[name][what] != other[what]:
                    shown = first_difference(plain[name][what], other[what])
                    print(f"DIFFERS {way} {name} {what}: {shown}", flush=True)
            harmed += plain[name] != other
    libraries = Counter(name.split("_")[0] for name in steady)
    print(
        ", ".join(f"{library} {count}" for library, count in sorted(libraries.items()))
    )
    print(f"plain runs differ among themselves: {', '.join(unsteady) or 'none'}")
    print(f"cases that fail plain (the same attached): {', '.join(failed) or 'none'}")
    print(f"{len(steady)} cases, {len(ways)} ways: {harmed} differ")
    return 1 if harmed else 0


if __name__ == "__main__":
    sys.exit(main())
