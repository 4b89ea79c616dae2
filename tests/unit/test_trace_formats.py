"""The seam between formats: who reads a file, and what columns alone give."""

from __future__ import annotations

import gzip
from array import array
from typing import TYPE_CHECKING

import pytest

from fp8verify.annotate import annotate
from fp8verify.errors import InputError
from fp8verify.terms import OpContext
from fp8verify.trace import Launch, Trace, find_traces, read_open_trace, read_trace, readers
from fp8verify.trace.build import fill
from fp8verify.trace.columns import Columns, Interner
from fp8verify.trace.source import Glance
from fp8verify.trace.steps import mark_profiler_steps
from fp8verify.trace.tables import Step
from tests.unit.trace_events import as_document, kernel_names, sample

if TYPE_CHECKING:
    from pathlib import Path

    from fp8verify.trace.source import Reading, Source

MAGIC = b"RANGES 1\n"


def is_ranges(head: bytes, _: str) -> bool:
    return head.startswith(MAGIC)


# A source that records ranges with shapes and calls, and neither types nor operator ids; this
# module reads it.
RANGES = readers.Format(__name__, (".ranges",), is_ranges)


def glance(source: Source) -> Glance:
    return Glance(is_trace=source.head.startswith(MAGIC), rank=3)


def read(source: Source, how: Reading) -> Trace:
    assert b"".join(source).startswith(MAGIC)
    return ranges_trace(source.name, layers=how.layers)


def ranges() -> Columns:
    """Two ranges around one call, inside of a step that is called like none of torch's."""
    columns = Columns(base_ns=1_000_000)
    columns.inputs = Interner({b"\0\0": 0, b"\0[[8, 16], [16, 4]]\0": 1})
    for name, start, end, inputs in (
        ("train_step", 0, 1000, -1),
        ("MmBackward0", 100, 300, 0),
        ("aten::mm", 110, 200, 1),
    ):
        ops = columns.ops
        ops.name.append(columns.op_names[name])
        ops.start.append(start)
        ops.end.append(end)
        ops.inputs.append(inputs)
        ops.op_id.append(-1)
        ops.thread.append(columns.threads["main"])
    columns.annotations = array("i", [0])
    columns.steps, columns.step_names = [Step(7, 0, 1000)], {columns.op_names["train_step"]}
    columns.first_start, columns.last_end = 0, 1000
    calls = columns.calls
    calls.correlation.append(5)
    calls.start.append(150)
    calls.thread.append(columns.threads["main"])
    kernels = columns.kernels
    for correlation, duration in ((5, 40), (6, 10**9)):
        kernels.name.append(columns.names["gemm"])
        kernels.start_ns.append(400)
        kernels.duration_ns.append(duration)
        columns.correlations.append(correlation)
        for column in (columns.op_ids, kernels.device, kernels.stream, kernels.collective):
            column.append(-1)
    return columns


def ranges_trace(name: str = "t", *, layers: bool = False) -> Trace:
    trace = Trace(source=name, rank=3)
    fill(trace, ranges(), layers=layers)
    return trace


@pytest.fixture
def second_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "FORMATS", (RANGES, *readers.FORMATS))


def test_columns_without_types_ids_or_kineto_give_operators_and_steps() -> None:
    trace = Trace(source="t")
    fill(trace, ranges(), layers=True)
    [context] = trace.ops
    assert context == OpContext(
        name="aten::mm", dims=((8, 16), (16, 4)), parents=("MmBackward0",), backward=True
    )
    assert list(trace.kernels.op) == [0, -1]
    assert list(trace.kernels.launch) == [Launch.OP, Launch.NONE]
    assert trace.steps == [Step(7, 1_000_000, 1_001_000)]
    assert list(trace.kernels.step) == [0, -1]
    assert list(trace.kernels.layer) == [-1, -1]
    assert list(trace.kernels.start_ns) == [1_000_400, 1_000_400]


def test_a_kernel_longer_than_the_trace_has_no_duration() -> None:
    trace = Trace(source="t")
    fill(trace, ranges())
    assert list(trace.kernels.duration_ns) == [40, 0]
    assert trace.health.bad_durations == 1


def test_steps_are_the_longest_range_of_each_number() -> None:
    columns = Columns()
    for name, start, end in (("ProfilerStep#2", 5, 9), ("ProfilerStep#2", 0, 8), ("x", 1, 2)):
        columns.ops.name.append(columns.op_names[name])
        columns.ops.start.append(start)
        columns.ops.end.append(end)
    mark_profiler_steps(columns)
    assert columns.steps == [Step(2, 0, 8)]
    assert columns.step_names == {0}


@pytest.mark.usefixtures("second_format")
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_the_first_bytes_choose_the_reader(tmp_path: Path, pack: type[bytes]) -> None:
    path = tmp_path / "run.ranges"
    path.write_bytes(pack(MAGIC + b"..."))
    assert read_trace(path).steps[0].number == 7
    with path.open("rb") as file:
        assert read_open_trace(file, "pipe").source == "pipe"
    kineto = tmp_path / "named_wrongly.ranges"
    kineto.write_bytes(pack(as_document(sample())))
    assert kernel_names(read_trace(kineto)) == ["gemm_a", "gemm_b", "gemm_c"]


@pytest.mark.usefixtures("second_format")
def test_a_folder_holds_the_traces_of_every_format(tmp_path: Path) -> None:
    (tmp_path / "a.ranges").write_bytes(MAGIC)
    (tmp_path / "b.json").write_bytes(as_document(sample()))
    (tmp_path / "c.txt").write_bytes(MAGIC)
    assert [(file.name, file.rank) for file in find_traces(tmp_path)] == [
        ("b.json", 1),
        ("a.ranges", 3),
    ]


@pytest.mark.usefixtures("second_format")
def test_traces_of_other_formats_are_not_annotated(tmp_path: Path) -> None:
    path, out = tmp_path / "a.ranges", tmp_path / "out.json"
    path.write_bytes(MAGIC)
    with pytest.raises(InputError, match="no trace of torch"):
        annotate(path, out)
    assert not out.exists()


def test_what_no_probe_knows_is_not_json(tmp_path: Path) -> None:
    path = tmp_path / "a.ranges"
    path.write_bytes(MAGIC)
    with pytest.raises(InputError, match="is not JSON"):
        read_trace(path)
