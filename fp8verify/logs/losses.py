"""The training loss in a log: a table of the lines that frameworks print, and the scan."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from fp8verify.errors import UsageError

MAX_POINTS = 1_000_000
_MAX_LINE = 4096
PLAIN = "a plain loop"
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_NUMBER = r"(?:[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|(?i:[-+]?(?:nan|inf)\b))"


class LossPattern(NamedTuple):
    """A line that gives a loss: named group `loss`, and `step` where the line says it.

    Some frameworks count steps anew in each epoch: from `epoch` and `total`, the steps of an epoch,
    the step of the run is computed.
    """

    framework: str
    expression: str
    evidence: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """Compiled when it is first asked for: most logs need one of them."""
        return _compiled(self.expression)


class LossSeries(NamedTuple):
    """Loss by step. Where no line says its step, the lines are counted and `counted` is True.

    `gradients` are the gradient norms that the same lines give, before clipping as a rule. `epochs`
    are how far counted lines say the run is.
    """

    framework: str
    points: dict[int, float]
    counted: bool
    gradients: Mapping[int, float] = MappingProxyType({})
    epochs: Mapping[int, float] = MappingProxyType({})


def _row(framework: str, pattern: str, evidence: str) -> LossPattern:
    return LossPattern(framework, pattern.replace("NUM", _NUMBER), evidence)


@cache
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


# torchtitan "grad_norm:  1.2", Megatron-LM "grad norm: 1.2", Trainer "'grad_norm': 1.2".
_GRADIENT = re.compile(rf"\bgrad[_ ]?norm'?\s*[:=]\s*'?(?P<norm>{_NUMBER})", re.IGNORECASE)

# Trainer's dicts say no step, but `'epoch': 0.25`.
_EPOCH = re.compile(rf"'epoch': '?(?P<epoch>{_NUMBER})")

# The first row that matches any line of a log reads the whole log, so that no loss counts twice.
PATTERNS: tuple[LossPattern, ...] = (
    _row(
        "KempnerForge",
        r"\[step (?P<step>\d+)\] loss=(?P<loss>NUM)",
        "kempnerforge/metrics/logger.py, format_metrics",
    ),
    _row(
        "torchtitan",
        r"\bstep: +(?P<step>\d+) +loss: +(?P<loss>NUM)",
        "torchtitan/components/metrics.py, MetricsProcessor.log",
    ),
    _row(
        "Megatron-LM",
        r"\biteration +(?P<step>\d+)/ *\d+ \|.{0,600}?\blm loss: (?P<loss>NUM)",
        "megatron/training/training.py, training_log",
    ),
    _row(
        "Nanotron",
        r"\biteration: (?P<step>\d+) / \d+ \|.{0,600}?\blm_loss: (?P<loss>NUM)",
        "nanotron/src/nanotron/trainer.py, train_step_logs",
    ),
    _row(
        "NeMo",
        r"\bglobal_step: (?P<step>\d+) \|.{0,300}?\breduced_train_loss: (?P<loss>NUM)",
        "nemo/lightning/pytorch/callbacks/progress_printer.py, log_metrics",
    ),
    _row(
        "Lightning",
        r"\bEpoch (?P<epoch>\d+):.{0,80}?\b(?P<step>\d+)/(?P<total>\d+) \[.{0,300}?"
        r"\b(?:train[_/])?loss(?:_step)?=(?P<loss>NUM)",
        "lightning/pytorch/callbacks/progress/tqdm_progress.py; the name is the module's log()",
    ),
    _row(
        "nanoGPT",
        r"\biter (?P<step>\d+): loss (?P<loss>NUM)",
        "nanoGPT/train.py:323",
    ),
    _row(
        "Hugging Face Trainer",
        r"\{'loss': '?(?P<loss>NUM)'?, '(?:grad_norm|learning_rate)'",
        "transformers/trainer_callback.py, PrinterCallback; it prints no step",
    ),
    _row(
        PLAIN,
        r"\bstep[ :=]*(?P<step>\d+)(?:/\d+)?[\s,|:-]+(?:train[_ ]?)?loss[ :=]+(?P<loss>NUM)",
        "examples/train_gpt.py, llm.c/train_gpt2.py, modded-nanogpt",
    ),
)


def compile_loss_regex(text: str) -> LossPattern:
    """Make a pattern of a user's own, with a named group `loss` and, if it can, `step`.

    Raises:
        UsageError: it is not a regular expression, or has no group `loss`.
    """
    hint = r"Pass for instance --loss-regex 'step (?P<step>\d+).*loss (?P<loss>[\d.]+)'."
    try:
        pattern = _compiled(text)
    except re.error as error:
        raise UsageError(f"--loss-regex is no regular expression: {error}", hint) from None
    if "loss" not in pattern.groupindex:
        raise UsageError("--loss-regex has no group named loss", hint)
    return LossPattern("--loss-regex", text, "the command line")


class _Reading:
    """What one pattern has read of a log."""

    def __init__(self, pattern: LossPattern) -> None:
        self.pattern = pattern
        self.points: dict[int, float] = {}
        self.gradients: dict[int, float] = {}
        self.epochs: dict[int, float] = {}
        self.counted = False

    def take(self, line: str) -> bool:
        """Read a line; return whether it gives a loss."""
        match = self.pattern.pattern.search(line)
        if match is None:
            return False
        step = _step(match)
        self.counted = self.counted or step is None
        if len(self.points) < MAX_POINTS:
            place = len(self.points) + 1 if step is None else step
            self.points[place] = _value(match["loss"])
            self._note(line, place, counted=step is None)
        return True

    def _note(self, line: str, place: int, *, counted: bool) -> None:
        norm = _GRADIENT.search(line)
        if norm is not None:
            self.gradients[place] = _value(norm["norm"])
        epoch = _EPOCH.search(line) if counted else None
        if epoch is not None:
            self.epochs[place] = _value(epoch["epoch"])

    def series(self) -> LossSeries:
        """Return what was read."""
        name = self.pattern.framework
        return LossSeries(name, self.points, self.counted, self.gradients, self.epochs)


def scan_losses(
    lines: Iterable[str], patterns: tuple[LossPattern, ...] = PATTERNS
) -> LossSeries | None:
    """Return the loss by step of the first pattern that matches any line; None where none does.

    A step that appears twice, as after a restart or from several ranks, keeps its last value.
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
        new = next((one for one in map(_Reading, left) if one.take(line)), None)
        if new is not None:
            readings.append(new)
            is_plain = new.pattern.framework == PLAIN
            left = [one for one in left if one is not new.pattern] if is_plain else []
    best = max(readings, key=lambda reading: len(reading.points), default=None)
    return None if best is None else best.series()


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
