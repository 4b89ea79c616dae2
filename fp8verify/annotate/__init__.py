"""Write a user's own trace anew with every GEMM labelled by precision and leg."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fp8verify.annotate.chrome import HEAD, TAIL, ChromeEvents
from fp8verify.annotate.labels import Labels, read_labels
from fp8verify.annotate.output import open_sink
from fp8verify.annotate.rewrite import Rewriter, events_offset
from fp8verify.errors import UsageError
from fp8verify.trace import find_traces, read_trace
from fp8verify.trace.places import open_binary, reading
from fp8verify.trace.readers import KINETO, glance_at
from fp8verify.trace.source import open_stream

__all__ = ["annotate"]


def annotate(path: Path, out: Path) -> Counter[str]:
    """Copy a trace, adding to each GEMM kernel its precision and leg.

    Of other tools' traces, kernels and steps are written as JSON of the same kind. Of Kineto's,
    every other byte stays as it was; the events that are added have the category `fp8verify`. A
    first pass finds the labels in the memory that `inspect` takes, a second one writes with a
    window of the file in memory. `out` is written beside itself and renamed at the end; it is
    packed as its suffix says (.gz, .zst).

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
    labels = read_labels(path)
    offset = events_offset(path)
    with open_sink(out) as write, reading(path), open_binary(path) as file:
        rewriter = Rewriter(labels, write)
        rewriter.run(open_stream(file, path.name), path.name, offset)
    return rewriter.counts


def _is_same(out: Path, path: Path) -> bool:
    try:
        return out.samefile(path)
    except OSError:  # there is no such file yet, or none that may be looked at
        return False


def _convert(path: Path, out: Path) -> Counter[str]:
    """Write the kernels of every process in a trace of another tool, with their labels."""
    counts: Counter[str] = Counter()
    traces = [read_trace(file.path, name=file.name, part=file.part) for file in find_traces(path)]
    with open_sink(out) as write:
        write(HEAD)
        for place, trace in enumerate(traces):
            rewriter = Rewriter(Labels(trace), write)
            write(b",\n" if place and len(trace.kernels) else b"")
            rewriter.run(ChromeEvents(trace, place), trace.source, 0)
            counts += rewriter.counts
        write(TAIL)
    return counts
