"""Say of a file that is no trace what it looks like, and what to give or to export instead."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from fp8verify.errors import InputError
from fp8verify.text import clean
from fp8verify.trace.source import Source, not_a_trace

_QUOTED = 60
_RECORD = "Record a trace: torch.profiler's export_chrome_trace, or fp8verify run."


class _Kind(NamedTuple):
    """What a file may be: a pattern of its start, what it is called, and what helps."""

    pattern: re.Pattern[str]
    what: str
    hint: str


def _kind(pattern: str, what: str, hint: str) -> _Kind:
    compiled = re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    return _Kind(compiled, what, hint)


_KINDS: Final = (
    _kind(
        r"\A\s*HloModule\b",
        "a program of XLA (an HLO dump), which says what was compiled and not what ran",
        "Record the kernels: jax.profiler.trace(folder, create_perfetto_trace=True), and give the "
        "*.trace.json.gz.",
    ),
    _kind(
        r"\A\s*(?:module @|#map|func\.func)",
        "a program in MLIR, which says what was compiled and not what ran",
        _RECORD,
    ),
    _kind(
        r"\A\s*<(?:!doctype|html|\?xml|table)",
        "a page of HTML or XML",
        "Save its table of kernels as CSV or text: a column of kernel names, one of times.",
    ),
    _kind(
        r"^[ \u2502|]*[\u251c\u2514]\u2500{1,3} ?[\w(]",
        "a tree of calls, in which the time of a branch holds that of its leaves",
        "Give the kernels as a list: a column of names, one of times, such as kernel,total_ms,calls.",
    ),
    _kind(
        r"\A(?:#!.*(?:sh|python)|(?:import|from) \w+|(?:torchrun|accelerate|python3?|srun) )",
        "a script",
        "Check it: fp8verify doctor --config FILE. " + _RECORD,
    ),
    _kind(
        r"(?:traceback \(most recent|\[(?:error|warning|info|debug)\]|\d\d:\d\d:\d\d"
        r"|^\W{0,3}(?:\w+\W{1,3}){0,2}(?:error|warning|info|debug) ?[:|]"
        r"|[-|] (?:error|warning|info|debug) [-|:]"
        r"|\b(?:step|iter(?:ation)?|epoch)\b.{0,40}\d.{0,200}\bloss\b|\bloss\b\W{1,4}\d)",
        "a log",
        "Give it with --log, beside a trace of the run; a message: fp8verify explain 'MESSAGE'.",
    ),
    _kind(
        r"\A(?:[^|\t,;\n]*[|\t,;][^\n]*\n){2}",
        "a table, without a column of kernel names and one of times that is headed by a unit",
        "Head its columns, such as kernel,total_ms,calls.",
    ),
    _kind(
        r"\A(?:\s*#.*\n)*\s*(?:\[\w[\w.]*\]\s*$|[\w.\"-]{1,80}\s*(?::[ \t]+\S|=)"
        r"|[\w.\"-]{1,80}:\s*\n\s+(?:- |[\w.\"-]{1,80}:\s))",
        "a configuration",
        "Check it: fp8verify doctor --config FILE. " + _RECORD,
    ),
)


def unknown_file(source: Source) -> InputError:
    """Return the error of text that is no trace, no table and no log of a BLAS library."""
    if source.damage is not None:
        return not_a_trace(source, "JSON")
    text = source.head.decode("utf-8", "replace").lstrip("\ufeff")
    written = [line for line in text.splitlines() if line.strip()]
    if not written or _is_binary(source.head):
        return not_a_trace(source, "JSON")
    first = written[0]
    if len(first) > _QUOTED:
        first = f"{first[:_QUOTED]}…"
    for kind in _KINDS:
        if kind.pattern.search(text):
            fact = f"looks like {kind.what}"
            return InputError(
                f"{source.name} is no trace: it begins with “{clean(first)}” and {fact}.",
                kind.hint,
            )
    return InputError(
        f"{source.name} is no trace: it begins with “{clean(first)}”, and is in no known form.",
        "Give a trace that torch.profiler exported (export_chrome_trace), a table with kernel names "
        "and times, or a folder of traces.",
    )


def _is_binary(head: bytes) -> bool:
    unusual = sum(byte < 32 and byte not in b"\t\n\r\x0c\x1b" for byte in head)
    return unusual > len(head) // 20
