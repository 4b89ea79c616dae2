"""Measure what inspecting a trace costs: CPU seconds, wall seconds and peak memory.

    python benchmarks/trace_speed.py --folder /tmp/big --hta-python /tmp/hta/bin/python

Builds big traces from a shipped capture (see build_traces.py) and lets the readers work through
them by turns, each in a process of its own, three times; medians go to one Markdown table.
fp8verify is measured as the whole command, report included; the others load the trace, HTA also
breaks its kernels down. Run it with the Python of an environment that has what users install, as
HTA's does: `pip install . orjson`.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
CAPTURE = HERE.parent / "traces" / "ddp_one_rank_bf16" / "rank0.json.gz"
RESULT = HERE / "results" / "trace_speed.md"

FP8VERIFY = str(Path(sys.executable).with_name("fp8verify"))
BUILDER = [sys.executable, str(HERE / "build_traces.py")]

JSON_LOAD = "import json, sys; json.load(open(sys.argv[1], 'rb'))"
ORJSON = "import orjson, sys; orjson.loads(open(sys.argv[1], 'rb').read())"
HTA = (
    "import sys\n"
    "from hta.trace_analysis import TraceAnalysis\n"
    "TraceAnalysis(trace_files={0: sys.argv[1]}).get_gpu_kernel_breakdown(visualize=False)"
)
VERSIONS = """
import importlib.metadata as m, sys
name = sys.argv[1]
print(__import__(name).__version__ if name == "fp8verify" else m.version(name))
"""


class Cost(NamedTuple):
    """What one run of a command took: CPU seconds, wall seconds, megabytes at its peak."""

    cpu_s: float
    wall_s: float
    peak_mb: float


class Case(NamedTuple):
    """One row of the table."""

    label: str
    command: list[str]


def run(command: list[str]) -> Cost:
    """Run a command to its end and return what it and its children used."""
    start = time.perf_counter()
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, cwd="/"
        ) as process,
    ):
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{said[-2000:]}")
    return Cost(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024)


def measure(cases: list[Case], repeats: int) -> list[tuple[str, Cost]]:
    """Return each case with its medians; one that takes more than a minute is not repeated.

    Cases take turns, so a slow spell of the machine hits them alike.
    """
    costs = [[run(case.command)] for case in cases]
    for _ in range(repeats - 1):
        for case, known in zip(cases, costs, strict=True):
            if known[0].cpu_s < 60:
                known.append(run(case.command))
    medians = [
        Cost(*map(statistics.median, zip(*known, strict=True))) for known in costs
    ]
    return [(case.label, cost) for case, cost in zip(cases, medians, strict=True)]


def version(package: str, python: str = sys.executable) -> str | None:
    """Return the version of an installed package, None if it is not there."""
    done = subprocess.run(
        [python, "-c", VERSIONS, package], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None


def build(folder: Path, megabytes: int) -> Path:
    """Build a trace of that size; in a child, whose memory then counts for no other process."""
    target = folder / f"{megabytes}mb.json"
    if not target.exists():
        size = ["--megabytes", str(megabytes)]
        subprocess.run([*BUILDER, str(CAPTURE), str(target), *size], check=True)
    return target


def pack(trace: Path) -> Path:
    """Return the trace compressed as the profiler would."""
    packed = trace.with_suffix(".json.gz")
    if not packed.exists():
        with trace.open("rb") as plain, gzip.open(packed, "wb", compresslevel=6) as out:
            shutil.copyfileobj(plain, out)
    return packed


def build_ranks(folder: Path, count: int) -> Path:
    """Build a folder with the capture once for each rank."""
    ranks = folder / f"{count}ranks"
    if not ranks.exists():
        subprocess.run(
            [*BUILDER, str(CAPTURE), str(ranks), "--ranks", str(count)], check=True
        )
    return ranks


def inspect(path: Path, *options: str) -> list[str]:
    """Return the command that inspects a path."""
    return [FP8VERIFY, "inspect", str(path), "--exit-zero", *options]


def cases(trace: Path, hta_python: str | None) -> Iterator[Case]:
    """Yield every reader that is installed, ours first."""
    python = sys.executable
    yield Case("`fp8verify inspect`, one process", inspect(trace, "--workers", "1"))
    yield Case("the same, .gz", inspect(pack(trace), "--workers", "1"))
    yield Case("`fp8verify inspect`, all cores", inspect(trace))
    yield Case("json.load alone", [python, "-c", JSON_LOAD, str(trace)])
    if version("orjson"):
        yield Case("orjson.loads alone", [python, "-c", ORJSON, str(trace)])
    if hta_python:
        yield Case("HTA, kernel breakdown", [hta_python, "-c", HTA, str(trace)])


def table(heading: str, measured: list[tuple[str, Cost]]) -> Iterator[str]:
    """Yield the lines of a table, with ratios to its first row."""
    yield f"| {heading} | CPU s | wall s | peak MB | CPU, ours = 1 | memory, ours = 1 |"
    yield "|---|---:|---:|---:|---:|---:|"
    ours = measured[0][1]
    for label, cost in measured:
        yield (
            f"| {label} | {cost.cpu_s:.2f} | {cost.wall_s:.2f} | {cost.peak_mb:.0f} "
            f"| {cost.cpu_s / ours.cpu_s:.1f} | {cost.peak_mb / ours.peak_mb:.1f} |"
        )
    yield ""


def results(options: argparse.Namespace) -> Iterator[str]:
    """Measure everything and yield the lines of the result file."""
    names = {
        "fp8verify": sys.executable,
        "msgspec": sys.executable,
        "orjson": sys.executable,
    }
    found = {name: version(name, python) for name, python in names.items()}
    if options.hta_python:
        found["HolisticTraceAnalysis"] = version(
            "HolisticTraceAnalysis", options.hta_python
        )
    versions = ", ".join(f"{name} {number}" for name, number in found.items() if number)
    yield "# What inspecting a trace costs\n"
    yield (
        f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}, {len(os.sched_getaffinity(0))} "
        f"cores, {platform.machine()}, Python {platform.python_version()}, {versions}. "
        f"Medians of {options.repeats} runs, each a process of its own; one run where a run takes "
        "over a minute of CPU.\n"
    )
    run(inspect(CAPTURE))  # fills the cache of byte code
    if options.hta_python:
        run([options.hta_python, "-c", HTA, str(CAPTURE)])
    for megabytes in options.megabytes:
        trace = build(options.folder, megabytes)
        size = f"{trace.stat().st_size / 1e6:.0f} MB of JSON"
        run(["cat", str(trace)])  # from a warm disk
        rows = list(cases(trace, options.hta_python))
        yield from table(size, measure(rows, options.repeats))
    ranks = build_ranks(options.folder, options.ranks)
    size = sum(path.stat().st_size for path in ranks.iterdir()) / 1e6
    workers = [
        Case(f"`--workers {n}`", inspect(ranks, "--workers", str(n))) for n in (1, 2)
    ]
    yield from table(
        f"{options.ranks} ranks, {size:.0f} MB of .gz",
        measure(workers, options.repeats),
    )
    small = [
        Case("`inspect` of this capture (.gz)", inspect(CAPTURE)),
        Case("`--version`", [FP8VERIFY, "--version"]),
    ]
    yield from table(
        f"{CAPTURE.stat().st_size / 1e6:.2f} MB of .gz, and nothing",
        measure(small, 5),
    )


def main() -> None:
    """Measure and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, required=True, help="where the big traces go"
    )
    parser.add_argument("--megabytes", type=int, nargs="+", default=[119, 1000])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--hta-python",
        type=os.path.abspath,  # some readers run in another folder
        help="a Python that has HolisticTraceAnalysis",
    )
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    # As an installed program: with its byte code cached.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(options.folder / "pyc")
    lines = []
    for line in results(options):
        print(line, flush=True)
        lines.append(line)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
