"""Which format a file is in, by its first bytes; reading it, or what helps in place of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, cast

from fp8verify.errors import InputError
from fp8verify.patterns import lazy_pattern
from fp8verify.trace.places import open_binary, reading
from fp8verify.trace.source import Glance, Reading, Source

if TYPE_CHECKING:
    from fp8verify.trace.blas_log import Product
    from fp8verify.trace.tables import Trace

# What may come before a JSON document: a byte order mark, space, padding.
_BLANK = b"\xef\xbb\xbf \t\r\n\0,"
# A line of a log may begin with a bracket, too.
_JSON = lazy_pattern(rb'\{|\[\s*(?:[{\]\["]|-?\d+\s*[,\]])')
_JSON_ROWS = lazy_pattern(
    rb'(?:\[\s*\{|\{)\s*"(?:Time \(%\)|Total Time \(|Start \(ns\)|Name"|Kernel Name"'
    rb'|kernel_name"|rocprofiler-sdk-tool")'
)


class Format(NamedTuple):
    """A format of traces.

    Attributes:
        module: the `Reader`; it is imported when a file of the format is met.
        probe: whether a file that begins with these bytes, unpacked, is in it.
        suffixes: the endings of the files that are traces of it in a folder.
    """

    module: str
    probe: Callable[[bytes], object]
    suffixes: tuple[str, ...] = ()

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


def _is_table(head: bytes) -> bool:
    """Whether rows of kernels begin, or text that is not JSON: a table may be anywhere in a log."""
    text = head.lstrip(_BLANK)
    if b"Self CPU %" in head or _JSON_ROWS.match(text):
        return True
    return text != b"" and b"\0" not in text and not _JSON.match(text)


def _is_jax(head: bytes) -> bool:
    """Whether XLA's trace viewer begins: GPUs as processes, and events without a category."""
    return b"/device:GPU:" in head and b'"cat"' not in head


BLAS_LOG = Format(
    "fp8verify.trace.blas_log",
    re.compile(rb"\[cublasLt\]\[|\[HIPBLASLT\]\[|hipblaslt-bench -").search,
)
KERNEL_TABLE = Format("fp8verify.trace.kernel_table", _is_table)
KINETO = Format(
    "fp8verify.trace.kineto", lambda _: True, (".json", ".json.gz", ".json.zst")
)
# The first whose probe agrees reads the file. Kineto's reader, which takes all others, says best
# what is wrong with a broken one.
FORMATS: tuple[Format, ...] = (
    Format(
        "fp8verify.trace.nsys",
        re.compile(rb"SQLite format 3\0").match,
        (".sqlite", ".sqlite.gz", ".sqlite.zst"),
    ),
    Format(
        "fp8verify.trace.rocprof",
        re.compile(
            rb"[^{\[\n]*Kernel_Name[^\n]*Start_Timestamp[^\n]*End_Timestamp"
        ).match,
        ("_kernel_trace.csv", "_kernel_trace.csv.gz"),
    ),
    BLAS_LOG,
    KERNEL_TABLE,
    Format("fp8verify.trace.jax", _is_jax),
    KINETO,
)


def suffixes() -> tuple[str, ...]:
    """Return the suffixes of the files that are traces in a folder."""
    return tuple(suffix for known in reversed(FORMATS) for suffix in known.suffixes)


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
    split: bool = False,
    launches: bool = False,
    configs: bool = False,
) -> Trace:
    """Read a trace in any known format, packed or not.

    Damage is confined to the events it hits and counted in `Trace.health`.

    Args:
        path: the file, of `fp8verify.trace.places` if it is remote.
        name: what errors and reports call it; the file's own name if not given.
        layers: join kernels to the layers that `fp8verify run --layers` named; takes longer.
        split: put the other ranks of a file that holds several into `Trace.others`.
        launches: say when and on which thread kernels were launched.
        configs: say with how many threads, registers and bytes of shared memory, by which their
            compiled code is found.

    Raises:
        InputError: the file cannot be read, or is not a trace.
    """
    how = Reading(layers, split=split, launches=launches, configs=configs)
    with _open(path, name) as source:
        return _format_of(source).reader.read(source, how)


def read_open_trace(file: IO[bytes], name: str) -> Trace:
    """Read a trace as `read_trace` does with `split`, from a file or pipe that is open already."""
    source = Source(file, name)
    return _format_of(source).reader.read(source, Reading(split=True))


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
    unpacked_name = path.name.lower().removesuffix(".gz")
    _refuse(_BY_NAME, unpacked_name.encode(), path.name, path)
    with reading(path), open_binary(path) as file:
        yield Source(file, name or path.name, path)


def _format_of(source: Source) -> Format:
    _refuse(_BY_CONTENT, source.head, source.name)
    return next(known for known in FORMATS if known.probe(source.head))


# ---- what people give in place of a trace: by an expression for it, what it is and what helps


_Refused: TypeAlias = "dict[bytes, tuple[str, str]]"


def _refuse(
    kinds: _Refused,
    sign: bytes,
    name: str,
    path: Path | None = None,
) -> None:
    for pattern, (what, hint) in kinds.items():
        if re.search(pattern, sign, re.DOTALL):
            raise InputError(f"{name} is {what}.", hint.format(path=path))


_BY_NAME: Final[_Refused] = {
    rb"\.(?:nsys-rep|qdrep)$": (
        "a report of Nsight Systems, which only nsys can read",
        "Export it: nsys export --type sqlite {path}",
    ),
    rb"\.ncu-repz?$": (
        "a report of Nsight Compute, which only ncu can read",
        "Print it: ncu --import {path} --csv --page raw > ncu.csv",
    ),
    rb"_results\.db$": (
        "a database of rocprofv3",
        "Convert it: rocpd convert -i {path} --output-format csv, and give the …_kernel_trace.csv.",
    ),
    rb"\.(?:pftrace|perfetto-trace|perfetto)$": (
        "a Perfetto trace in protobuf",
        "Convert it: traceconv json {path} trace.json; rocprofv3 can write --output-format csv.",
    ),
    rb"\.(?:pb|xplane)$": (
        "a protobuf file, such as XLA's xplane",
        "Give the *.trace.json.gz of jax.profiler.trace(folder, create_perfetto_trace=True).",
    ),
    rb"\.hatchet$": (
        "a profile of Triton's Proton, whose kernels have no order",
        "Record with torch.profiler (export_chrome_trace), or with fp8verify run.",
    ),
}
_BY_CONTENT: Final[_Refused] = {
    rb"^\x80[\x02-\x05].*segments": (
        "a snapshot of torch's memory (a pickle, which is not loaded), without kernels",
        "Record kernels: torch.profiler's export_chrome_trace, or fp8verify run.",
    ),
    rb"^\x80[\x02-\x05]": (
        "a pickle, which is not loaded: it may run any code",
        "Give a trace that torch.profiler exported (export_chrome_trace).",
    ),
    rb"^[Ii]! ?cuBLAS": (
        "cuBLAS's log of calls, which has no types of FP8 products",
        "Record cuBLASLt's, which has: CUBLASLT_LOG_MASK=2 CUBLASLT_LOG_FILE=FILE.",
    ),
    rb"^PK\x03\x04|^.{257}ustar": (
        "a zip or tar archive, such as a checkpoint",
        "Give an archive of traces alone, as .zip, .tar, .tar.gz or .tgz, or unpack it.",
    ),
}
