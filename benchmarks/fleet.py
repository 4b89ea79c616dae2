"""Measure big jobs on 1, 2, 8 and 16 cores: one trace of a gigabyte, and 64 ranks of 100 MB.

    python benchmarks/fleet.py --folder /tmp/fleet

Builds its traces from a shipped capture, runs `fp8verify inspect` on as many cores as are there
(`taskset`), with worker processes and with a Dask cluster if `distributed` is installed, checks
that every run gives the same report, and writes Markdown and JSON. The rows of a table take turns,
so that a slow spell hits all of them; the least of several runs counts. Memory is measured in a run
of its own. What 10,000 ranks would cost follows from the CPU seconds of a rank. Run it with the
Python that has fp8verify; it takes about three minutes on 16 cores.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from build_traces import build
from isal import igzip
from trace_speed import CAPTURE, FP8VERIFY, HERE, version

RESULT = HERE / "results" / "fleet.md"
CORES = (2, 8, 16)
RANKS_OF_A_BIG_JOB = 10_000
Figures = dict[str, dict[str, dict[str, float]]]
_DISTRIBUTED = b'"distributedInfo": {'


class Case(NamedTuple):
    """One row of a table: a command, the cores that it may use, and its processes."""

    label: str
    command: list[str]
    cores: int
    processes: int


class Cost(NamedTuple):
    """Seconds of CPU and of wall of a command with all its processes; megabytes at their peak."""

    cpu_s: float
    wall_s: float
    peak_mb: float
    report: str


def run(case: Case, *, memory: bool = False) -> Cost:
    """Run `inspect` on some cores, the first ones; its report is told by its digest."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        pinned = ["taskset", "-c", f"0-{case.cores - 1}", *case.command, "--exit-zero"]
        before, start = os.times(), time.perf_counter()
        process = subprocess.Popen(
            [*pinned, "--format", "json", "-o", report.name], stdout=subprocess.DEVNULL
        )
        peak = _Peak(process.pid) if memory else None
        status = process.wait()
        wall, after = time.perf_counter() - start, os.times()
        if status != 0:
            raise SystemExit(f"{' '.join(pinned)} failed with {status}")
        cpu = sum(after[2:4]) - sum(before[2:4])
        digest = hashlib.sha256(Path(report.name).read_bytes()).hexdigest()
    return Cost(cpu, wall, peak.stop() if peak else 0.0, digest)


class _Peak:
    """The memory of a process and its children, looked at ten times a second: Pss, shared once."""

    def __init__(self, pid: int) -> None:
        self._pid, self._most, self._over = pid, 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> float:
        self._over.set()
        self._thread.join()
        return self._most

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            self._most = max(self._most, sum(map(_megabytes, _family(self._pid))))


def _family(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return [pid]
    return [pid, *(member for child in text.split() for member in _family(int(child)))]


def _megabytes(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def measure(cases: list[Case], repeats: int) -> list[Cost]:
    """Return the least costs of each case, which take turns and must give the same report."""
    costs: list[list[Cost]] = [[] for _ in cases]
    for _ in range(repeats):
        for case, known in zip(cases, costs, strict=True):
            known.append(run(case))
    found = []
    for case, known in zip(cases, costs, strict=True):
        last = run(case, memory=True)
        if len({cost.report for cost in (*known, last)}) != 1:
            raise SystemExit(f"{case.label}: two runs gave different reports")
        least = [min(column) for column in zip(*(cost[:2] for cost in known), strict=True)]
        found.append(Cost(*least, last.peak_mb, last.report))
    return found


def big_trace(folder: Path, megabytes: int) -> Path:
    """Build one trace of that size."""
    path = folder / f"{megabytes}mb.json"
    if not path.exists():
        build(CAPTURE, path, megabytes * 1_000_000)
    return path


def ranks(folder: Path, count: int, megabytes: int) -> Path:
    """Build a folder with that many ranks of one trace; only the number of the rank differs."""
    target = folder / f"{count}ranks_{megabytes}mb"
    if target.exists():
        return target
    data = big_trace(folder, megabytes).read_bytes()
    start = data.index(_DISTRIBUTED)
    end = data.index(b"}", start) + 1
    target.mkdir()
    for rank in range(count):
        told = json.dumps({"backend": "nccl", "rank": rank, "world_size": count}).encode()
        head = data[:start] + b'"distributedInfo": ' + told
        with (target / f"rank{rank}.json").open("wb") as file:
            file.write(head)
            file.write(memoryview(data)[end:])
    return target


@contextmanager
def dask_workers(cores: int) -> Iterator[str]:
    """Run a Dask scheduler and one worker process a core, as a cluster would; yield its address."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "scheduler.json"
        dask = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
        options = ["--scheduler-file", str(found), "--no-dashboard", "--host", "127.0.0.1"]
        scheduler = subprocess.Popen([*dask, *options, "--port", "0"], stderr=subprocess.DEVNULL)
        while not found.exists():
            time.sleep(0.1)
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file"]
        options = ["--nworkers", str(cores), "--nthreads", "1", "--no-dashboard"]
        workers = subprocess.Popen([*worker, str(found), *options], stderr=subprocess.DEVNULL)
        try:
            time.sleep(5)
            yield json.loads(found.read_text())["address"]
        finally:
            for process in (workers, scheduler):
                process.terminate()
                process.wait()


def table(heading: str, cases: list[Case], costs: list[Cost]) -> Iterator[str]:
    """Yield a table with the ratios to its first row; all rows must have the same report."""
    if len({cost.report for cost in costs}) != 1:
        raise SystemExit(f"{heading}: the reports differ")
    yield (
        f"| {heading} | wall s | CPU s | peak MB, all | wall, first = 1 | CPU, first = 1 "
        "| MB more, a process |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|"
    first = costs[0]
    for case, cost in zip(cases, costs, strict=True):
        more = (cost.peak_mb - first.peak_mb) / case.processes
        yield (
            f"| {case.label} | {cost.wall_s:.2f} | {cost.cpu_s:.1f} | {cost.peak_mb:.0f} "
            f"| {cost.wall_s / first.wall_s:.2f} | {cost.cpu_s / first.cpu_s:.2f} | {more:.0f} |"
        )
    yield ""


def one_trace(options: argparse.Namespace, cores: list[int], kept: Figures) -> Iterator[str]:
    """Measure one big trace, plain and packed."""
    plain = big_trace(options.folder, options.megabytes)
    packed = plain.with_suffix(".json.gz")
    if not packed.exists():
        with plain.open("rb") as source, igzip.open(packed, "wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
    for path in (plain, packed):
        command = [FP8VERIFY, "inspect", str(path)]
        cases = [Case("1 process", [*command, "--workers", "1"], 1, 1)]
        cases += [Case(f"{n} cores", command, n, n) for n in cores]
        costs = measure(cases, options.repeats)
        heading = f"one trace, {options.megabytes} MB of JSON, {path.suffix}"
        kept[heading] = _as_data(cases, costs)
        yield from table(heading, cases, costs)


def many_ranks(options: argparse.Namespace, cores: list[int], kept: Figures) -> Iterator[str]:
    """Measure many ranks by worker processes, and by a Dask cluster of as many."""
    folder = ranks(options.folder, options.ranks, 100)
    command = [FP8VERIFY, "inspect", str(folder)]
    cases = [Case(f"{n} cores", [*command, "--workers", str(n)], n, n) for n in cores]
    costs = [run(case, memory=True) for case in cases]
    cost = costs[-1]
    if importlib.util.find_spec("distributed"):
        with dask_workers(cores[-1]) as address:
            label = f"Dask, {cores[-1]} workers (CPU and memory: the client's)"
            # The cluster's own processes are not children of the command.
            cases.append(Case(label, [*command, "--scheduler", address], cores[-1], 1))
            costs.append(run(cases[-1], memory=True))
    heading = f"{options.ranks} ranks of 100 MB"
    kept[heading] = _as_data(cases, costs)
    yield from table(heading, cases, costs)
    each = cost.cpu_s / options.ranks
    hours = each * RANKS_OF_A_BIG_JOB / 3600
    yield (
        f"A rank costs {each:.2f} CPU seconds, so that {RANKS_OF_A_BIG_JOB:,} ranks of 100 MB take "
        f"{hours:.1f} CPU hours: {60 * hours / 64:.1f} minutes on 64 cores, if storage keeps up "
        f"({RANKS_OF_A_BIG_JOB * 0.1 / 1000:.0f} TB of JSON)."
    )


def _as_data(cases: list[Case], costs: list[Cost]) -> dict[str, dict[str, float]]:
    return {
        case.label: {"wall_s": cost.wall_s, "cpu_s": cost.cpu_s, "peak_mb": cost.peak_mb}
        for case, cost in zip(cases, costs, strict=True)
    }


def main() -> None:
    """Measure and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the traces go")
    parser.add_argument("--megabytes", type=int, default=1000, help="of the one big trace")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=("trace", "ranks"))
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    cores = [n for n in CORES if n <= len(os.sched_getaffinity(0))]
    kept: Figures = {}
    run(Case("", [FP8VERIFY, "inspect", str(CAPTURE)], 1, 1))  # fills the cache of byte code
    lines = [
        "# Big jobs on many cores\n",
        (
            f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}, {os.cpu_count()} cores, "
            f"{platform.machine()}, Python {platform.python_version()}, fp8verify "
            f"{version('fp8verify')}. The least of {options.repeats} runs by turns for one trace, "
            "one run for many ranks; every row of a table gave the same report.\n"
        ),
    ]
    print(*lines, sep="\n", flush=True)
    parts = {"trace": one_trace, "ranks": many_ranks}
    for name, part in parts.items():
        for line in part(options, cores, kept) if options.only in (None, name) else ():
            print(line, flush=True)
            lines.append(line)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    options.output.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
