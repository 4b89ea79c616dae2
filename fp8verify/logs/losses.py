"""The training loss in a log: a table of the lines that frameworks print, and the scan."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from fp8verify.errors import UsageError
from fp8verify.text import lazy_pattern

MAX_POINTS = 1_000_000
_MAX_LINE = 4096
PLAIN = "a plain loop"
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# Ranks that write at once join their lines: “loss nanstep 5”.
_NUMBER = (
    r"(?:[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
    r"|(?i:[-+]?(?:nan(?!o)|inf(?:inity)?(?!o|e|l|r|i)))(?!_))"
)
_NOTHING: Mapping[int, float] = MappingProxyType({})


class LossPattern(NamedTuple):
    """A line that gives a loss: named group `loss`, and `step` where the line says it.

    Some frameworks count steps anew in each epoch: from `epoch` and `total`, the steps of an epoch,
    the step of the run is computed.
    """

    framework: str
    pattern: re.Pattern[str]


class LossSeries(NamedTuple):
    """Loss by step. Where no line says its step, the lines are counted and `counted` is True.

    `gradients` are the gradient norms that the same lines give, before clipping as a rule, and
    `times_us` the step times. `epochs` are how far counted lines say the run is.
    """

    framework: str
    points: dict[int, float]
    counted: bool
    gradients: Mapping[int, float] = _NOTHING
    epochs: Mapping[int, float] = _NOTHING
    times_us: Mapping[int, float] = _NOTHING


def _pattern(expression: str) -> re.Pattern[str]:
    """Return an expression, compiled when it is first used: most logs need one of them."""
    return lazy_pattern(expression.replace("NUM", _NUMBER))


# torchtitan "grad_norm:  1.2", Megatron-LM "grad norm: 1.2", Trainer "'grad_norm': 1.2".
_GRADIENT = _pattern(r"(?i:\bgrad[_ ]?norm)'?\s*[:=]\s*'?(?P<value>NUM)")
_EPOCH = _pattern(r"'epoch': '?(?P<value>NUM)")  # Trainer's dicts say no step
# Megatron-LM "elapsed time per iteration (ms): 123.4", nanoGPT "time 123.45ms", nanochat "dt: 9ms".
_TIME = _pattern(
    r"(?i:\belapsed time per iteration \((?P<unit>ms|s)\)[:=] ?(?P<value>NUM)"
    r"|\b(?:step[_ ]?time|time|dt)[ :=]+(?P<value2>NUM) ?(?P<unit2>ms|s)\b)"
)
_UNITS = {"s": 1e6, "ms": 1e3}

# The first row that matches any line of a log reads the whole log, so that no loss counts twice;
# the comment says where the line is written.
PATTERNS = tuple(
    LossPattern(framework, _pattern(expression))
    for framework, expression in (
        # kempnerforge/metrics/logger.py, format_metrics
        ("KempnerForge", r"\[step (?P<step>\d+)\] loss=(?P<loss>NUM)"),
        # torchtitan/components/metrics.py, MetricsProcessor.log
        ("torchtitan", r"\bstep: +(?P<step>\d+) +loss: +(?P<loss>NUM)"),
        # megatron/training/training.py, training_log
        ("Megatron-LM", r"\biteration +(?P<step>\d+)/ *\d+ \|.{0,600}?\blm loss: (?P<loss>NUM)"),
        # nanotron/src/nanotron/trainer.py, train_step_logs
        ("Nanotron", r"\biteration: (?P<step>\d+) / \d+ \|.{0,600}?\blm_loss: (?P<loss>NUM)"),
        # nemo/lightning/pytorch/callbacks/progress_printer.py, log_metrics
        ("NeMo", r"\bglobal_step: (?P<step>\d+) \|.{0,300}?\breduced_train_loss: (?P<loss>NUM)"),
        # lightning/pytorch/callbacks/progress/tqdm_progress.py; the name is the module's log()
        (
            "Lightning",
            (
                r"\bEpoch (?P<epoch>\d+):.{0,80}?\b(?P<step>\d+)/(?P<total>\d+) \[.{0,300}?"
                r"\b(?:train[_/])?loss(?:_step)?=(?P<loss>NUM)"
            ),
        ),
        # nanoGPT/train.py:323
        ("nanoGPT", r"\biter (?P<step>\d+): loss (?P<loss>NUM)"),
        # transformers/trainer_callback.py, PrinterCallback; it prints no step
        ("Hugging Face Trainer", r"\{'loss': '?(?P<loss>NUM)'?, '(?:grad_norm|learning_rate)'"),
        # examples/train_gpt.py, llm.c/train_gpt2.py, modded-nanogpt
        (
            PLAIN,
            r"\bstep[ :=]*(?P<step>\d+)(?:/\d+)?[\s,|:-]+(?:train[_ ]?)?loss[ :=]+(?P<loss>NUM)",
        ),
    )
)


def compile_loss_regex(text: str) -> LossPattern:
    """Make a pattern of a user's own, with a named group `loss` and, if it can, `step`.

    Raises:
        UsageError: it is not a regular expression, or has no group `loss`.
    """
    hint = r"Pass for instance --loss-regex 'step (?P<step>\d+).*loss (?P<loss>[\d.]+)'."
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise UsageError(f"--loss-regex is no regular expression: {error}", hint) from None
    if "loss" not in pattern.groupindex:
        raise UsageError("--loss-regex has no group named loss", hint)
    return LossPattern("--loss-regex", pattern)


class _Reading:
    """What one pattern has read of a log."""

    def __init__(self, pattern: LossPattern) -> None:
        self._pattern = pattern.pattern
        self._points: dict[int, float] = {}
        self._notes: tuple[dict[int, float], ...] = ({}, {}, {})
        self.series = LossSeries(pattern.framework, self._points, False, *self._notes)

    def take(self, line: str) -> bool:
        """Read a line; return whether it gives a loss."""
        match = self._pattern.search(line)
        if match is None:
            return False
        step = _step(match)
        if step is None:
            self.series = self.series._replace(counted=True)
        if len(self._points) < MAX_POINTS:
            place = len(self._points) + 1 if step is None else step
            # A step may appear twice, as after a restart or from several ranks: the last value
            # counts, but a number does not hide another rank's NaN.
            if math.isfinite(self._points.get(place, 0.0)):
                self._points[place] = _value(match["loss"])
            patterns = (_GRADIENT, _EPOCH if step is None else None, _TIME)
            for values, pattern in zip(self._notes, patterns, strict=True):
                found = pattern.search(line) if pattern is not None else None
                if found is not None:
                    values[place] = _figure(found.groupdict())
        return True


def _figure(groups: Mapping[str, str | None]) -> float:
    """Return a number that a line gives; a time in µs."""
    unit = (groups.get("unit") or groups.get("unit2") or "").lower()
    return _value(groups.get("value") or groups.get("value2")) * _UNITS.get(unit, 1.0)


def scan_losses(
    lines: Iterable[str], patterns: tuple[LossPattern, ...] = PATTERNS
) -> LossSeries | None:
    """Return the loss by step of the first pattern that matches any line; None where none does.

    Values that are not numbers count as NaN. What looks like a plain loop may be a framework's
    evaluation before its first step, as nanoGPT's: of the two the one with more steps counts.
    """
    readings: list[_Reading] = []
    left = list(patterns)
    for raw in lines:
        line = raw[:_MAX_LINE]
        if patterns is PATTERNS and "loss" not in line.lower():
            continue
        if "\x1b" in line:
            line = _ANSI.sub("", line)
        if any(reading.take(line) for reading in readings):
            continue
        for pattern in left:
            reading = _Reading(pattern)
            if reading.take(line):
                readings.append(reading)
                is_plain = pattern.framework == PLAIN
                left = [one for one in left if one is not pattern] if is_plain else []
                break
    found = (reading.series for reading in readings)
    return max(found, key=lambda series: len(series.points), default=None)


def _step(match: re.Match[str]) -> int | None:
    groups = match.groupdict()
    try:
        step = int(groups.get("step") or "")
        return step + int(groups.get("epoch") or 0) * int(groups.get("total") or 0)
    except ValueError:
        return None


def _value(text: str | None) -> float:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return math.nan
