"""Which format a file is in, by its first bytes; reading it, or what helps in place of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from fp8verify.errors import InputError
from fp8verify.trace.places import open_binary, reading
from fp8verify.trace.source import Glance, Reading, Source

if TYPE_CHECKING:
    from fp8verify.trace.blas_log import Product
    from fp8verify.trace.tables import Trace

# What may come before a JSON document: a byte order mark, space, padding.
_BLANK = b"\xef\xbb\xbf \t\r\n\0,"
# A line of a log may begin with a bracket, too.
_JSON = re.compile(rb'\{|\[\s*(?:[{\]\["]|-?\d+\s*[,\]])')
_JSON_ROWS = re.compile(
    rb'(?:\[\s*\{|\{)\s*"(?:Time \(%\)|Total Time \(|Start \(ns\)|Name"|Kernel Name"'
    rb'|kernel_name"|rocprofiler-sdk-tool")'
)
_SQLITE_MAGIC = b"SQLite format 3\0"
_SQLITE_SUFFIXES = (".sqlite", ".sqlite.gz", ".sqlite.zst")
_ROCPROF_SUFFIXES = ("_kernel_trace.csv", "_kernel_trace.csv.gz")
_ROCPROF_COLUMNS = (b"kernel_name", b"start_timestamp", b"end_timestamp")
# JSON files of a capture that are not traces; a hidden file is still being written.
OURS = re.compile(r"^\.|(\.meta|\.numerics|\.schema)\.json$|^expected\.json$|^report.*\.json$")
_BLAS_LINES = (b"[cublasLt][", b"[HIPBLASLT][", b"hipblaslt-bench -")


class Format(NamedTuple):
    """A format of traces.

    Attributes:
        module: the `Reader`; it is imported when a file of the format is met.
        suffixes: the endings of the files that are traces of it in a folder.
        probe: whether a file that begins with these bytes, unpacked, and is called so is in it.
    """

    module: str
    suffixes: tuple[str, ...]
    probe: Callable[[bytes, str], bool]

    @property
    def reader(self) -> Reader:
        """What reads it."""
        return cast("Reader", import_module(self.module))


class Reader(Protocol):
    """The module that reads a format."""

    def glance(self, source: Source) -> Glance:
        """Look at the start of a file for whether it is a trace, and of which rank.

        Raises:
            InputError: it cannot be read.
        """

    def read(self, source: Source, how: Reading) -> Trace:
        """Read the columns of a trace and `build.fill` them into a `Trace`.

        Raises:
            InputError: it cannot be read, or is not a trace.
        """


def _is_archive(head: bytes, _: str) -> bool:
    """Whether a zip or tar file begins."""
    return head.startswith(b"PK\x03\x04") or head[257:262] == b"ustar"


def _is_sqlite(head: bytes, name: str) -> bool:
    """Whether a SQLite file begins, or an export that is empty or no database at all."""
    is_json = head.lstrip()[:1] in (b"{", b"[")
    return head.startswith(_SQLITE_MAGIC) or (name.endswith(_SQLITE_SUFFIXES) and not is_json)


def _is_kernel_trace(head: bytes, name: str) -> bool:
    """Whether the header of rocprofv3's kernel trace begins, or a file is called like one."""
    header = head.partition(b"\n")[0].lower()
    is_json = header.lstrip(_BLANK)[:1] in (b"{", b"[")
    signs = all(sign in header for sign in _ROCPROF_COLUMNS) and not is_json
    return signs or name.endswith(_ROCPROF_SUFFIXES)


def _is_blas_log(head: bytes, _: str) -> bool:
    """Whether cuBLASLt's or hipBLASLt's logger wrote one of the first lines."""
    return any(sign in head for sign in _BLAS_LINES)


def _is_table(head: bytes, _: str) -> bool:
    """Whether rows of kernels begin, or text that is not JSON: a table may be anywhere in a log."""
    text = head.lstrip(_BLANK)
    if _JSON_ROWS.match(text):
        return True
    is_other = not text or b"\0" in text or _JSON.match(text) is not None
    return b"Self CPU %" in head or not is_other


def _is_jax(head: bytes, _: str) -> bool:
    """Whether XLA's trace viewer begins: GPUs as processes, and events without a category."""
    return b"/device:GPU:" in head and b'"cat"' not in head


BLAS_LOG = Format("fp8verify.trace.blas_log", (), _is_blas_log)
KERNEL_TABLE = Format("fp8verify.trace.kernel_table", (), _is_table)
KINETO = Format("fp8verify.trace.kineto", (".json", ".json.gz", ".json.zst"), lambda *_: True)
# The first whose probe agrees reads the file. Kineto's reader, which takes all others, says best
# what is wrong with a broken one.
FORMATS: tuple[Format, ...] = (
    Format("fp8verify.trace.archive", (), _is_archive),
    Format("fp8verify.trace.nsys", _SQLITE_SUFFIXES, _is_sqlite),
    Format("fp8verify.trace.rocprof", _ROCPROF_SUFFIXES, _is_kernel_trace),
    BLAS_LOG,
    KERNEL_TABLE,
    Format("fp8verify.trace.jax", (), _is_jax),
    KINETO,
)


def suffixes() -> tuple[str, ...]:
    """Return the suffixes of the files that are traces in a folder."""
    return tuple(suffix for known in FORMATS for suffix in known.suffixes)


def glance_at(path: Path) -> tuple[Format, Glance]:
    """Return the format of a file and what its start shows.

    Raises:
        InputError: the file cannot be read.
    """
    with _open(path) as source:
        known = _format_of(source)
        return known, known.reader.glance(source)


def read_trace(
    path: Path,
    *,
    name: str | None = None,
    layers: bool = False,
    part: int | None = None,
    split: bool = False,
    launches: bool = False,
) -> Trace:
    """Read a trace in any known format, packed or not.

    Damage is confined to the events it hits and counted in `Trace.health`.

    Args:
        path: the file, of `fp8verify.trace.places` if it is remote.
        name: what errors and reports call it; the file's own name if not given.
        layers: join kernels to the layers that `fp8verify run --layers` named; takes longer.
        part: the process to read of a file that holds several.
        split: put the other ranks of a file that joins several into `Trace.others`.
        launches: say when and on which thread kernels were launched.

    Raises:
        InputError: the file cannot be read, or is not a trace.
    """
    with _open(path, name) as source:
        return read_source(source, Reading(layers, part=part, split=split, launches=launches))


def read_open_trace(file: IO[bytes], name: str) -> Trace:
    """Read a trace as `read_trace` does with `split`, from a file or pipe that is open already."""
    return read_source(Source(file, name), Reading(split=True))


def read_source(source: Source, how: Reading) -> Trace:
    """Read a trace as `read_trace` does, from its bytes.

    Raises:
        InputError: it cannot be read, or is not a trace.
    """
    return _format_of(source).reader.read(source, how)


def glance_source(source: Source) -> Glance:
    """Return what the start of a file shows, as `glance_at` does.

    Raises:
        InputError: it cannot be read.
    """
    return _format_of(source).reader.glance(source)


def read_products(path: Path) -> list[tuple[int, Product]]:
    """Return the products of a BLAS library's log with their threads, in order.

    Raises:
        InputError: the file cannot be read.
    """
    from fp8verify.trace.blas_log import products_of

    with _open(path) as source:
        return products_of(source)


@contextmanager
def _open(path: Path, name: str | None = None) -> Iterator[Source]:
    for kind in _REFUSED:
        if kind.suffixes and path.name.lower().removesuffix(".gz").endswith(kind.suffixes):
            raise InputError(f"{path.name} is {kind.what}.", kind.hint.format(path=path))
    with reading(path), open_binary(path) as file:
        yield Source(file, name or path.name, path)


def _format_of(source: Source) -> Format:
    for kind in _REFUSED:
        if kind.begins and source.head.startswith(kind.begins) and kind.near in source.head:
            raise InputError(f"{source.name} is {kind.what}.", kind.hint)
    return next(known for known in FORMATS if known.probe(source.head, source.name))


# ---- what people give in place of a trace


class _Refused(NamedTuple):
    """Files of a kind, by the ends of their names, or by how they begin and what is near there."""

    suffixes: tuple[str, ...]
    what: str
    hint: str
    begins: tuple[bytes, ...] = ()
    near: bytes = b""


_PICKLE: Final = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_REFUSED: Final = (
    _Refused(
        (".nsys-rep", ".qdrep"),
        "a report of Nsight Systems, which only nsys can read",
        "Export it: nsys export --type sqlite {path}",
    ),
    _Refused(
        (".ncu-rep", ".ncu-repz"),
        "a report of Nsight Compute, which only ncu can read",
        "Print it: ncu --import {path} --csv --page raw > ncu.csv",
    ),
    _Refused(
        ("_results.db",),
        "a database of rocprofv3",
        "Convert it: rocpd convert -i {path} --output-format csv, and give the …_kernel_trace.csv.",
    ),
    _Refused(
        (".pftrace", ".perfetto-trace", ".perfetto"),
        "a Perfetto trace in protobuf",
        "Convert it (traceconv json {path} trace.json), or record with rocprofv3 --output-format "
        "csv, or torch.profiler's export_chrome_trace.",
    ),
    _Refused(
        (".pb", ".xplane"),
        "a protobuf file, such as XLA's xplane",
        "Give the *.trace.json.gz that the profiler wrote next to it, or record it with "
        "jax.profiler.trace(folder, create_perfetto_trace=True).",
    ),
    _Refused(
        (".hatchet",),
        "a profile of Triton's Proton, whose kernels have no order",
        "Record with torch.profiler (export_chrome_trace), or with fp8verify run.",
    ),
    _Refused(
        (),
        "a snapshot of torch's memory (a pickle, which is not loaded), without kernels",
        "Record kernels: torch.profiler's export_chrome_trace, or fp8verify run.",
        _PICKLE,
        b"segments",
    ),
    _Refused(
        (),
        "a pickle, which is not loaded: it may run any code",
        "Give a trace that torch.profiler exported (export_chrome_trace).",
        _PICKLE,
    ),
    _Refused(
        (),
        "cuBLAS's log of calls, which has no types of FP8 products",
        "Record cuBLASLt's, which has: CUBLASLT_LOG_MASK=2 CUBLASLT_LOG_FILE=FILE.",
        (b"I! cuBLAS (", b"i! cuBLAS (", b"I!cuBLAS"),
    ),
)
