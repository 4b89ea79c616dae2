"""Write a user's own trace anew with every GEMM labeled by precision and leg."""

from __future__ import annotations

import gzip
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from fp8verify.annotate.writer import Labels, Writer
from fp8verify.errors import InputError, UsageError, requires
from fp8verify.files import replacing, writing
from fp8verify.trace import read_trace
from fp8verify.trace.kineto.document import Buffer, Document
from fp8verify.trace.places import open_binary, reading
from fp8verify.trace.readers import KINETO, glance_at
from fp8verify.trace.source import Source

__all__ = ["annotate"]

_LEVEL = 2
_packer: Any = gzip
with suppress(ImportError):  # isal has no wheel for some processors
    from isal import igzip

    _packer = igzip


def annotate(path: Path, out: Path) -> Counter[str]:
    """Copy a trace, adding to each GEMM kernel its precision and leg.

    All events and metadata are kept, except damaged events; added events have the category
    `fp8verify`. A first pass finds the labels, with as much memory as `inspect`; a second
    pass writes the copy in blocks. `out` is written under another name and renamed
    at the end; its suffix (.gz, .zst) selects the compression.

    Returns:
        How many GEMM kernels of each precision were labeled.

    Raises:
        InputError: the trace cannot be read, or is not torch.profiler's.
        UsageError: `out` is the trace itself, or cannot be written.
    """
    with suppress(OSError):  # there is no such file yet, or none that may be looked at
        if out.samefile(path):
            raise UsageError(f"{out} is the trace itself.", "Pass -o another file.")
    if glance_at(path)[0] is not KINETO:
        raise InputError(
            f"{path.name} is not a trace of torch.profiler.",
            "Annotate a Kineto trace; Nsight Systems and rocprofv3 have viewers of their own.",
        )
    labels = Labels(read_trace(path))
    draft = replacing(out, f"{out.name}.part")
    with writing("the trace", out), draft as unfinished, _open(unfinished, out.suffix) as sink:

        def write(data: bytes) -> None:
            with writing("the trace", out):  # and not an error of reading
                sink.write(data)

        with reading(path), open_binary(path) as file:
            source = Source(file, path.name, path)
            is_list = source.head.lstrip(b"\xef\xbb\xbf \t\r\n\0,").startswith(b"[")
            writer = Writer(write, labels, is_list=is_list)
            Document(Buffer(source, path.name), writer.take, writer).read()
            writer.finish()
    return writer.counts


def _open(path: Path, suffix: str) -> IO[bytes]:
    if suffix == ".gz":
        return cast("IO[bytes]", _packer.open(path, "wb", compresslevel=_LEVEL))
    if suffix != ".zst":
        return path.open("wb")
    with requires("zstd", path.stem):
        import zstandard
    return cast("IO[bytes]", zstandard.open(path, "wb"))
