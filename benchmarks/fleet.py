"""Measure big jobs on 2, 8 and 16 cores: 64 ranks of 100 MB.

    python benchmarks/fleet.py --folder /tmp/fleet

Builds its traces from a shipped capture, runs `fp8verify inspect` on as many cores as are there
(`taskset`), with worker processes and with a Dask cluster if `distributed` is installed, checks
that every run gives the same report, and writes Markdown and JSON: each row when it is done, so
a run that is cut short leaves what it measured. What 10,000 ranks would cost follows from the
CPU seconds of a rank. Run it with the Python that has fp8verify; it takes about two minutes on
16 cores and needs 7 GB of disk.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from build_traces import build
from trace_speed import CAPTURE, FP8VERIFY, HERE, version

COMMAND = (
    [FP8VERIFY] if Path(FP8VERIFY).exists() else [sys.executable, "-m", "fp8verify"]
)
RESULT = HERE / "results" / "fleet.md"
CORES = (2, 8, 16)
RANKS_OF_A_BIG_JOB = 10_000
_CLUSTER_START_S = 60
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


def run(case: Case, *, memory: bool = False, servers: list[int] | None = None) -> Cost:
    """Run `inspect` on some cores, the first ones; its report is told by its digest.

    Args:
        case: what to run.
        memory: look at it meanwhile.
        servers: processes that work for it, whose CPU seconds count too.
    """
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        pinned = ["taskset", "-c", f"0-{case.cores - 1}", *case.command, "--exit-zero"]
        before, start = _cpu_s(servers), time.perf_counter()
        process = subprocess.Popen(
            [*pinned, "--format", "json", "-o", report.name], stdout=subprocess.DEVNULL
        )
        peak = _Peak([process.pid, *(servers or ())]) if memory else None
        status = process.wait()
        wall, cpu = time.perf_counter() - start, _cpu_s(servers) - before
        peak_mb = peak.stop() if peak else 0.0
        if status != 0:
            raise SystemExit(f"{' '.join(pinned)} failed with {status}")
        digest = hashlib.sha256(Path(report.name).read_bytes()).hexdigest()
    print(f"  {case.label}: {wall:.2f} s, {cpu:.2f} CPU s", file=sys.stderr, flush=True)
    return Cost(cpu, wall, peak_mb, digest)


def _cpu_s(servers: list[int] | None) -> float:
    """Return the CPU seconds of all children that ended, and of servers that still run."""
    own = os.times()
    ticks = sum(_ticks(pid) for server in servers or () for pid in _family(server))
    return own.children_user + own.children_system + ticks / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> int:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0


class _Peak:
    """The memory of processes with their children, ten times a second: Pss, shared once."""

    def __init__(self, pids: list[int]) -> None:
        self._pids, self._most, self._over = pids, 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> float:
        self._over.set()
        self._thread.join()
        return self._most

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            members = (member for pid in self._pids for member in _family(pid))
            self._most = max(self._most, sum(map(_megabytes, members)))


def _family(pid: int) -> list[int]:
    children: list[str] = []
    for path in Path(f"/proc/{pid}/task").glob(
        "*/children"
    ):  # any thread may have started some
        with suppress(OSError):
            children += path.read_text().split()
    return [pid, *(member for child in children for member in _family(int(child)))]


def _megabytes(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def ranks(folder: Path, count: int, megabytes: int) -> Path:
    """Build a folder with that many ranks of one trace; only the number of the rank differs."""
    target = folder / f"{count}ranks_{megabytes}mb"
    if target.exists():
        return target
    path = folder / f"{megabytes}mb.json"
    if not path.exists():
        build(CAPTURE, path, megabytes * 1_000_000)
    data = path.read_bytes()
    start = data.index(_DISTRIBUTED)
    end = data.index(b"}", start) + 1
    target.mkdir()
    for rank in range(count):
        told = json.dumps(
            {"backend": "nccl", "rank": rank, "world_size": count}
        ).encode()
        head = data[:start] + b'"distributedInfo": ' + told
        with (target / f"rank{rank}.json").open("wb") as file:
            file.write(head)
            file.write(memoryview(data)[end:])
    return target


@contextmanager
def dask_workers(cores: int) -> Iterator[tuple[str, list[int]]]:
    """Run a Dask scheduler and one worker process a core; yield its address and its processes."""
    from distributed import Client

    dask = [sys.executable, "-m", "dask"]
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "scheduler.json"
        known = [
            "--scheduler-file",
            str(found),
            "--no-dashboard",
            "--host",
            "127.0.0.1",
        ]
        options = [
            "--nworkers",
            str(cores),
            "--nthreads",
            "1",
            "--local-directory",
            folder,
        ]
        commands = [
            [*dask, "scheduler", *known, "--port", "0"],
            ["taskset", "-c", f"0-{cores - 1}", *dask, "worker", *known, *options],
        ]
        servers: list[subprocess.Popen[bytes]] = []
        try:
            for command in commands:
                servers.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
                _wait_for(found, servers[0])
            address = json.loads(found.read_text())["address"]
            with Client(address, timeout=_CLUSTER_START_S) as client:
                client.wait_for_workers(cores, timeout=_CLUSTER_START_S)
            yield address, [server.pid for server in servers]
        finally:
            for server in reversed(servers):
                server.terminate()
                server.wait()


def _wait_for(path: Path, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _CLUSTER_START_S
    while not path.exists():
        if server.poll() is not None or time.monotonic() > end:
            raise SystemExit("the Dask scheduler did not start")
        time.sleep(0.1)


class Result:
    """The result file and its figures, written anew after each line."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._lines: list[str] = []
        self._figures: dict[str, dict[str, dict[str, float]]] = {}
        output.parent.mkdir(parents=True, exist_ok=True)

    def add(self, line: str) -> None:
        """Print a line and keep it."""
        print(line, flush=True)
        self._lines.append(line)
        self._output.write_text(
            "\n".join(self._lines).rstrip() + "\n", encoding="utf-8"
        )

    def table(
        self, heading: str, rows: Iterator[tuple[Case, Cost]], *, memory: str
    ) -> list[Cost]:
        """Add a table, row by row, with the ratios to its first row; all reports must be alike.

        Args:
            heading: of the table.
            rows: what was measured.
            memory: the title of the memory for each process, beyond that of a first row of one.
        """
        self.add(
            f"| {heading} | wall s | CPU s | peak MB, all | wall, first = 1 | CPU, first = 1 "
            f"| {memory} |"
        )
        self.add("|---|---:|---:|---:|---:|---:|---:|")
        costs: list[Cost] = []
        alone_mb = 0.0
        for case, cost in rows:
            costs.append(cost)
            if case.processes == 1:
                alone_mb = cost.peak_mb
            self.add(
                _row(case, cost, costs[0], (cost.peak_mb - alone_mb) / case.processes)
            )
            self._keep(heading, case, cost)
            if cost.report != costs[0].report:
                raise SystemExit(f"{heading}: the reports differ")
        self.add("")
        return costs

    def _keep(self, heading: str, case: Case, cost: Cost) -> None:
        figures = {"wall_s": cost.wall_s, "cpu_s": cost.cpu_s, "peak_mb": cost.peak_mb}
        self._figures.setdefault(heading, {})[case.label] = figures
        text = json.dumps(self._figures, indent=1) + "\n"
        self._output.with_suffix(".json").write_text(text, encoding="utf-8")


def _row(case: Case, cost: Cost, first: Cost, each_mb: float) -> str:
    return (
        f"| {case.label} | {cost.wall_s:.2f} | {cost.cpu_s:.1f} | {cost.peak_mb:.0f} "
        f"| {cost.wall_s / first.wall_s:.2f} | {cost.cpu_s / first.cpu_s:.2f} | {each_mb:.0f} |"
    )


def many_ranks(options: argparse.Namespace, result: Result) -> None:
    """Measure many ranks once by worker processes, and by a Dask cluster of as many."""
    size, count = options.rank_megabytes, options.ranks
    folder = ranks(options.folder, count, size)
    rows = _runs_of_ranks(folder, options.cores)
    costs = result.table(f"{count} ranks of {size} MB", rows, memory="MB a process")
    each = costs[0].cpu_s / count
    hours = each * RANKS_OF_A_BIG_JOB / 3600
    result.add(
        f"A rank costs {each:.2f} CPU seconds, so {RANKS_OF_A_BIG_JOB:,} ranks of {size} MB "
        f"take {hours:.1f} CPU hours: {60 * hours / 64:.1f} minutes on 64 cores, if storage keeps "
        f"up ({RANKS_OF_A_BIG_JOB * size / 1e6:.1f} TB of JSON).\n"
    )


def _runs_of_ranks(folder: Path, cores: list[int]) -> Iterator[tuple[Case, Cost]]:
    command = [*COMMAND, "inspect", str(folder)]
    for n in reversed(cores):  # the quickest first
        case = Case(f"{n} cores", [*command, "--workers", str(n)], n, n)
        yield case, run(case, memory=True)
    if not importlib.util.find_spec("distributed"):
        return
    n = cores[-1]
    with dask_workers(n) as (address, servers):
        case = Case(f"Dask, {n} workers", [*command, "--scheduler", address], n, n)
        yield case, run(case, memory=True, servers=servers)


def main() -> None:
    """Measure and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, required=True, help="where the traces go"
    )
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument(
        "--rank-megabytes", type=int, default=100, help="of each rank's trace"
    )
    parser.add_argument(
        "--cores", type=int, nargs="+", help="2, 8 and 16 as far as there are"
    )
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    available = len(os.sched_getaffinity(0))
    options.cores = sorted(options.cores or [n for n in CORES if n <= available])
    run(
        Case("warm-up", [*COMMAND, "inspect", str(CAPTURE)], 1, 1)
    )  # fills the byte code cache
    result = Result(options.output)
    result.add("# Big jobs on many cores\n")
    result.add(
        f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}, {available} cores, "
        f"{platform.machine()}, Python {platform.python_version()}, fp8verify "
        f"{version('fp8verify')}. One run each; every row gave the same report.\n"
    )
    many_ranks(options, result)


if __name__ == "__main__":
    main()
