"""The training loss in a log: the lines of `frameworks/NAME.toml`, and the scan."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from fp8verify.errors import UsageError
from fp8verify.frameworks.expressions import MAX_TEXT, fault_of, fixed_word
from fp8verify.frameworks.known import OWN, Framework, frameworks
from fp8verify.logs.lines import read_lines, uncolored

MAX_POINTS = 1_000_000
_MAX_LINE = 4096
PLAIN = "a plain loop"
# Ranks that write at once join their lines: “loss nanstep 5”.
_NUMBER = (
    r"(?:[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
    r"|(?i:[-+]?(?:nan(?!o)|inf(?:inity)?(?!o|e|l|r|i)))(?!_))"
)
_LIKE_THIS = (
    r"Pass for instance --loss-regex 'step (?P<step>\d+).{0,80}loss (?P<loss>\S+)'."
)
_NOTHING: dict[int, float] = {}  # never written to


class LossSeries(NamedTuple):
    """Loss by step. Where no line says its step, the lines are counted and `counted` is True.

    `times_us` are the step times that the same lines give. `epochs` are how far counted lines
    say the run is.
    """

    framework: str
    points: dict[int, float]
    counted: bool
    epochs: dict[int, float] = _NOTHING
    times_us: dict[int, float] = _NOTHING


@cache
def _pattern(expression: str) -> re.Pattern[str]:
    """Return an expression with NUM for a number.

    A first word is looked for literally, which is four times as fast, and then what precedes it.
    """
    literal_first = re.sub(r"^\\b(\w+)", r"\1(?<!\\w\1)", expression)
    return re.compile(literal_first.replace("NUM", _NUMBER))


# Of lines in lower case.
# Megatron-LM "elapsed time per iteration (ms): 123.4", nanoGPT "time 123.45ms", nanochat "dt: 9ms".
_TIME = (
    r"\b(?:elapsed time per iteration \((?P<unit>ms|s)\)[:=] ?(?P<value>NUM)"
    r"|(?:step[_ ]?time|time|dt)[ :=]+(?P<value2>NUM) ?(?P<unit2>ms|s)\b)"
)
_EPOCH = r"'epoch': '?(?P<value>NUM)"  # Trainer's dicts say no step
_UNITS = {"s": 1e6, "ms": 1e3}


@lru_cache(maxsize=2)
def _patterns(known: tuple[Framework, ...]) -> list[tuple[str, re.Pattern[str], int]]:
    """Return whose lines have losses, a plain loop's last, and how much of a line to search.

    Groups are `loss`, and `step` where the line says it. Some frameworks count steps anew in each
    epoch: from `epoch` and `total`, the steps of an epoch, the step of the run is computed.
    """
    patterns = []
    for framework in known:
        if framework.loss is None:
            continue
        name = framework.name
        if name == OWN:
            name = PLAIN
        searched = _MAX_LINE
        if framework.declared:
            searched = MAX_TEXT
        patterns.append((name, _pattern(framework.loss), searched))
    return patterns


def loss_expression(text: str) -> re.Pattern[str]:
    """Return a user's expression for lines with a loss: a group `loss` and, if it can, `step`.

    Raises:
        UsageError: it is none, has no such group, or may take forever.
    """
    if fault := fault_of(text):
        raise UsageError(f"--loss-regex {text[:80]!r} {fault}.", _LIKE_THIS)
    pattern = re.compile(text, re.IGNORECASE)
    if "loss" not in pattern.groupindex:
        raise UsageError("--loss-regex has no group named loss.", _LIKE_THIS)
    return pattern


def read_losses(
    logs: Sequence[Path], own: re.Pattern[str] | None = None
) -> LossSeries | None:
    """Return what `scan_losses` finds in logs.

    Args:
        logs: the logs of one run, in order.
        own: the only line with a loss, of `loss_expression`; None for those of all frameworks.

    Raises:
        InputError: a log cannot be opened or read.
    """
    if not logs:
        return None
    words = [b"loss"]
    for framework in frameworks():
        if framework.declared and framework.loss is not None:
            words.append(fixed_word(framework.loss).encode())
    if own is not None:
        words = [fixed_word(own.pattern).encode()]
    lines = chain.from_iterable(read_lines(log, words=words) for log in logs)
    return scan_losses((line.text for line in lines), own)


def scan_losses(
    lines: Iterable[str], own: re.Pattern[str] | None = None
) -> LossSeries | None:
    """Return the loss by step of the first pattern that matches any line; None if none does.

    The first that matches reads the whole log, so no loss counts twice. Values that are not numbers
    count as NaN. What looks like a plain loop may be a framework's evaluation before its first
    step, as nanoGPT's: of the two the one with more steps counts.
    """
    found: dict[str, LossSeries] = {}
    patterns = _patterns(frameworks())
    if own is not None:
        patterns = [("--loss-regex", own, MAX_TEXT)]
    left = patterns
    for raw in lines:
        line = uncolored(raw[:_MAX_LINE])
        name, match = _first_match(left, line)
        if match is None:
            continue
        if name not in found:
            found[name] = LossSeries(
                framework=name,
                points={},
                counted=False,
                epochs={},
                times_us={},
            )
            left = [one for one in patterns if name == PLAIN or one[0] in found]
        step = _step(match)
        if step is None:
            found[name] = found[name]._replace(counted=True)
        _take(found[name], step, line, _value(match["loss"]))
    return max(found.values(), key=lambda series: len(series.points), default=None)


def _first_match(
    patterns: Iterable[tuple[str, re.Pattern[str], int]],
    line: str,
) -> tuple[str, re.Match[str] | None]:
    """Return whose pattern matches a line first, and the match."""
    for name, pattern, searched in patterns:
        match = pattern.search(line, 0, searched)
        if match is not None:
            return name, match
    return "", None


def _take(
    series: LossSeries,
    step: int | None,
    line: str,
    loss: float,
) -> None:
    """Add what a line with a loss says."""
    points = series.points
    if len(points) >= MAX_POINTS:
        return
    number = step
    if number is None:
        number = len(points) + 1
        epoch = _pattern(_EPOCH).search(line)
        if epoch:
            series.epochs[number] = _value(epoch["value"])
    # A step may appear twice, as after a restart or from several ranks: the last value counts, but
    # a number does not hide another rank's NaN.
    if math.isfinite(points.get(number, 0.0)):
        points[number] = loss
    lower = line.lower()
    if "time" not in lower and "dt" not in lower:
        return
    time = _pattern(_TIME).search(lower)
    if time:
        unit = time["unit"] or time["unit2"]
        value = time["value"] or time["value2"]
        series.times_us[number] = _value(value) * _UNITS[unit]


def _step(match: re.Match[str]) -> int | None:
    groups = match.groupdict()
    try:
        step = int(groups.get("step") or "")
        epoch = int(groups.get("epoch") or 0)
        steps_of_epoch = int(groups.get("total") or 0)
        return step + epoch * steps_of_epoch
    except ValueError:
        return None


def _value(text: str | None) -> float:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return math.nan
