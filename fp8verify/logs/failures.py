"""The error that a run ended with, and the causes that are known: the rows of failures.toml."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from fp8verify.errors import InputError
from fp8verify.files import parse_toml
from fp8verify.logs.lines import read_lines
from fp8verify.patterns import lazy_pattern

MAX_LINE = 4096
# What is known of these does not end a run.
_WARNING = lazy_pattern(
    r"(?i)\bwarning\b|won't convert|hit config\.|lowering|target: aten"
)
# One of these is in a line with which a run ends.
_ERROR_LIKE = lazy_pattern(
    r"(?i)error|exception|fatal|\bassert|fail|abort|unsupported|not (?:yet |currently )?support"
    r"|cannot|unable|invalid|out of memory|must |expected|require|not in valid|not found"
    r"|no module|undefined symbol"
)
# Words that many messages have tell none apart.
_COMMON = frozenset(
    {"error", "runtimeerror", "warning", "assertionerror", "valueerror", "expected", "supported"}
    | {"not", "with", "that", "this", "from", "must", "have", "does", "only", "when", "line"}
    | {"cannot", "tensor", "input", "version", "requires", "using", "found", "type", "name"}
    | {"attribute", "module", "device", "data", "argument", "import", "object", "installed"}
)  # fmt: skip
# A known message is near if another one has most of its words, and of them at least this many.
_SHARED = 3
_MOST = 0.6
MAX_CAUSES = 5
_BEFORE = 80  # lines of a traceback
# One of these is in every known message, and not in a line of a step: to try all costs 0.1 ms.
_WORDS = (
    "error", "warning", "not ", "cannot", "must be", "requires", "support", "expected", "aborting",
    "incorrectly", "unable", "autocast", "insufficient", "out of memory", "no attribute",
    "no module", "is off", "failed", "functionaltensor", "won't convert", "hit config", "fallback",
    "target: aten", "dtype", "leaf variable", "loweringexception", "deprecated", "handled",
    "invoked", "match", "required for", "forcing", "ignoring", "default module", "linear modules",
    "default to", "invalid choice", "requirement", "architecture-specific", "unknown",
    "is invalid", "import name", "declined", "scale", "param_ag", "param-ag", "more than once",
    "expect to", "couldn't find", "undefined symbol", "scaling",
    "unrecognized",
    "missing key", "unexpected key", "nan", "build", "inductor", "ptxas", "subprocess-", "metadata-",
    "torch._dynamo", "compute capability",
    "bitsandbytes", "8bit", "illegal instruction", "fused_attn", "cudnn", "csrc/", "sdpa_",
)  # fmt: skip


class Failure(NamedTuple):
    """A row of failures.toml.

    Attributes:
        check: the doctor's code that tells it beforehand, or "".
        pattern: of the message.
        near: of the message or of what is before it, where the message alone has many causes.
        cause: of it.
        remedy: the next step.
        evidence: where that is from.
        words: of a warning: lower-case words of which each such line has one.
        is_general: whether it counts only where no other row knows a message.
        is_harmless: whether nothing is wrong: such a message is only explained.
    """

    check: str
    pattern: re.Pattern[str]
    near: re.Pattern[str]
    cause: str
    remedy: str
    evidence: str
    words: tuple[str, ...] = ()
    is_general: bool = False
    is_harmless: bool = False


class Cause(NamedTuple):
    """A known message in a log: the line, its number, and what is known about it.

    `is_certain` is False where the message has many causes and nothing near it is about FP8.
    """

    line: int
    text: str
    failure: Failure
    is_certain: bool

    @property
    def ends_run(self) -> bool:
        """Whether it is an error; after a warning, or a step whose loss is NaN, the run goes on."""
        if self.failure.words or self.failure.is_harmless:
            return False
        is_error = _ERROR_LIKE.search(self.text) is not None
        return is_error and _WARNING.search(self.text) is None


@cache
def _table() -> dict[str, Any]:
    text = Path(__file__).with_name("failures.toml").read_text(encoding="utf-8")
    return parse_toml(text)


@cache
def failures() -> tuple[Failure, ...]:
    """Return the known messages: errors, warnings, what is harmless, and last the general ones."""
    table = _table()
    rows = [_failure(row) for row in table["failures"]]
    rows.extend(known_warnings())
    for row in table["harmless"]:
        rows.append(_failure(row)._replace(is_harmless=True))
    for row in table["general"]:
        rows.append(_failure(row)._replace(is_general=True))
    return tuple(rows)


def _failure(row: Sequence[str]) -> Failure:
    check, pattern, near, cause, remedy, evidence = row
    return Failure(
        check=check,
        pattern=re.compile(pattern),
        near=re.compile(near),
        cause=cause,
        remedy=remedy,
        evidence=evidence,
    )


@cache
def known_warnings() -> tuple[Failure, ...]:
    """Return the known messages after which a run goes on, in another way than was asked for."""
    rows = []
    for words, *row in _table()["warnings"]:
        rows.append(_failure(row)._replace(words=tuple(words)))
    return tuple(rows)


def warning_in(line: str) -> Failure | None:
    """Return the known warning that a line is."""
    lower = line.lower()
    for row in known_warnings():
        has_word = any(word in lower for word in row.words)
        if has_word and row.pattern.search(line) and row.near.search(line):
            return row
    return None


def causes(lines: Iterable[str], *, alone: bool = False) -> list[Cause]:
    """Return what is known about the messages in a log, each cause once, the first line of it.

    Args:
        lines: the log, or its end.
        alone: whether these are messages without the tracebacks around them, so what is
            near them cannot tell whether they are about FP8.
    """
    found: dict[Failure, Cause] = {}
    before: deque[str] = deque(maxlen=_BEFORE)
    for number, raw in enumerate(lines, start=1):
        line = raw[:MAX_LINE].rstrip("\r\n")
        for row in _rows_of(line):
            is_certain = any(map(row.near.search, (line, *before)))
            is_told = is_certain and not row.is_harmless
            if row not in found and (is_told or alone):
                found[row] = Cause(number, line.strip()[:300], row, is_certain)
        before.append(line)
    return list(islice(found.values(), MAX_CAUSES))


def _rows_of(line: str) -> list[Failure]:
    """Return the rows whose pattern a line has, a general one only if it is alone."""
    lower = line.lower()
    if not any(word in lower for word in _WORDS):
        return []
    rows: list[Failure] = []
    for row in failures():
        is_new = not (row.is_general and rows)
        if is_new and row.pattern.search(line):
            rows.append(row)
    return rows


def nearest(message: str) -> Failure | None:
    """Return the known message of which one that is not known has most words, None if none is near.

    A word or two in common, such as a library and a format, do not make messages alike. None is
    near one that is not about low precision.
    """
    if _LOW_WORDS.search(message) is None:
        return None
    words = _words_of(message[:MAX_LINE])
    best = None
    best_share = 0.0
    for row in failures():
        share = _likeness(row, words)
        if share > best_share:
            best = row
            best_share = share
    return best


def _likeness(row: Failure, words: set[str]) -> float:
    """Return the largest share of words of a row's messages that are given, 0 below the bar."""
    largest = 0.0
    for known in _messages_of(row):
        shared = len(known & words)
        share = shared / len(known)
        if shared >= _SHARED and share >= _MOST:
            largest = max(largest, share)
    return largest


@cache
def _messages_of(row: Failure) -> tuple[frozenset[str], ...]:
    """Return the words of each message that a row's pattern matches, as far as they tell it."""
    messages = []
    for part in row.pattern.pattern.split("|"):
        words = _words_of(re.sub(r"\\[A-Za-z]", " ", part))
        if len(words) >= _SHARED:
            messages.append(frozenset(words))
    return tuple(messages)


def _words_of(text: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Za-z_]\w{3,}", text)} - _COMMON


# cudaDataType_t and hipDataType, by which torch names the operands of a GEMM that failed.
_OPERANDS = {
    "0": "FP32", "1": "FP64", "2": "FP16", "3": "INT8", "14": "BF16", "28": "FP8 (E4M3)",
    "29": "FP8 (E5M2)", "33": "FP4 (E2M1)", "1000": "FP8 (E4M3)", "1001": "FP8 (E5M2)",
}  # fmt: skip
_OPERAND_TYPE = lazy_pattern(r"\babType (\d{1,4})\b")
_LOW_WORDS = lazy_pattern(
    r"(?i)fp8|float_?8|f8e[45]m|e4m3|e5m2|e8m0|fp4|float_?4|e2m1|mx_?fp|nvfp|transformer.?engine|torchao"
    r"|scaled_mm|quanti[sz]|amax|deep_?gemm|\bte\b|msamp|8.?bit|int8|(?:cu|roc|hip)blas|cutlass|gemm|matmul"
    r"|low.?precision|recipe|wise scaling"
)


def operands_of(message: str) -> str:
    """Return the format of the operands that a message of torch tells by number, "" if none."""
    operands = _OPERAND_TYPE.search(message)
    if operands and operands[1] in _OPERANDS:
        return f"the operands of its GEMM are {_OPERANDS[operands[1]]} (abType {operands[1]})"
    return ""


def about(message: str) -> str:
    """Return what the words of a message tell about its format, "" if nothing."""
    if _LOW_WORDS.search(message) is None:
        return "no word of it is about FP8 or another low-precision format"
    return operands_of(message)


def failure_notes(logs: Iterable[Path]) -> Iterator[str]:
    """Yield one sentence for each known cause that the logs of a failed run tell."""
    for log in logs:
        with suppress(InputError):  # the report itself mentions an unreadable log
            for cause in causes(line.text for line in read_lines(log)):
                row = cause.failure
                if not cause.ends_run:
                    continue
                doctor = ""
                if row.check:
                    doctor = f" (doctor: {row.check})"
                place = f"the run failed, {log.name} line {cause.line}"
                yield f"{place}; a known cause: {row.cause}. {row.remedy}{doctor}"


# What begins a traceback, also below a launcher's prefix such as "[rank0]: ". A SyntaxError of the
# script itself has only the second.
_BEGINS = lazy_pattern(
    r"(.{0,80}?)(?:Traceback \(most recent call last\):|  File \"[^\"]+\", line \d)"
)
# What argparse and click print about our options placed after the script.
_MISPLACED_OPTION = lazy_pattern(
    r"(?:unrecognized arguments|No such option):.*?(--[a-z-]+)", re.IGNORECASE
)
_ERROR = lazy_pattern(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?::.*|\s*)$")
# Raised because another process failed, by launchers and by ranks that lost a peer.
_CONSEQUENCES = lazy_pattern(
    r"(?:\w+\.)*(?:ChildFailedError|CalledProcessError|ProcessExitedException|DistBackendError"
    r"|DistNetworkError|DistStoreError|SignalException|ConnectionResetError|BrokenPipeError)\b"
)
_MAX_ERROR = 160
_MAX_LINES = 200_000


def last_error(logs: Iterable[Path]) -> str | None:
    """Return the last line of the last traceback in some logs, None without one.

    Errors of a launcher or of another rank, raised because a worker failed, count only if there is
    no other.
    """
    found: list[str] = []
    for log in logs:
        with suppress(
            InputError
        ):  # the report itself has a note on a log that cannot be read
            found += _errors(
                islice((line.text for line in read_lines(log)), _MAX_LINES)
            )
    own = [error for error in found if not _CONSEQUENCES.match(error)]
    return next(reversed(own or found), None)


def _errors(lines: Iterable[str]) -> Iterator[str]:
    """Yield the line that ends each traceback; those of several ranks may be interleaved."""
    within: set[str] = set()  # the prefixes of the tracebacks that have not ended
    for line in lines:
        if _MISPLACED_OPTION.search(line):
            yield line.strip()[:_MAX_ERROR]
        begins = _BEGINS.match(line)
        if begins is not None:
            within.add(begins[1])
            continue
        for prefix in [prefix for prefix in within if line.startswith(prefix)]:
            text = line[len(prefix) :]
            if text.strip() and not text[0].isspace():
                within.discard(prefix)
                if _ERROR.match(text):
                    yield text.rstrip()[:_MAX_ERROR].rstrip(":")
