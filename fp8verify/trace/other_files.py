"""Files that people give in place of a trace, known by their names or first bytes: what helps."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from fp8verify.errors import InputError
from fp8verify.trace.source import Source


class _Kind(NamedTuple):
    """Files of a kind, by the ends of their names, or by how they begin and what is near there."""

    suffixes: tuple[str, ...]
    what: str
    hint: str
    begins: tuple[bytes, ...] = ()
    near: tuple[bytes, ...] = (b"",)


_PICKLE: Final = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


_KINDS: Final = (
    _Kind(
        (".nsys-rep", ".qdrep"),
        "a report of Nsight Systems, which only nsys can read",
        "Export it: nsys export --type sqlite {path}",
    ),
    _Kind(
        (".ncu-rep", ".ncu-repz"),
        "a report of Nsight Compute, which only ncu can read",
        "Print it: ncu --import {path} --csv --page raw > ncu.csv",
    ),
    _Kind(
        (".pftrace", ".perfetto-trace", ".perfetto"),
        "a Perfetto trace in protobuf",
        "Convert it (traceconv json {path} trace.json), or record with rocprofv3 --output-format "
        "csv, or torch.profiler's export_chrome_trace.",
    ),
    _Kind(
        (".pb", ".xplane"),
        "a protobuf file, such as XLA's xplane",
        "Give the *.trace.json.gz that the profiler wrote next to it, or record it with "
        "jax.profiler.trace(folder, create_perfetto_trace=True).",
    ),
    _Kind(
        (".hatchet",),
        "a profile of Triton's Proton, whose kernels have no order",
        "Record with torch.profiler (export_chrome_trace), or with fp8verify run.",
    ),
    _Kind(
        (),
        "a snapshot of torch's memory (a pickle, which is not loaded), without kernels",
        "Record kernels: torch.profiler's export_chrome_trace, or fp8verify run.",
        _PICKLE,
        (b"segments", b"device_traces"),
    ),
    _Kind(
        (),
        "a pickle, which is not loaded: it may run any code",
        "Give a trace that torch.profiler exported (export_chrome_trace).",
        _PICKLE,
    ),
    _Kind(
        (),
        "cuBLAS's log of calls, which has no types of FP8 products",
        "Record cuBLASLt's, which has: CUBLASLT_LOG_MASK=2 CUBLASLT_LOG_FILE=FILE.",
        (b"I! cuBLAS (", b"i! cuBLAS (", b"I!cuBLAS"),
    ),
)


def refuse_name(path: Path) -> None:
    """Refuse a file that is recognized by its name and of no use.

    Raises:
        InputError: it is one; what it is, and what to export instead.
    """
    name = path.name.lower().removesuffix(".gz")
    for kind in _KINDS:
        if kind.suffixes and name.endswith(kind.suffixes):
            raise InputError(f"{path.name} is {kind.what}.", kind.hint.format(path=path))


def refuse_content(source: Source) -> None:
    """Refuse a file that is recognized by its first bytes and of no use.

    Raises:
        InputError: it is one; what it is, and what to export instead.
    """
    for kind in _KINDS:
        near = any(sign in source.head for sign in kind.near)
        if kind.begins and source.head.startswith(kind.begins) and near:
            raise InputError(f"{source.name} is {kind.what}.", kind.hint)
