"""Find and read the files of a capture folder, and say what its ranks recorded together."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.json import encode
from msgspec.structs import replace

from fp8verify.capture import names
from fp8verify.capture.schema import (
    SCHEMA,
    CodeRecord,
    CompiledKernel,
    MeasuredRecord,
    NumericsRecord,
    RankMeta,
    RankNumerics,
    WindowRecord,
)
from fp8verify.errors import InputError
from fp8verify.files import (
    PRIVATE_FILE,
    open_private,
    open_regular,
    reading_file,
    replacing,
)
from fp8verify.text import clean, clean_json

Names = tuple[str, ...]

MAX_BYTES = 64 << 20
MAX_COMMAND = 1024  # letters
MAX_SERIES = 128 << 20  # bytes of a series that are read
MAX_LINES = 1 << 16
_MAX_LINE = 8 << 20

# In the boot folder of a run, or of `fp8verify env`.
ERRORS = "errors.txt"  # tracebacks of the boot
DEBUG_LOG = "debug.boot.log"
OUR_FRAME = re.compile(
    r'File "(?:[^"\n]*/)?(?:_fp8verify_agent|fp8verify/agent|\.boot-\w+)/([^"\n]+)", line (\d+)'
)
MAX_BOOT_BYTES = 1 << 20
UNOBSERVED = (
    "no Python process completed a training step with these exports: either none stepped a "
    "torch.optim optimizer, or PYTHONPATH did not reach it, or torch was imported before"
)

T = TypeVar("T")
Record = TypeVar("Record", RankMeta, NumericsRecord, CodeRecord)


def find_logs(capture: Path) -> list[Path]:
    """Return the logs of a capture that are not empty: the run's own, other nodes', ranks'."""
    try:
        logs = [path for path in capture.glob(names.LOGS) if _has_text(path)]
    except OSError:
        return []
    return sorted(logs, key=_own_first)


def _has_text(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _own_first(log: Path) -> tuple[bool, Path]:
    return log.name != names.LOG, log


def find_metas(folder: Path) -> list[Path]:
    """Return the meta files of a capture, first those of each rank's first process."""
    return _found(folder, names.METAS, names.META_SUFFIX)


def _found(
    folder: Path,
    pattern: str,
    suffix: str = "",
) -> list[Path]:
    """Return the files of a folder of one kind by name; the suffix does not count."""
    if not folder.is_dir():
        return []
    paths = folder.glob(pattern)
    return sorted(paths, key=lambda path: path.name.removesuffix(suffix))


def read_meta(path: Path) -> RankMeta:
    """Return the meta file at `path`; fields that this version does not know are ignored.

    Raises:
        InputError: if it cannot be read, or is not such a file.
    """
    return _read(path, RankMeta, "is not a module list")


def _read(
    path: Path,
    kind: type[Record],
    is_not: str,
) -> Record:
    """Return the record in a file of a rank.

    Raises:
        InputError: it cannot be read, or is not such a file.
    """
    with reading_file(path), open_regular(path) as file:
        data = file.read(MAX_BYTES + 1)
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES >> 20} MB")
        record = msgspec.json.decode(clean_json(data), type=kind)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} {is_not}: {str(error)[:200]}.",
            "It is damaged or was not written by fp8verify run; move it out of the capture folder.",
        ) from None
    if record.schema != SCHEMA:
        raise InputError(
            f"{path} has schema {record.schema}; this version reads {SCHEMA}.",
            "Inspect it with the version of fp8verify that made it.",
        )
    return record


class _EnvironmentLeft(msgspec.Struct, frozen=True):
    command: str | None = None


class _ReportLeft(msgspec.Struct, frozen=True):
    environment: _EnvironmentLeft = _EnvironmentLeft()


def read_command(folder: Path) -> str | None:
    """Return the command that the report of `fp8verify run` left in a capture, None without one."""
    try:
        with open_regular(folder / names.REPORT) as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            return None
        left = msgspec.json.decode(data, type=_ReportLeft)
    except (OSError, ValueError, RecursionError):
        return None
    command = left.environment.command
    return command and clean(command)[:MAX_COMMAND]


def read_ranks(folder: Path) -> dict[int, RankMeta]:
    """Return the records of a capture folder by rank; other paths have none.

    Raises:
        InputError: one cannot be read.
    """
    records: dict[int, list[RankMeta]] = {}
    for path in find_metas(folder):
        meta = read_meta(path)
        records.setdefault(meta.rank, []).append(meta)
    joined = {}
    for rank, metas in records.items():
        record = reduce(_join, metas)
        if len(metas) > 1:
            told = f"{len(metas)} processes of this rank were recorded; their windows are together"
            notes = (told, *record.notes)
            record = replace(record, notes=notes)
        joined[rank] = record
    return joined


def _join(first: RankMeta, second: RankMeta) -> RankMeta:
    """Join what two processes of one rank noted, as when a shell script trains twice."""
    modules = {encode(module): module for module in first.modules + second.modules}
    return replace(
        first,
        windows=_each_once(first.windows, second.windows),
        steps_seen=max(first.steps_seen, second.steps_seen),
        notes=_each_once(first.notes, second.notes),
        modules=tuple(modules.values()),
        api_calls=_each_once(first.api_calls, second.api_calls),
        naming=first.naming or second.naming,
        versions={**second.versions, **first.versions},
        steps_outside=first.steps_outside or second.steps_outside,
    )


def _each_once(first: tuple[T, ...], second: tuple[T, ...]) -> tuple[T, ...]:
    both = dict.fromkeys((*first, *second))
    return tuple(both)


def read_numerics(folder: Path) -> dict[int, RankNumerics]:
    """Return the numerics of a capture by rank; of two processes of a rank the first's.

    Raises:
        InputError: a file cannot be read.
    """
    numerics: dict[int, RankNumerics] = {}
    for path in _found(folder, names.NUMERICS, names.NUMERICS_SUFFIX):
        record = _read(path, NumericsRecord, "has no numerics")
        stem = path.name.removesuffix(names.NUMERICS_SUFFIX)
        series = path.with_name(f"{stem}{names.SERIES_SUFFIX}")
        lines: tuple[MeasuredRecord, ...] = ()
        if series.is_file():
            lines = tuple(_series(series))
        found = RankNumerics(record=record, series=lines)
        numerics.setdefault(record.rank, found)
    return numerics


def _series(path: Path) -> Iterator[MeasuredRecord]:
    """Yield the lines of a series, without a line that a killed process left incomplete.

    Only every n-th line of a very large file is read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        first = len(file.readline(_MAX_LINE)) or 1
        lines_in_it = size // first
        every = 1 + max(size // MAX_SERIES, lines_in_it // MAX_LINES)
        file.seek(0)
        lines = iter(lambda: file.readline(_MAX_LINE), b"")
        for number, line in enumerate(lines):
            if number % every:
                continue
            with suppress(ValueError, RecursionError):
                data = clean_json(line)
                yield msgspec.json.decode(data, type=MeasuredRecord)


def read_code(folder: Path) -> tuple[CompiledKernel, ...]:
    """Return the compiled kernels that a capture has, of all its ranks.

    Raises:
        InputError: a file cannot be read.
    """
    kernels: list[CompiledKernel] = []
    for path in _found(folder, names.CODE):
        record = _read(path, CodeRecord, "has no compiled kernels")
        kernels += record.kernels
    return distinct(kernels)


def keep_code(
    folder: Path,
    rank: int,
    kernels: Iterable[CompiledKernel],
) -> None:
    """Write what the compiled code of a rank's kernels holds into a capture, whole at once.

    Raises:
        OSError: it cannot be written.
    """
    record = CodeRecord(
        schema=SCHEMA,
        rank=rank,
        kernels=tuple(kernels),
    )
    path = folder / f"rank{rank}{names.CODE_SUFFIX}"
    with (
        replacing(path, f".{path.name}.{os.getpid()}") as draft,
        open_private(draft) as file,
    ):
        file.write(encode(record))


def distinct(kernels: Iterable[CompiledKernel]) -> tuple[CompiledKernel, ...]:
    """Return compiled kernels, each once."""
    by_content = {encode(kernel): kernel for kernel in kernels}
    return tuple(by_content.values())


# --- what the ranks recorded together ---


def called_apis(metas: dict[int, RankMeta]) -> list[str]:
    """Return the APIs by which any rank asked for FP8."""
    called: dict[str, None] = {}
    for meta in metas.values():
        called |= dict.fromkeys(meta.api_calls)
    return list(called)


def declared_traces(metas: dict[int, RankMeta]) -> dict[str, int]:
    """Return the ranks of the traces that the records name, in the order of their windows."""
    traced = _traced(metas)
    return {trace: rank for trace, rank, _ in traced}


def named_traces(metas: dict[int, RankMeta]) -> frozenset[str]:
    """Return the traces of windows in which the layers have names."""
    traced = _traced(metas)
    return frozenset(trace for trace, _, window in traced if window.layers)


def blas_logs(folder: Path, metas: dict[int, RankMeta]) -> dict[str, Path]:
    """Return, by trace, the logs of the BLAS library that the run recorded."""
    logs = {}
    for trace, _, window in _traced(metas):
        name = window.blas_log
        if name and is_file_name(name):
            logs[trace] = folder / name
    return logs


def _traced(metas: dict[int, RankMeta]) -> list[tuple[str, int, WindowRecord]]:
    traced = []
    for rank, meta in metas.items():
        for window in meta.windows:
            if window.trace is not None:
                traced.append((window.trace, rank, window))
    return traced


def remarks(metas: dict[int, RankMeta]) -> list[str]:
    """Return what the agents noted; a remark that only some ranks make says which."""
    ranks: dict[str, list[int]] = {}
    for rank, meta in sorted(metas.items()):
        for note in meta.notes:
            ranks.setdefault(note, []).append(rank)
    remarks = []
    for note, made in ranks.items():
        if len(made) < len(metas):
            remarks.append(f"{_first_of(made)}: {note}")
        else:
            remarks.append(note)
    return remarks


def _first_of(ranks: list[int]) -> str:
    first = f"rank {ranks[0]}"
    if len(ranks) == 1:
        return first
    return f"{first} and {len(ranks) - 1} more"


def is_file_name(text: str) -> bool:
    """Whether it is a file's: nothing outside of the capture is opened for it."""
    if text in (".", ".."):
        return False
    return re.fullmatch(r"[\w.-]+", text, re.ASCII) is not None


def census_remarks(
    metas: dict[int, RankMeta],
    profiled: Container[int | None],
) -> list[str]:
    """Return how the module list of ranks that were not profiled differs from the others'.

    Args:
        metas: the records of all ranks.
        profiled: the ranks that have a trace.
    """
    alike: dict[Names, dict[Names, list[int]]] = {}
    for rank, meta in sorted(metas.items()):
        by_name = sorted(
            meta.modules,
            key=lambda module: (module.fqn, module.state),
        )
        fqns = tuple(module.fqn for module in by_name)
        states = tuple(module.state for module in by_name)
        by_states = alike.setdefault(fqns, {})
        by_states.setdefault(states, []).append(rank)
    remarks = []
    for by_states in alike.values():
        most_first = sorted(by_states, key=lambda states: -len(by_states[states]))
        usual, *others = most_first
        for states in others:
            ranks = by_states[states]
            unprofiled = [rank for rank in ranks if rank not in profiled]
            differ = sum(map(operator.ne, states, usual))
            if unprofiled:
                remarks.append(
                    f"{_first_of(unprofiled)}: not profiled, and by its module list {differ} of "
                    f"{len(states)} modules have another precision than on the other ranks"
                )
    return remarks


def missed_window(meta: RankMeta) -> WindowRecord | None:
    """Return the first window that left no trace."""
    for window in meta.windows:
        if window.trace is None:
            return window
    return None


# --- processes that were not observed ---


def boot_errors(boot: Path, debug_folder: Path | None = None) -> tuple[str, ...]:
    """Return why no agent was started: the last error of the boot and its line; () without one.

    Args:
        boot: the boot folder.
        debug_folder: where to keep the tracebacks, None to name only the last error.
    """
    lines = boot_lines(boot / ERRORS)
    if not lines:
        return ()
    text = "\n".join(lines) + "\n"
    if debug_folder is not None:
        # Several nodes may share the folder: none overwrites what another one wrote.
        log = debug_folder / DEBUG_LOG
        with suppress(OSError):
            log.touch(mode=PRIVATE_FILE)
            with log.open("a", encoding="utf-8") as file:
                file.write(text)
    frames = OUR_FRAME.findall(text)
    where = "outside of fp8verify"
    if frames:
        where = ":".join(frames[-1])
    error = lines[-1][:300]
    told = (
        f"the agent could not start: {error} ({where}); run --debug keeps the traceback"
    )
    return (told,)


def notes_on_attachment(capture: Path, *, observed: bool) -> tuple[str, ...]:
    """Return what kept processes from being observed, if `fp8verify env` made the capture.

    Args:
        capture: the capture folder.
        observed: whether any process left a record.
    """
    errors: list[str] = []
    has_boots = False
    for boot in sorted(capture.glob(names.BOOTS)):
        if any(boot.glob(f"{names.RUNNER}*")):
            continue  # that of a run which is not over
        has_boots = True
        errors += boot_errors(boot)
    if has_boots and not errors and not observed:
        return (UNOBSERVED,)
    return tuple(errors)


def boot_lines(path: Path) -> list[str]:
    """Return the lines of a file of a boot folder, the last ones if it is large; [] without it."""
    with suppress(OSError), open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - MAX_BOOT_BYTES))
        text = file.read(MAX_BOOT_BYTES).decode(errors="replace")
        return text.splitlines()
    return []
