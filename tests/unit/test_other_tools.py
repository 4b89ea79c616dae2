"""Databases and tables that are damaged, foreign, hostile or odd; steps and ranges of NVTX."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from fp8verify import Report, Verdict, inspect
from fp8verify.errors import InputError
from fp8verify.trace import find_traces, nsys, read_open_trace, read_trace
from fp8verify.trace.columns import Inputs
from fp8verify.trace.rows import parse_range
from tests.hand_built import BF16_KERNEL, FP8_GRADIENT_KERNEL, TraceBuilder
from tests.other_tools import (
    PROCESS,
    SECRET,
    WRITERS,
    Export,
    Recording,
    write_nsys,
    write_rocprof_csv,
)

THREAD = PROCESS + 1


def recording(*names: str, kernel: str = FP8_GRADIENT_KERNEL) -> Recording:
    """Ranges of these names, each around two launches of a kernel 100 ns later."""
    found = Recording(gpu="NVIDIA H200")
    for place, name in enumerate(names):
        begin = 1000 * place
        found.ranges.append((name, begin, begin + 900, THREAD))
        for launch in (1, 2):
            number, start = 2 * place + launch, begin + 100 * launch
            found.calls.append((number, start, start + 5, THREAD))
            found.kernels.append((kernel, start + 100, start + 150, 0, 7, number))
    return found


def steps_of(tmp_path: Path, recorded: Recording) -> list[int]:
    trace = read_trace(write_nsys(recorded, tmp_path))
    numbers = [step.number for step in trace.steps]
    return [numbers[step] if step >= 0 else -1 for step in trace.kernels.step]


# -- steps and names ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (("iteration 7", "iteration 8"), [7, 7, 8, 8]),
        (("train_step", "train_step"), [1, 1, 2, 2]),
        (("ProfilerStep#4, op_id = 9", "step 1"), [4, 4, -1, -1]),
        (("forward", "backward", "optimizer_step"), [-1] * 6),
    ],
)
def test_steps_are_ranges_called_so(
    tmp_path: Path, names: tuple[str, ...], steps: list[int]
) -> None:
    assert steps_of(tmp_path, recording(*names)) == steps


def test_a_range_that_one_thread_begins_and_another_ends_may_be_a_step(
    tmp_path: Path,
) -> None:
    export = Export(tmp_path / "run.sqlite").add(recording("x::y", "x::y"))
    for place in (0, 1):
        row = (f"step {place + 3}", 1000 * place, 1000 * place + 950, THREAD)
        export.run("INSERT INTO NVTX_EVENTS VALUES (?, NULL, ?, ?, ?, 60, 0)", *row)
    export.close()
    trace = read_trace(find_traces(tmp_path)[0].path)
    assert [step.number for step in trace.steps] == [3, 4]


@pytest.mark.parametrize(
    ("text", "name", "is_node", "sequence", "dims"),
    [
        ("aten::mm, seq = 4, op_id = 9, sizes = [[8, 16], [16, 4], []], input_op_ids = [(8,0)]",
         "aten::mm", False, 4, ((8, 16), (16, 4), ())),
        ("aten::cat, op_id = 2, sizes = [[[2, 3], [4, 3]], []]", "aten::cat", False, -1, ((), ())),
        ("MmBackward0, seq = 4, op_id = 30", "MmBackward0", True, 4, ()),
        ("autograd::engine::evaluate_function: MmBackward0, seq = 4",
         "autograd::engine::evaluate_function: MmBackward0", True, 4, ()),
        ("Optimizer.step#AdamW.step, op_id = 5", "Optimizer.step#AdamW.step", None, -1, ()),
        ("forward", "forward", None, -1, ()),
        ("aten::mm", "aten::mm", False, -1, ()),
        ("aten::mm, sizes = [[8, 16", "aten::mm", False, -1, ()),
    ],
)  # fmt: skip
def test_ranges_of_torch_say_operator_sizes_and_sequence(
    text: str, name: str, is_node: bool | None, sequence: int, dims: tuple[object, ...]
) -> None:
    found = parse_range(text)
    assert (found.name, found.sequence) == (name, sequence)
    if found.inputs is None:
        assert is_node is None
    else:
        inputs = Inputs(found.inputs)
        assert (inputs.forward_thread is not None, inputs.dims) == (is_node, dims)


# -- what is lost -------------------------------------------------------------------------------


def test_graphs_without_their_kernels_prove_nothing(tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite").add(
        recording("step", "step", kernel=BF16_KERNEL)
    )
    export.run(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end, deviceId, globalPid)"
    )
    row = (0, 5_000_000, PROCESS)
    export.run(
        "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?, ?, 0, ?)", *row
    ).close()
    found = inspect(tmp_path)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "--cuda-graph-trace=node" in str(found.ranks[0].health.notes)


# Texts of nsys 2024.2.3's own libraries; severity 1 is information, 2 a warning.
LOSSES = [
    "CUPTI dropped 7 records. Some CUPTI events might be missing.",
    "Couldn't allocate CUPTI buffers 2 times.Some CUPTI events might be missing.",
    "CUPTI buffer allocation limit of 1048576 bytes is exceeded.",
    "Number of incomplete CUPTI events dropped: 12. Incomplete events appear when GPU timestamp",
    "3 CUPTI events were detected incomplete while processing a buffer",
    "8 GPU events were discarded as their timestamps could not be converted.",
    "Connection to session is lost, stop recording.",
]
NO_LOSSES = [
    "Not all CUDA events might have been collected.",
    "Not all NVTX events might have been collected.",
    "No CUDA events collected. Does the process use CUDA?",
    "CUDA profiling might have not been started correctly.",
    "Number of CUPTI events produced: \t9054, CUPTI buffers: 50.",
    "Number of CUPTI events produced: \t9054, CUPTI buffers: 49 of 50. Some CUPTI events might",
    "Number of incomplete CUPTI events dropped: 0. Incomplete events appear when",
    "Some events (\t7) were lost. Certain charts (including CPU utilization) on the timeline may",
    "Sampling events were lost in the interval 1 - 2 (1) ns.",
    "4 NVTX annotations were discarded because they contained at least one invalid string handle.",
    "Installed CUDA driver version (13.0) is not supported by this build of Nsight Systems.",
]


def remarked(
    folder: Path, export: Export, *texts: str, process: int = PROCESS
) -> Report:
    """Inspect an export in which the profiler remarked something of a process."""
    export.run("CREATE TABLE DIAGNOSTIC_EVENT (severity, text, globalPid)")
    for text in texts:
        export.run("INSERT INTO DIAGNOSTIC_EVENT VALUES (2, ?, ?)", text, process)
    export.close()
    return inspect(folder / "run.sqlite")


@pytest.mark.parametrize("text", LOSSES + NO_LOSSES)
def test_lost_events_prove_nothing(tmp_path: Path, text: str) -> None:
    export = Export(tmp_path / "run.sqlite").add(
        recording("step", "step", kernel=BF16_KERNEL)
    )
    found = remarked(tmp_path, export, f"{text} {SECRET}")
    lost = text in LOSSES
    assert found.verdict is (Verdict.INCONCLUSIVE if lost else Verdict.INACTIVE)
    notes = ["Nsight Systems says that events were lost"] if lost else []
    assert list(found.ranks[0].health.notes) == notes
    assert SECRET not in found.to_json()


def test_what_another_process_lost_is_not_this_ones(tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite").add(
        recording("step", "step", kernel=BF16_KERNEL)
    )
    assert (
        remarked(tmp_path, export, LOSSES[0], process=9 << 24).verdict
        is Verdict.INACTIVE
    )


def without_a_kernel(
    folder: Path,
    number: int,
    *,
    captures: tuple[tuple[int, int], ...] = (),
    result: int = 0,
) -> Export:
    """Four steps of which one kernel was not recorded, and captures of graphs at these times."""
    recorded = recording(*["step"] * 4, kernel=BF16_KERNEL)
    recorded.kernels = [kernel for kernel in recorded.kernels if kernel[5] != number]
    export = Export(folder / "run.sqlite").add(recorded)
    rename = "ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME ADD COLUMN"
    export.run(f"{rename} nameId DEFAULT 901").run(
        f"{rename} returnValue DEFAULT {result}"
    )
    export.run("INSERT INTO StringIds VALUES (901, 'cudaLaunchKernelExC_v11060')")
    for place, verb in ((902, "Begin"), (903, "End")):
        export.run(
            f"INSERT INTO StringIds VALUES ({place}, 'cudaStream{verb}Capture_v10000')"
        )
    for begin, end in captures:
        for at, name in ((begin, 902), (end, 903)):
            row = (at, at + 1, THREAD, name)
            export.run(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (0, ?, ?, ?, ?, 0)",
                *row,
            )
    return export


def test_a_launch_without_its_kernel_is_a_loss(tmp_path: Path) -> None:
    found = remarked(tmp_path, without_a_kernel(tmp_path, 3))
    assert found.verdict is Verdict.INCONCLUSIVE
    [note] = found.ranks[0].health.notes
    assert note == "1 kernels were launched that are not in the trace"


def test_what_was_launched_last_may_have_waited_for_the_end(tmp_path: Path) -> None:
    last = 8
    assert (
        remarked(tmp_path, without_a_kernel(tmp_path, last)).verdict is Verdict.INACTIVE
    )
    (tmp_path / "run.sqlite").unlink()
    found = remarked(tmp_path, without_a_kernel(tmp_path, last), NO_LOSSES[5])
    assert found.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("captures", "result", "verdict"),
    [
        (
            ((1090, 1210),),
            0,
            Verdict.INACTIVE,
        ),  # captured into a graph: it does not run
        (((2090, 2210),), 0, Verdict.INCONCLUSIVE),
        (((0, 50), (2090, 2210)), 0, Verdict.INCONCLUSIVE),
        (((0, 50), (1000, 1500), (1090, 1210)), 0, Verdict.INACTIVE),
        ((), 1, Verdict.INACTIVE),  # refused by CUDA
    ],
)
def test_what_was_never_to_run_is_not_missed(
    tmp_path: Path, captures: tuple[tuple[int, int], ...], result: int, verdict: Verdict
) -> None:
    export = without_a_kernel(tmp_path, 3, captures=captures, result=result)
    assert remarked(tmp_path, export).verdict is verdict


def test_rows_that_hold_no_numbers_are_counted(tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite").add(recording("step", "step"))
    export.run("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'x' WHERE rowid = 2")
    export.run(
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = 999 WHERE rowid = 3"
    ).close()
    health = read_trace(tmp_path / "run.sqlite").health
    assert (health.kernels, health.skipped_events) == (
        3,
        1,
    )  # the short name of the third is there
    assert [one.code for one in inspect(tmp_path).findings][:1] == ["damaged-trace"]


def test_a_process_with_a_hundredth_of_the_kernels_is_a_rank(tmp_path: Path) -> None:
    other = 9 << 24
    for kernels, ranks in ((100, [PROCESS, other]), (101, [PROCESS])):
        path = tmp_path / f"{kernels}.sqlite"
        export = Export(path).add(Recording(kernels=[("k", 1, 5, 0, 7, 1)] * kernels))
        export.add(Recording(kernels=[("k", 1, 5, 1, 7, 1)]), process=other).close()
        assert nsys.Export(path).processes() == ranks


def test_without_streams_queues_tell_kernels_apart(tmp_path: Path) -> None:
    path = write_rocprof_csv(recording("step"), tmp_path)
    assert set(read_trace(path).kernels.stream) == {7}
    path.write_text(path.read_text().replace("Stream_Id", "Other"))
    assert set(read_trace(path).kernels.stream) == {1}


def test_a_cut_table_is_cut(tmp_path: Path) -> None:
    path = write_rocprof_csv(recording("step", "step"), tmp_path)
    path.write_bytes(path.read_bytes()[:-4])
    health = read_trace(path).health
    assert (health.truncated, health.kernels) == (True, 4)
    path.write_bytes(path.read_bytes()[:-30])
    health = read_trace(path).health
    assert (health.truncated, health.kernels, health.skipped_events) == (True, 3, 1)


# -- errors -------------------------------------------------------------------------------------


def refused(path: Path) -> str:
    with pytest.raises(InputError) as error:
        read_trace(path)
    fact, hint = error.value.fact, error.value.hint
    assert path.name in fact
    assert hint
    assert "\n" not in fact + hint
    return fact


def test_databases_that_are_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    path.write_bytes(b"")
    assert "is empty" in refused(path)
    path.unlink()
    sqlite3.connect(path).executescript("CREATE TABLE photos (id); VACUUM").close()
    assert "no trace" in refused(path)


@pytest.mark.parametrize(
    "damage",
    [
        *(
            lambda data, part=part: data[: int(part * len(data))]
            for part in (0.1, 0.5, 0.9)
        ),
        lambda data: data[:16] + b"\xff" * 5000,
        lambda data: data.replace(b"CREATE TABLE", b"CREATE\xc3\xffABLE"),
    ],
)
def test_damaged_databases_are_refused(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = write_nsys(recording(*["step"] * 200), tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    assert "cannot be read as a SQLite file" in refused(path)


def test_views_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    export = Export(path)
    export.run(
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(start) AS "
        "(SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start, start AS end FROM n"
    ).close()
    assert read_trace(path).health.kernels == 0


# -- what is never opened -----------------------------------------------------------------------


@pytest.mark.parametrize("form", WRITERS)
def test_the_environment_appears_nowhere(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    connect = sqlite3.connect

    def spied(*args: object, **options: object) -> sqlite3.Connection:
        found: sqlite3.Connection = connect(*args, **options)  # type: ignore[call-overload]
        found.set_trace_callback(asked.append)
        return found

    path = WRITERS[form](recording("step 1", "step 2"), tmp_path)
    assert SECRET.encode() in path.read_bytes() or form == "rocprof csv"
    monkeypatch.setattr(sqlite3, "connect", spied)
    report = inspect(path)
    assert report.gemm.kernels["fp8"]
    assert SECRET not in report.to_json()
    text = " ".join(asked)
    assert not any(name in text for name in ("META_DATA_CAPTURE", "SYSTEM_ENV"))


# -- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_packed_databases_are_copied_first(tmp_path: Path, ending: str) -> None:
    path = write_nsys(recording("step 3"), tmp_path)
    if ending:
        packed = path.with_name(path.name + ending)
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        path = packed
    assert [step.number for step in read_trace(path).steps] == [3]
    assert [file.path for file in find_traces(tmp_path)] == [path]


def test_the_first_bytes_choose_the_reader_and_not_the_name(tmp_path: Path) -> None:
    kineto = (
        TraceBuilder().step(5).linear(64, 32, 16, fp8=True).write(tmp_path / "a.json")
    )
    named = {"b.sqlite": kineto, "c.json": write_nsys(recording("step 3"), tmp_path)}
    for name, source in named.items():
        path = source.rename(tmp_path / name)
        with path.open("rb") as file:
            steps = [read_trace(path).steps, read_open_trace(file, "pipe").steps]
        assert [one.number for found in steps for one in found] == [
            5 if name[0] == "b" else 3
        ] * 2
