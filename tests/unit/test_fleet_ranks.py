"""The traces of many ranks: read anywhere, joined by rank, none lost silently."""

from __future__ import annotations

import gzip
import io
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from fp8verify import Verdict, inspect
from fp8verify.capture.schema import NamingRecord
from fp8verify.errors import InputError
from fp8verify.pipeline.fleet import (
    _WORTH_A_WORKER,
    RankJob,
    _anywhere,
    _worth,
    gather_ranks,
)
from fp8verify.report.forms import render, to_json
from fp8verify.report.tables import shown_findings
from fp8verify.trace import TraceFile, find_traces
from tests.hand_built import TraceBuilder, found, present


def write_ranks(folder: Path, *, fp8: str) -> Path:
    """Write a trace for each letter of `fp8`: y ran FP8, n did not, x is damaged."""
    for rank, kind in enumerate(fp8):
        path = rank_of(rank, len(fp8), kind).write(folder / f"rank{rank}.json")
        if kind == "x":
            path.write_text("what a full disk leaves")
    return folder


def rank_of(rank: int, world: int, kind: str) -> TraceBuilder:
    build = TraceBuilder(rank=rank, world=world)
    for step in (1, 2):
        build.step(step).linear(64, 32, 16, fp8=kind == "y")
    return build


def test_every_way_to_read_gives_the_same_report(tmp_path: Path) -> None:
    folder = write_ranks(tmp_path, fp8="yynyx")
    plain = to_json(inspect(folder))
    assert to_json(inspect(folder, workers=2)) == plain
    with ThreadPoolExecutor(3) as pool:
        threads = inspect(folder, executor=pool)
    assert to_json(threads) == plain
    assert to_json(inspect(tmp_path / "rank*.json")) == plain
    assert to_json(inspect(sorted(tmp_path.glob("rank*.json"), reverse=True))) == plain


@pytest.mark.parametrize("unique_ids", [True, False])
def test_ranks_joined_in_one_file_are_told_apart(
    tmp_path: Path, *, unique_ids: bool
) -> None:
    """Perfetto's users join files by their events; ids of operators and launches then collide."""
    joined: list[dict[str, Any]] = []
    for rank, kind in enumerate("yyn"):
        document = rank_of(rank, 3, kind).document()
        for event in document["traceEvents"][:-1]:
            args = event["args"]
            event["pid"] = rank if event["cat"] == "kernel" else 4000 + rank
            args |= {"device": rank} if "device" in args else {}
            for name in {"External id", "correlation"} & args.keys():
                args[name] += 10_000 * rank * unique_ids
        joined += document["traceEvents"]
    path = tmp_path / "joined.json"
    path.write_text(json.dumps({**document, "traceEvents": joined}))
    report = inspect(path)
    assert report.reason.startswith("no FP8 GEMM ran on rank 2; on ranks 0-1,")
    assert [rank.source for rank in report.ranks] == [
        f"joined.json (process {number})" for number in (4000, 4001, 4002)
    ]


UNREADABLE = (
    "rank 2: its trace cannot be read (rank2.json is no trace: it begins with “what a full disk "
    "leaves”, and is in no known form)"
)


@pytest.mark.parametrize(
    ("fp8", "verdict", "why"),
    [
        (
            "yyx",
            Verdict.INCONCLUSIVE,
            UNREADABLE,
        ),
        (
            "nnx",
            Verdict.INCONCLUSIVE,
            UNREADABLE,
        ),
        ("ynx", Verdict.PARTIAL, "no FP8 GEMM ran on rank 1; on rank 0, 6 of 6 did"),
        ("yn", Verdict.PARTIAL, "no FP8 GEMM ran on rank 1; on rank 0, 6 of 6 did"),
    ],
)
def test_an_unreadable_rank_is_named_and_decides_nothing(
    fp8: str, verdict: Verdict, why: str, tmp_path: Path
) -> None:
    report = inspect(write_ranks(tmp_path, fp8=fp8))
    assert (report.verdict, report.reason) == (verdict, why)
    assert [rank.rank for rank in report.ranks] == list(range(len(fp8)))
    assert any(
        f.message.startswith("rank2.json cannot be read") for f in report.findings
    ) == ("x" in fp8)
    assert sum(report.gemm.kernels.values()) == 6 * (len(fp8) - fp8.count("x"))


@pytest.mark.parametrize(
    "damage",
    [b"", b"\x1f\x8b\x08", b'{"schemaVersion": 1, "trac', gzip.compress(b"", mtime=0)],
)
def test_damage_before_the_events_hides_no_rank(damage: bytes, tmp_path: Path) -> None:
    write_ranks(tmp_path, fp8="yy")
    (tmp_path / "rank2.json").write_bytes(damage)
    report = inspect(tmp_path)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "rank 2" in report.reason


def test_two_traces_of_one_rank_found_late_are_both_named(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        document = TraceBuilder().linear(8, 8, 8, fp8=True).document()
        document["distributedInfo"] = {
            "rank": 5
        }  # behind the events, unseen by a first look
        (tmp_path / name).write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"rank 5: a\.json and b\.json"):
        inspect(tmp_path)


def write_cycle(
    folder: Path, name: str, begin: float, *, process: int = 1, rank: int | None = None
) -> None:
    """Write a trace of a process whose window begins at a time in µs."""
    document = TraceBuilder(rank=rank).step(1).linear(64, 32, 16, fp8=True).document()
    for event in document["traceEvents"]:
        event["ts"] += begin
        event["pid"] = process if event.get("cat") != "kernel" else event["pid"]
    (folder / name).write_text(json.dumps(document))


@pytest.mark.parametrize(
    "names",
    [
        ("host_17.1700000000.pt.trace.json", "host_17.1700000009.pt.trace.json"),
        ("step_100.json", "step_200.json"),
        ("rank3_a.json", "rank3_b.json"),
    ],
)
@pytest.mark.parametrize("rank", [None, 3])
def test_cycles_of_one_process_are_windows_of_one_rank(
    names: tuple[str, str], rank: int | None, tmp_path: Path
) -> None:
    write_cycle(tmp_path, names[0], 9000, rank=rank)
    write_cycle(tmp_path, names[1], 1000, rank=rank)
    report = inspect(tmp_path)
    assert [one.rank for one in report.ranks] == [
        3 if "rank3" in names[0] else rank or 0
    ]
    assert report.gemm.kernels["fp8"] == 6
    assert report.ranks[0].source == f"{names[1]}, {names[0]}"


def test_recordings_without_steps_are_parts_of_their_own(tmp_path: Path) -> None:
    for begin, fp8 in ((1000, True), (9000, False)):
        build = TraceBuilder(rank=0)
        for _ in range(4):
            build.linear(64, 32, 16, fp8=fp8)
        document = build.document()
        for event in document["traceEvents"]:
            event["ts"] += begin
        (tmp_path / f"{begin}.json").write_text(json.dumps(document))
    report = inspect(tmp_path)
    assert [one.code for one in report.findings if one.verdict] == ["pass-without-fp8"]
    assert "no FP8 GEMM ran in 4 of 8 micro-batches" in report.reason


@pytest.mark.parametrize(
    ("begins", "processes", "names"),
    [
        ((1000, 1000), (1, 1), ("a.json", "b.json")),
        ((1000, 9000), (1, 2), ("a.json", "b.json")),
        (
            (1000, 9000),
            (1, 1),
            tuple(f"{host}_1.1700000000.pt.trace.json" for host in "xy"),
        ),
    ],
    ids=["at the same time", "of two processes", "of two workers"],
)
def test_traces_of_other_processes_are_ranks_of_their_own(
    begins: tuple[int, int],
    processes: tuple[int, int],
    names: tuple[str, str],
    tmp_path: Path,
) -> None:
    for begin, process, name in zip(begins, processes, names, strict=True):
        write_cycle(tmp_path, name, begin, process=process)
    assert [one.rank for one in inspect(tmp_path).ranks] == [0, 1]


def test_ranks_share_what_they_have_in_common(tmp_path: Path) -> None:
    files = find_traces(write_ranks(tmp_path, fp8="yyy"))
    first, *others = gather_ranks(files, workers=2)
    for other in others:
        for mine, theirs in zip(first.gemms, other.gemms, strict=True):
            assert mine.kind is theirs.kind


def test_small_files_are_not_worth_a_worker(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("fp8verify.pipeline.fleet._cores", lambda: 4)
    files = find_traces(write_ranks(tmp_path, fp8="yy"))
    assert _worth(files) == 1
    for file in files:
        with file.path.open("ab") as out:
            out.truncate(3 * _WORTH_A_WORKER)
    assert _worth(files) == 4


def meta(folder: Path, stem: str, traces: list[str], **more: Any) -> None:
    windows = [
        {"first": 10 * i, "last": 10 * i + 1, "state": "complete", "trace": name}
        for i, name in enumerate(traces, 1)
    ]
    record = {"schema": 1, "rank": 0, "steps_seen": 99, "window": windows, **more}
    (folder / f"{stem}.meta.json").write_text(json.dumps(record))


def write_window(folder: Path, name: str, first: int, *, fp8: bool) -> None:
    build = TraceBuilder()
    for step in (first, first + 1):
        build.step(step).linear(64, 32, 16, fp8=fp8)
    (folder / name).write_bytes(gzip.compress(json.dumps(build.document()).encode()))


def test_windows_of_a_rank_are_one_rank_with_the_steps_of_all(tmp_path: Path) -> None:
    write_window(tmp_path, "rank0.json.gz", 10, fp8=True)
    write_window(tmp_path, "rank0.w2.json.gz", 20, fp8=True)
    write_window(tmp_path, "rank0-4711.json.gz", 10, fp8=True)
    meta(tmp_path, "rank0", ["rank0.json.gz", "rank0.w2.json.gz"], pid=1)
    meta(tmp_path, "rank0-4711", ["rank0-4711.json.gz"], pid=4711)
    report = inspect(tmp_path)
    [rank] = report.ranks
    assert (report.verdict, rank.rank) == (Verdict.ACTIVE, 0)
    assert [step.step for step in rank.steps] == [10, 11, 20, 21, 10, 11]
    assert all(sum(step.gemm.kernels.values()) == 3 for step in rank.steps)
    assert sum(rank.gemm.kernels.values()) == rank.health.kernels == 18
    assert rank.source == "rank0.json.gz, rank0.w2.json.gz, rank0-4711.json.gz"


def test_a_window_without_fp8_shows(tmp_path: Path) -> None:
    write_window(tmp_path, "rank0.json.gz", 10, fp8=True)
    write_window(tmp_path, "rank0.w2.json.gz", 20, fp8=False)
    meta(tmp_path, "rank0", ["rank0.json.gz", "rank0.w2.json.gz"])
    report = inspect(tmp_path)
    assert report.verdict is Verdict.PARTIAL
    (finding,) = found(report, "step-without-fp8")
    assert "20 and 21" in finding.message


def test_an_unreadable_window_keeps_the_rank_from_being_active(tmp_path: Path) -> None:
    write_window(tmp_path, "rank0.json.gz", 10, fp8=True)
    (tmp_path / "rank0.w2.json.gz").write_bytes(b"")
    meta(tmp_path, "rank0", ["rank0.json.gz", "rank0.w2.json.gz"])
    report = inspect(tmp_path)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "rank0.w2.json.gz is empty" in report.reason
    assert report.gemm.kernels["fp8"] == 6


def test_a_window_that_is_gone_is_noted(tmp_path: Path) -> None:
    write_window(tmp_path, "rank0.json.gz", 10, fp8=True)
    meta(tmp_path, "rank0", ["rank0.json.gz", "rank0.w2.json.gz"])
    notes = inspect(tmp_path).notes
    assert notes == (
        "rank0.w2.json.gz of rank 0 is not there, although the run recorded it",
    )


def test_an_unrelated_trace_of_the_rank_stays_an_error(tmp_path: Path) -> None:
    write_window(tmp_path, "rank0.json.gz", 10, fp8=True)
    write_window(tmp_path, "other-rank0.json.gz", 10, fp8=True)
    meta(tmp_path, "rank0", ["rank0.json.gz"])
    with pytest.raises(
        InputError, match=r"rank 0: rank0\.json\.gz and other-rank0\.json\.gz"
    ):
        inspect(tmp_path)


def test_the_step_that_names_layers_is_no_rank(tmp_path: Path) -> None:
    (tmp_path / "layers").mkdir()
    write_window(tmp_path / "layers", "rank0.json.gz", 10, fp8=True)
    with pytest.raises(InputError, match="has no trace"):
        find_traces(tmp_path)


def test_a_trace_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.dumps(
        TraceBuilder().linear(64, 32, 16, fp8=True).document()
    ).encode()
    for data in (document, gzip.compress(document)):
        stdin = io.TextIOWrapper(io.BytesIO(data))
        monkeypatch.setattr("sys.stdin", stdin)
        report = inspect("-")
        assert report.verdict is Verdict.ACTIVE
        assert report.ranks[0].source == "standard input"


def test_a_trace_is_read_from_a_named_pipe(tmp_path: Path) -> None:
    pipe = _pipe(tmp_path / "run7")
    data = json.dumps(TraceBuilder().linear(64, 32, 16, fp8=True).document()).encode()
    # A daemon: it waits until somebody reads.
    Thread(target=pipe.write_bytes, args=[gzip.compress(data)], daemon=True).start()
    report = inspect(pipe)
    assert report.verdict is Verdict.ACTIVE
    assert (report.name, report.ranks[0].source) == ("run7", str(pipe))


def _pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def test_a_pipe_beside_another_trace_is_told_to_become_a_file(tmp_path: Path) -> None:
    trace = TraceBuilder().linear(64, 32, 16, fp8=True).write(tmp_path / "rank0.json")
    for pipe in ("-", _pipe(tmp_path / "pipe")):
        with pytest.raises(InputError, match="is a pipe, which can be read only once"):
            inspect([trace, pipe])


def test_an_empty_path_is_not_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = TraceBuilder().linear(64, 32, 16, fp8=True).write(tmp_path / "rank0.json")
    monkeypatch.chdir(tmp_path)
    for paths, log in ((["", trace], None), ([""], None), ([trace], "")):
        with pytest.raises(InputError, match="A path is empty"):
            inspect(paths, log=log)


def test_a_folder_without_traces_beside_one_with_them_is_told(tmp_path: Path) -> None:
    trace = (
        TraceBuilder()
        .linear(64, 32, 16, fp8=True)
        .write(tmp_path / "node0" / "rank0.json")
    )
    (tmp_path / "node1").mkdir()
    report = inspect([trace.parent, tmp_path / "node1"])
    assert "node1 has no trace and was left out" in report.notes


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/dev/null", "/dev/null cannot be read: Not a directory"),
        ("-", "terminal"),
        ("nowhere/rank*.gz", r"rank\*\.gz matches no file"),
    ],
)
def test_what_is_no_trace_is_told_as_what_it_is(
    path: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    with pytest.raises(InputError, match=why):
        inspect(path)


def test_traces_of_one_name_are_told_by_their_folder(tmp_path: Path) -> None:
    for node in (0, 1):
        TraceBuilder(rank=node, world=2).linear(8, 8, 8, fp8=True).write(
            tmp_path / f"node{node}" / "trace.json"
        )
    report = inspect(tmp_path)
    assert [rank.source for rank in report.ranks] == [
        "node0/trace.json",
        "node1/trace.json",
    ]


def test_what_many_ranks_share_is_told_once(tmp_path: Path) -> None:
    report = inspect(write_ranks(tmp_path, fp8="ynnnnnn"))
    (finding,) = found(report, "rank-without-fp8")
    assert finding.message.startswith("ranks 1, 2, 3, 4, 5 and 6 ran no FP8 GEMM")
    for rank in range(5):
        path = tmp_path / f"rank{rank}.json"
        path.write_bytes(path.read_bytes()[:-4])
    report = inspect(tmp_path)
    (damaged,) = [f for f in shown_findings(report) if f.code == "damaged-trace"]
    assert damaged.ranks == (0, 1, 2, 3, 4)
    assert damaged.message == ("ranks 0-4: rank0.json is cut off (rank 0)")


def test_ranks_with_equal_shares_in_their_steps_are_a_row_a_step(
    tmp_path: Path,
) -> None:
    """The one that differs comes first; few ranks stay alone, to show which is slow."""
    for rank in range(9):
        build = TraceBuilder(rank=rank, world=9)
        for step in (5, 6):
            is_fp8 = (rank, step) != (7, 6)
            build.step(step).linear(4096, 64, 64, fp8=is_fp8)
        build.write(tmp_path / f"rank{rank}.json")
    text = render(inspect(tmp_path), "text", verbose=True)
    _, _, table = text.partition("CPU ms (profiled)")
    lines = [line.split("  ") for line in table.splitlines() if line.startswith("rank")]
    assert [line[0] for line in lines] == ["rank 7"] * 2 + ["ranks 0-6, 8"] * 2
    shares = [share for line in lines for share in line if share.endswith("%")]
    assert [share.strip() for share in shares] == ["100.0%", "0.0%", "100.0%", "100.0%"]


def test_workers_that_started_elsewhere_find_the_step_that_names_layers() -> None:
    window, step = (
        TraceFile(Path(name), 0, name) for name in ("rank0.json", "layers/rank0.json")
    )
    job = _anywhere(RankJob((window,), NamingRecord(step=4), step))
    assert job.files[0].path.is_absolute()
    assert present(job.layers).path == Path("layers/rank0.json").absolute()


# -- what is no rank ------------------------------------------------------------------------------


def write_launcher(folder: Path, name: str, **head: Any) -> None:
    """Write the trace of a process that runs nothing, such as torchrun's own."""
    naming = {
        "name": "process_name",
        "ph": "M",
        "ts": 0,
        "pid": 7,
        "args": {"name": "python"},
    }
    document = {
        "schemaVersion": 1,
        "deviceProperties": [],
        "traceEvents": [naming],
        **head,
    }
    (folder / name).write_text(json.dumps(document))


@pytest.mark.parametrize("ranks", [True, False], ids=["told", "guessed"])
def test_the_process_that_starts_the_ranks_is_none(
    tmp_path: Path, *, ranks: bool
) -> None:
    write_launcher(tmp_path, "fp8_100.json")
    for number in range(2):
        build = TraceBuilder(rank=number if ranks else None, world=2).step(1)
        build.linear(64, 32, 16, fp8=True).write(tmp_path / f"fp8_10{number + 1}.json")
    report = inspect(tmp_path)
    assert [rank.rank for rank in report.ranks] == [0, 1]
    (note,) = [note for note in report.notes if "fp8_100.json" in note]
    assert "no kernels, no operators and no rank" in note


def test_a_process_that_runs_nothing_is_judged_where_it_is_alone(
    tmp_path: Path,
) -> None:
    write_launcher(tmp_path, "a.json")
    write_launcher(tmp_path, "b.json")
    report = inspect(tmp_path)
    assert [rank.rank for rank in report.ranks] == [0, 1]
    assert report.verdict == "INCONCLUSIVE"


OPERATOR = {
    "ph": "X",
    "cat": "cpu_op",
    "name": "aten::mm",
    "pid": 7,
    "tid": 7,
    "ts": 1,
    "dur": 1,
}


@pytest.mark.parametrize(
    ("name", "head"),
    [
        (
            "b.json",
            {"distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 2}},
        ),
        ("rank1.json", {}),
        ("b.json", {"traceEvents": [OPERATOR]}),
    ],
    ids=["says its rank", "is called so", "has operators"],
)
def test_a_rank_without_kernels_stays_a_rank(
    name: str, head: dict[str, Any], tmp_path: Path
) -> None:
    TraceBuilder().step(1).linear(64, 32, 16, fp8=True).write(tmp_path / "a.json")
    write_launcher(tmp_path, name, **head)
    assert [rank.rank for rank in inspect(tmp_path).ranks] == [0, 1]
