"""Small files of every format, written by hand: all that is read from them, value by value.

`read_back/in` holds the files, `read_back/out` what each becomes; a new file needs no code. The
figures of reports hold what follows from that. FP8VERIFY_UPDATE_GOLDENS=1 writes out/ anew.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fp8verify.capture.schema import MeasuredRecord, NumericsRecord, RankMeta
from fp8verify.errors import InputError
from fp8verify.logs.claims import read_claims
from fp8verify.logs.failures import causes, failure_notes, last_error
from fp8verify.logs.losses import read_losses
from fp8verify.logs.signs import read_signs
from fp8verify.logs.statements import LogReading, phase_at
from fp8verify.terms import OpContext
from fp8verify.trace import Trace, find_traces, read_open_trace, read_trace
from fp8verify.trace.places import comes_through_pipe, run_name
from fp8verify.trace.readers import glance_at
from fp8verify.trace.tables import Launch
from tests.golden.facts import assert_lines
from tests.log_text import labelled_lines, read_text
from tests.unit.trace_events import as_document, sample

HERE = Path(__file__).parent / "read_back"
INPUTS, LOGS = (
    sorted(path.name for path in (HERE / of).iterdir()) for of in ("in", "logs")
)
HEAD = ("world_size", "process", "gpu", "compute_capability", "in_flops", "base_ns",
        "record_shapes", "copies", "seen")  # fmt: skip


def stated(what: Any, *names: str) -> str:
    """Return the values of a struct or a tuple with names, but for those that say nothing."""
    fields = getattr(what, "_fields", ()) or what.__struct_fields__
    values = [(name, getattr(what, name)) for name in names or fields]
    return ", ".join(
        f"{name} {one}"
        for name, one in values
        if one or (one is False and name == "all_gather")
    )


def of_operator(op: OpContext) -> str:
    inputs = ", ".join(
        f"{t}{list(d) or ''}" for t, d in zip(op.types, op.dims, strict=False)
    )
    around = "".join(f" < {parent}" for parent in op.parents)
    return (
        f"{op.name}({inputs or list(op.dims) or ''}){around}{' backward' * op.backward}"
    )


def rows_of(trace: Trace) -> Iterator[str]:
    """Yield a line for each kernel: when and where it ran, and what launched it."""
    kernels = trace.kernels
    for row, (start, length) in enumerate(
        zip(kernels.start_ns, kernels.duration_ns, strict=True)
    ):
        found = [f"{start}+{length} {trace.names[kernels.name[row]]}"]
        found += [
            f"gpu {kernels.device[row]}.{kernels.stream[row]}",
            Launch(kernels.launch[row]).name,
        ]
        found += [
            f"step {trace.steps[n].number}"
            for n in kernels.step[row : row + 1]
            if n >= 0
        ]
        found += [f"op {op}" for op in kernels.op[row : row + 1] if op >= 0]
        found += [
            f"layer {trace.layers[n]}" for n in kernels.layer[row : row + 1] if n >= 0
        ]
        launches = zip(kernels.launch_ns, kernels.thread, strict=True)
        found += [
            f"launched {when} by {who}" for when, who in islice(launches, row, row + 1)
        ]
        call, makes, node = trace.sites[kernels.site[row]]
        found += [f"call {call} makes {makes} in {node}"] * (
            max(call, makes, node) >= 0
        )
        found += [
            stated(trace.collectives[n])
            for n in kernels.collective[row : row + 1]
            if n >= 0
        ]
        yield ", ".join(found)


def of_trace(trace: Trace) -> Iterator[str]:
    """Yield all that a trace says, a line for each part of it."""
    yield f"{trace.source}: rank {trace.rank}, {stated(trace, *HEAD)}"
    yield f"  health: {stated(trace.health)}"
    yield from (f"  remark: {remark}" for remark in trace.remarks)
    for step in trace.steps:
        whole = "" if step.whole else ", not whole"
        yield f"  step {step.number}: {step.start_ns} to {step.end_ns}{whole}"
    yield from (
        f"  op {place}: {of_operator(op)}" for place, op in enumerate(trace.ops)
    )
    yield from (f"  {row}" for row in rows_of(trace))
    for other in trace.others:
        yield from of_trace(other)


def of_file(path: Path) -> Iterator[str]:
    """Yield what a file looks like, holds, and holds if nothing more is asked for."""
    try:
        known, glance = glance_at(path)
        yield f"{known.module.rpartition('.')[2]}: {stated(glance)}"
        trace = read_trace(path, layers=True, split=True, launches=True)
    except InputError as error:
        yield from (error.fact, error.hint)
        return
    yield from of_trace(trace)
    with path.open("rb") as file:
        piped = read_open_trace(file, path.name)
    for how, plain in (("by default", read_trace(path)), ("through a pipe", piped)):
        kernels = plain.kernels
        others, layers, launches = plain.others, kernels.layer, kernels.launch_ns
        counts = (
            f"{len(kernels)} kernels, {len(layers)} in layers, {len(launches)} launches"
        )
        yield f"{how}: {counts}, {len(others)} other ranks"


def assert_read(golden: Path, found: Iterable[str], folder: Path) -> None:
    """Compare what was read from files of a folder with a golden."""
    text = "\n".join(found).replace(f"{folder}/", "")
    assert_lines(golden, text.splitlines())


def placed(name: str, folder: Path) -> Path:
    """Copy a file, with what lies beside it in a recording; make a database of a script.

    `.read ../nsys.sql` in a script stands for what most of them have alike.
    """
    source = HERE / "in" / name
    if source.is_dir():
        shutil.copytree(source, folder, dirs_exist_ok=True)
        return next(folder.glob("*_kernel_trace.csv"))
    if source.suffix != ".sql":
        return Path(shutil.copy(source, folder))
    path = folder / f"{source.stem}.sqlite"
    script = source.read_text().replace(
        ".read ../nsys.sql", (HERE / "nsys.sql").read_text()
    )
    database = sqlite3.connect(path)
    database.executescript(f"BEGIN;{script}COMMIT")  # one write, not one a row
    database.close()
    return path


@pytest.mark.parametrize("name", INPUTS)
def test_all_that_a_file_says_is_read_back(name: str, tmp_path: Path) -> None:
    path = placed(name, tmp_path)
    assert_read(HERE / "out" / f"{name}.txt", of_file(path), tmp_path)


LIMITS: dict[str, dict[str, int]] = json.loads((HERE / "limits.json").read_text())


@pytest.mark.parametrize("name", LIMITS)
def test_what_is_beyond_a_limit_is_left_out(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, value in LIMITS[name].items():
        monkeypatch.setattr(f"fp8verify.trace.{limit}", value)
    path = placed(name, tmp_path)
    assert_read(HERE / "out" / f"{name}.limited.txt", of_file(path), tmp_path)


def of_claims(read: LogReading) -> Iterator[str]:
    """Yield each statement, and what is said of layers."""
    for one in read.statements[1:]:  # the first stands for the beginning of the log
        yield f"{stated(one.claim)}; topic {one.topic} {stated(one, *one._fields[2:])}"
    yield from (f"layers: {stated(layer)}" for layer in read.layers)
    yield from map("note: {}".format, read.notes)
    yield from (f"mention: {stated(one)}" for one in (read.mention,) if one)


def of_log(path: Path) -> Iterator[str]:
    """Yield what a log claims, and when; its losses and errors."""
    read = read_claims(path)
    yield from of_claims(read)
    for step in (None, 4, 8):
        claims = read.claims_at(step, (step,) if step else ())
        yield f"at {step or 'the end'}: {phase_at(read.held_at(step), step or 0)}"
        yield from (f"  {claim.says} {claim.text}" for claim in claims)
        yield from (
            f"  {layer.text}" for layer in read.layers_for(claims) if layer.section
        )
    yield from (
        f"losses: {stated(series)}" for series in (read_losses([path]),) if series
    )
    for sign in read_signs([path]).broken:
        yield f"lost: line {sign.line}, {sign.place or 'no step'}: {sign.text}"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for cause in causes(lines, alone=True):
        certain = "certain" if cause.is_certain else "not certain"
        yield f"{certain}: line {cause.line}, {cause.failure.check or 'no check'}, {cause.text}"
    yield f"{len(causes(lines))} causes, {len(list(failure_notes([path])))} notes"
    yield f"last error: {last_error([path])}"


@pytest.mark.parametrize("name", LOGS)
def test_all_that_a_log_says_is_read_back(name: str) -> None:
    path = HERE / "logs" / name
    assert_read(HERE / "out" / f"{name}.txt", of_log(path), path.parent)


def test_all_that_a_line_says_is_read_back(tmp_path: Path) -> None:
    lines = (
        (f"{says} of {of or 'none'}: {line}", line)
        for says, of, line in labelled_lines()
    )
    read = ((label, *of_claims(read_text(line))) for label, line in lines)
    assert_read(HERE / "out" / "log_lines.txt", map("\n  ".join, read), tmp_path)


FOLDERS: dict[str, dict[str, str]] = json.loads((HERE / "folders.json").read_text())


def laid_out(files: dict[str, str], folder: Path) -> None:
    """Write files that are traces, of a rank or of none, or what else lies beside traces."""
    for name, what in files.items():
        path, (kind, _, rank) = folder / name, what.partition(" ")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = {"config": "{}", "broken": "{", "log": "hipblaslt-bench -m 1\n"}.get(
            kind
        )
        if text is None:
            info = {"rank": int(rank)} if rank else {}
            text = as_document(sample(), distributedInfo=info).decode()
        path.write_bytes(
            gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
        )


def of_folder(folder: Path) -> Iterator[str]:
    """Yield what is taken for the traces of a folder, and what is left out."""
    try:
        files = find_traces(folder)
    except InputError as error:
        yield from (f"  {error.fact}", f"  {error.hint}")
        return
    yield from (f"  rank {file.rank}: {stated(file)}" for file in files)
    yield from (f"  skipped: {path}" for path in files.skipped)


def test_which_files_of_a_folder_are_traces_of_which_rank(tmp_path: Path) -> None:
    found = list[str]()
    for number, (case, files) in enumerate(FOLDERS.items()):
        laid_out(files, tmp_path / f"{number}")
        (tmp_path / f"{number}").mkdir(exist_ok=True)
        where = tmp_path / f"{number}" / case.partition(", at ")[2]
        found += [f"{case}: {', '.join(files)}", *of_folder(where)]
    assert_read(HERE / "out" / "folders.txt", found, tmp_path)


def test_a_run_is_called_by_its_paths() -> None:
    names = json.loads((HERE / "run_names.json").read_text())
    assert {paths: run_name(paths.split()) for paths in names} == names
    assert [paths for paths in names if comes_through_pipe(paths.split())] == [
        "-",
        "/dev/stdin",
    ]


def test_every_field_of_a_record_holds_what_it_held() -> None:
    structs = msgspec.json.schema_components(
        [RankMeta, NumericsRecord, MeasuredRecord]
    )[1]
    found = [
        f"{struct}.{field}: {json.dumps(kind)}{' must be there' * (field in said['required'])}"
        for struct, said in structs.items()
        for field, kind in said["properties"].items()
    ]
    assert_read(HERE / "out" / "records.txt", sorted(found), HERE)
