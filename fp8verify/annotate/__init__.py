"""Write a user's own trace anew with every GEMM labelled by precision and leg."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fp8verify.annotate.labels import Labels
from fp8verify.annotate.output import open_sink
from fp8verify.annotate.writer import Writer, write_trace
from fp8verify.errors import UsageError
from fp8verify.trace import find_traces, read_trace
from fp8verify.trace.kineto.document import Buffer, Document
from fp8verify.trace.places import open_binary, reading
from fp8verify.trace.readers import KINETO, glance_at
from fp8verify.trace.source import Source

__all__ = ["annotate"]


def annotate(path: Path, out: Path) -> Counter[str]:
    """Copy a trace, adding to each GEMM kernel its precision and leg.

    Of other tools' traces, kernels and steps are written as JSON of the same kind. Of Kineto's, all
    events and metadata are kept but for damaged ones; the events that are added have the category
    `fp8verify`. A first pass finds the labels in the memory that `inspect` takes, a second one
    writes with a window of the file in memory. `out` is written under another name and renamed at
    the end; it is packed as its suffix says (.gz, .zst).

    Returns:
        How many GEMM kernels of each precision were labelled.

    Raises:
        InputError: the trace cannot be read, or is none.
        UsageError: `out` is the trace itself, or cannot be written.
    """
    if _is_same(out, path):
        raise UsageError(f"{out} is the trace itself.", "Pass -o another file.")
    if glance_at(path)[0] is not KINETO:
        return _convert(path, out)
    labels = Labels(read_trace(path))
    with open_sink(out) as write, reading(path), open_binary(path) as file:
        source = Source(file, path.name, path)
        is_list = source.head.lstrip(b"\xef\xbb\xbf \t\r\n\0,").startswith(b"[")
        writer = Writer(write, is_list=is_list).label_by(labels)
        Document(Buffer(source, path.name), writer, writer).read()
        writer.finish()
    return writer.counts


def _is_same(out: Path, path: Path) -> bool:
    try:
        return out.samefile(path)
    except OSError:  # there is no such file yet, or none that may be looked at
        return False


def _convert(path: Path, out: Path) -> Counter[str]:
    """Write the kernels of every process in a trace of another tool, with their labels."""
    traces = [read_trace(file.path, name=file.name, part=file.part) for file in find_traces(path)]
    with open_sink(out) as write:
        writer = Writer(write)
        writer.take("schemaVersion", 1, b"1")
        for place, trace in enumerate(traces):
            write_trace(writer.label_by(Labels(trace)), trace, place)
        writer.finish()
    return writer.counts
