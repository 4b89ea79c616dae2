"""One trace decoded by several workers: the same columns, byte for byte, whatever is in it."""

from __future__ import annotations

import gzip
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fp8verify.errors import InputError
from fp8verify.trace import Trace, enclosing, read_trace, source, waiting
from fp8verify.trace.columns import Columns
from fp8verify.trace.joining import Numberings
from fp8verify.trace.kineto import crew, file_helpers, helpers, stream_helpers
from fp8verify.trace.kineto.ahead import Ahead
from fp8verify.trace.kineto.collector import Collector
from fp8verify.trace.kineto.packing import Reply
from fp8verify.trace.kineto.regions import Extent, Region
from fp8verify.trace.team import Team, call_all
from tests.golden.expectations import KINETO, ROOT
from tests.unit.test_trace_properties import events as some_events
from tests.unit.trace_events import Event, annotation, as_document, kernel, launch, op

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely")

BLOCK = 1 << 11
CAPTURE = ROOT / "ddp_one_rank_bf16" / "rank0.json.gz"
OTHERS: dict[str, set[int]] = {}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "SLOT_SIZE", 4 * BLOCK)
    monkeypatch.setattr(helpers, "WARM_UP", 2)
    monkeypatch.setattr(stream_helpers, "READ_SIZE", BLOCK)
    monkeypatch.setattr(file_helpers, "READ_SIZE", BLOCK)
    monkeypatch.setattr(source, "READ_SIZE", BLOCK)
    monkeypatch.setattr(source, "PIECE_SIZE", BLOCK)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[Reply]:
    """What helpers decoded and the reader used."""
    found: list[Reply] = []
    usual = Collector.join

    def join(self: Collector, reply: Reply, numbers: Numberings) -> None:
        found.append(reply)
        usual(self, reply, numbers)

    monkeypatch.setattr(Collector, "join", join)
    return found


def both(path: Path, *, layers: bool = False, workers: int = 2) -> tuple[Trace, Trace]:
    alone = read_trace(path, block_size=BLOCK, layers=layers)
    helped = read_trace(path, block_size=BLOCK, layers=layers, workers=workers)
    return alone, helped


def children() -> set[int]:
    """Return the children of this process, those included that were not waited for."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                found.add(int(path.parent.name))
    return found


@pytest.fixture(autouse=True)
def _others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Note the children that other tests of this process keep."""
    monkeypatch.setitem(OTHERS, "children", children())


def no_child_is_left() -> bool:
    return children() <= OTHERS["children"]


def events(count: int) -> list[Event]:
    cpu: list[Event] = [annotation("ProfilerStep#3", 1000, 10 * count)]
    gpu: list[Event] = []
    for n in range(count):
        inputs = {"Input type": ["float"], "Input Dims": [[n % 7, 16]]}
        cpu.append(op(f"aten::op{n % 5}", 1000 + 10 * n, 9, n + 1, tid=n % 2, **inputs))
        gpu.append(launch(n + 1, 1002 + 10 * n, tid=n % 2))
        gpu.append(kernel(f"gemm_{n % 11}", 1005 + 10 * n, 3.25, n + 1, **{"External id": n + 1}))
    return [*cpu, *gpu]


def in_the_middle(text: bytes, what: bytes) -> bytes:
    """Put something before an event in the middle of a document."""
    place = text.index(b"  {\n", len(text) // 2)
    return text[:place] + what + text[place:]


PLAIN = as_document(events(300))
BEGIN = {"ph": "B", "cat": "cpu_op", "name": "half", "pid": 7, "tid": 1, "ts": 1000}
LATE = kernel("late", 1_700_000_000_000_000.125, 1, 9999)
CASES = {
    "whole": PLAIN,
    "one line": json.dumps({"traceEvents": events(300)}).encode(),
    "cut": PLAIN[: len(PLAIN) // 2],
    "damaged": in_the_middle(PLAIN, b'  {"ph": "X", "cat": "kernel", "name": "\\x"},\n'),
    "nan": in_the_middle(PLAIN, b'  {"ph": "X", "cat": "kernel", "ts": NaN, "dur": 1},\n'),
    "garbage": in_the_middle(PLAIN, b"  ###### ,\n"),
    "new category": in_the_middle(PLAIN, b'  {"ph": "X", "cat": "new", "name": "x", "ts": 1},\n'),
    "half": in_the_middle(PLAIN, json.dumps(BEGIN).encode() + b",\n"),
    "late stamps": in_the_middle(PLAIN, json.dumps(LATE).encode() + b",\n"),
    "two documents": PLAIN + PLAIN,
    "closed early": in_the_middle(PLAIN, b'  {"ph": "i", "name": "x"}\n ], "record_shapes": 1}\n'),
    "metadata after": PLAIN.rstrip()[:-1] + b', "fp8verify": {"a": [{"ph": "X"}, {"ph": "X"}]}}',
    "long metadata after": PLAIN.rstrip()[:-1] + b', "record_shapes": [%s]}' % (b"1, " * 9999),
    "a long event": in_the_middle(PLAIN, b'  {"ph": "i", "name": "%s"},\n' % (b"x" * 30_000)),
    "absolute stamps": as_document(
        [{**event, "ts": event["ts"] + 1_700_000_000_000_000} for event in events(300)]
    ),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_helpers_change_nothing(
    tmp_path: Path, name: str, packed: bool, joined: list[Reply]
) -> None:
    path = tmp_path / ("t.json.gz" if packed else "t.json")
    path.write_bytes(gzip.compress(CASES[name]) if packed else CASES[name])
    alone, helped = both(path, workers=2 + packed)
    assert asdict(helped) == asdict(alone)
    assert sum(reply.taken for reply in joined) > 2
    assert alone.health.kernels
    assert no_child_is_left()


@pytest.mark.parametrize("capture", KINETO)
def test_helpers_change_nothing_of_captures(
    capture: str, monkeypatch: pytest.MonkeyPatch, joined: list[Reply]
) -> None:
    monkeypatch.setattr(crew, "SLOT_SIZE", 16 * BLOCK)
    for path in sorted((ROOT / capture).rglob("rank?.json.gz"))[:2]:
        alone, helped = both(path, layers="layers" in capture, workers=3)
        assert asdict(helped) == asdict(alone)
    assert joined


@given(data=st.data(), workers=st.integers(1, 4), block=st.sampled_from([64, 700]))
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_helpers_change_nothing_of_any_trace(
    data: st.DataObject, workers: int, block: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # ascending times, as in a sound trace, or any order at all
    found = data.draw(st.lists(some_events(0), min_size=20, max_size=80))
    if data.draw(st.booleans()):
        found.sort(key=lambda event: float(event["ts"].strip("@")))
    path = tmp_path_factory.getbasetemp() / "any.json"
    text = as_document(found).decode().replace('"@', "").replace('@"', "")
    path.write_bytes(text.encode()[: data.draw(st.sampled_from([None, -200]))])
    alone = read_trace(path, block_size=block)
    helped = read_trace(path, block_size=block, workers=workers)
    assert asdict(helped) == asdict(alone)


@given(
    bounds=st.lists(st.integers(1, 1500), min_size=1, max_size=6, unique=True),
    size=st.integers(90, 400),
)
def test_stretches_of_a_file_meet_wherever_they_are_cut(
    bounds: list[int], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = b",\n".join(
        b'{"ph": "X", "ts": %d, "name": "%s"}' % (n, b"x" * (n % 60)) for n in range(40)
    )
    path = tmp_path_factory.getbasetemp() / "stretches.json"
    path.write_bytes(text)
    with path.open("rb") as file:
        ends = [0, *sorted(bounds), len(text)]
        regions = [
            Region(Extent(file.fileno(), b'},\n{"ph":', size, start, end, is_exact=not start))
            for start, end in pairwise(ends)
        ]
        found = [json.loads(bytes(block)) for region in regions for block in region]
    # The last event has no boundary after it, and is for whoever reads the end of the list.
    assert [event["ts"] for block in found for event in block] == list(range(39))
    assert all(region.is_whole for region in regions[:-1])
    assert [region.taken for region in regions[:-1]] == [region.begin for region in regions[1:]]


def test_a_file_that_is_cut_while_it_is_read_costs_only_what_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(PLAIN)
    usual = crew.Crew.__init__

    def begin(*args: Any) -> None:
        os.truncate(path, len(PLAIN) // 2)
        usual(*args)

    monkeypatch.setattr(crew.Crew, "__init__", begin)
    helped = read_trace(path, block_size=BLOCK, workers=2)
    assert helped.health.truncated
    assert asdict(helped) == asdict(read_trace(path, block_size=BLOCK))


RANGES = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 25), st.integers(0, 1), st.integers(0, 3)),
    max_size=40,
)


@given(ranges=RANGES, launches=st.lists(st.integers(0, 90), max_size=8), parts=st.integers(2, 5))
@example(ranges=[(0, 1, 0, 0), (2, 0, 0, 1), (1, 0, 0, 1)], launches=[1], parts=2)
@pytest.mark.parametrize("in_order", [False, True])
def test_parts_nest_as_the_whole_does(
    in_order: bool, ranges: list[tuple[int, int, int, int]], launches: list[int], parts: int
) -> None:
    columns = Columns()
    if in_order:  # as Kineto writes them: operators by their start, annotations after them
        ranges = sorted(ranges, key=lambda found: (found[3] == 0, found[0]))
    for row, (begin, length, thread, kind) in enumerate(ranges):
        columns.ops.start.append(begin)
        columns.ops.end.append(begin + length)
        columns.ops.thread.append(thread)
        columns.ops.name.append(0)
        columns.ops.inputs.append(kind - 1 if kind == 0 else 0)
        if kind == 0:
            columns.annotations.append(row)
    columns.calls.start.extend(sorted(launches))
    instants = {0: list(range(len(launches)))}

    alone = Team(columns, 1)
    whole = enclosing.nest(columns, {0, 1}, instants, alone, 1)
    assert enclosing.nest(columns, {0, 1}, instants, alone, parts) == whole


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("blocks", [4, 5, 9])
def test_a_helper_that_is_killed_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, packed: bool
) -> None:
    here, usual, decoded = os.getpid(), Collector.block, []

    def block(self: Collector, data: bytes | memoryview) -> bool:
        decoded.append(len(data))
        if os.getpid() != here and len(decoded) == blocks:
            os.kill(os.getpid(), signal.SIGKILL)
        return usual(self, data)

    path = tmp_path / ("t.json.gz" if packed else "t.json")
    path.write_bytes(gzip.compress(PLAIN) if packed else PLAIN)
    alone = read_trace(path, block_size=BLOCK)
    monkeypatch.setattr(Collector, "block", block)
    assert asdict(read_trace(path, block_size=BLOCK, workers=2)) == asdict(alone)
    assert no_child_is_left()


def test_a_system_that_starts_no_further_process_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(PLAIN)
    alone = read_trace(path, block_size=BLOCK)

    def fork() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    assert asdict(read_trace(path, block_size=BLOCK, workers=2)) == asdict(alone)


def test_an_interrupt_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def join(*_: Any) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "t.json"
    path.write_bytes(PLAIN)
    monkeypatch.setattr(Collector, "join", join)
    with pytest.raises(KeyboardInterrupt):
        read_trace(path, block_size=BLOCK, workers=3)
    assert no_child_is_left()


def test_a_reader_that_waits_imports_what_it_will_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported, told = os.pipe()
    here, usual, waited = os.getpid(), Collector.block, []
    (tmp_path / "needed_later.py").write_text(f"import os\nos.write({told}, b'x' * 100)\n")

    def block(self: Collector, data: bytes | memoryview) -> bool:
        if os.getpid() != here and not waited:  # no helper is done before it is imported
            waited.append(select.select([imported], [], [], 10))
        return usual(self, data)

    path = tmp_path / "t.json"
    path.write_bytes(PLAIN)
    alone = read_trace(path, block_size=BLOCK)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Collector, "block", block)
    waiting.plan(["needed_later"])
    assert asdict(read_trace(path, block_size=BLOCK, workers=2)) == asdict(alone)
    assert sys.modules.pop("needed_later")
    os.close(imported)
    os.close(told)


def test_what_judges_is_not_imported_before_a_trace_is_read() -> None:
    program = (
        "import sys; from fp8verify.analysis import inspection\n"
        "print(*sys.modules.keys() & set(inspection._AFTER_READING))\n"
        "from importlib import import_module; [*map(import_module, inspection._AFTER_READING)]"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == []


def test_what_a_copy_of_the_process_cannot_do_is_done_here() -> None:
    here = os.getpid()

    def killed() -> bool:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    def starved() -> bool:
        if os.getpid() != here:
            raise MemoryError
        return False

    assert call_all([killed, starved, lambda: os.getpid() != here], workers=3) == [False] * 3
    assert call_all([lambda: os.getpid() != here] * 3, workers=3) == [True, True, False]
    assert no_child_is_left()


def _added(shared: list[int], job: int, part: int) -> tuple[int, int]:
    return sum(shared) + job + part, os.getpid()


def test_copies_stay_for_the_next_job() -> None:
    shared = [1, 2]
    with Team(shared, 3) as team:
        first = team.map(_added, 10, [100, 200, 300])
        shared[:] = [5]  # a copy has it as it was
        second = team.map(_added, 20, [100, 200, 300])
    assert [found for found, _ in first] == [113, 213, 313]
    assert [found for found, _ in second] == [123, 223, 325]
    copies = {process for _, process in (*first, *second)} - {os.getpid()}
    assert 1 <= len(copies) <= 2
    assert no_child_is_left()


def test_the_command_gives_the_same_bytes() -> None:
    program = (
        "import sys; from fp8verify.cli import main; from fp8verify.analysis.fleet import ranks\n"
        "from fp8verify.trace.kineto import crew, helpers; usual = crew.Crew.__init__\n"
        "def begin(*args): print('a crew', file=sys.stderr); usual(*args)\n"
        "crew.Crew.__init__, ranks._WORTH_HELPERS, helpers.WARM_UP = begin, 0, 2; main()"
    )
    command = [sys.executable, "-c", program, "inspect", str(CAPTURE)]
    options = ["--exit-zero", "--format", "json", "--workers"]
    alone, helped = (
        subprocess.run([*command, *options, workers], capture_output=True, check=True)
        for workers in ("1", "3")
    )
    assert helped.stdout == alone.stdout
    assert (alone.stderr, helped.stderr) == (b"", b"a crew\n")


def test_pieces_read_ahead_are_those_of_the_stream() -> None:
    def pieces() -> Iterator[bytes]:
        for number in range(300):
            yield b"%06d" % number * 4000
        raise InputError("It is a bomb.", "Unpack it yourself.")

    ahead = Ahead(pieces())
    found = [next(ahead) for _ in range(100)]
    rest = ahead.stop()
    assert not any(thread.name.startswith("Thread") for thread in threading.enumerate()[1:])
    with pytest.raises(InputError):
        found.extend(rest)
    assert [piece[:6] for piece in found] == [b"%06d" % number for number in range(300)]

    ahead, found = Ahead(pieces()), []
    with pytest.raises(InputError):
        found.extend(ahead)
    assert len(found) == 300


def test_a_process_with_other_threads_is_not_forked() -> None:
    program = (
        "import threading, time; from fp8verify.trace.forking import may_fork\n"
        "print(may_fork())\n"
        "threading.Thread(target=time.sleep, args=(1,), daemon=True).start()\n"
        "print(may_fork())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == [b"True", b"False"]
