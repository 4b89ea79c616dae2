"""Signs in a log that a run is not well: lost steps, uncompiled code, and known warnings.

A step whose gradients are not finite moves no weight where the framework skips it, so the loss
stays finite and only the gradient norm, or the line about the skipped step, tells.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from fp8verify.logs.failures import Failure, known_warnings, warning_in
from fp8verify.logs.lines import Line, read_lines, uncolored
from fp8verify.patterns import lazy_pattern

MAX_SIGNS = 10_000
_MAX_LINE = 4096
_SHOWN = 120
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?)\b"
_IS = r"['\"]?\s{0,3}(?:[:=|]|\bis\b)?\s{0,8}(?:tensor\()?['\"]?"
# Of lines in lower case. Megatron-LM "grad norm: nan", Trainer "'grad_norm': nan", torchtitan
# "grad_norm:  nan", fairseq "gnorm nan".
_NORM: Final = lazy_pattern(
    rf"(?:grad(?:ient)?s?[_ /.-]?norm|\bgnorm|\btotal_norm){_IS}(?P<value>{_NUMBER})"
)
# llm.c "step 5/20 | loss 2.1 | norm nan", and many loops of their own: a field of a step's line.
_FIELD_NORM: Final = lazy_pattern(
    rf"(?:^|[|,;\t(]|[\d)%*] |  )\s{{0,8}}['\"]?norm{_IS}(?P<value>{_NUMBER})"
)
_LOSS: Final = lazy_pattern(rf"loss{_IS}(?P<value>{_NUMBER})")
# Megatron-LM, of the iterations since its last line.
_COUNT: Final = lazy_pattern(
    r"number of (?P<what>nan|skipped) iterations: {0,8}(?P<n>\d+)"
)
# Apex, DeepSpeed, fairseq, and loops that write their own.
_SKIPPED: Final = lazy_pattern(
    r"grad(?:ient)?s? overflow|\boverflow! |overflow detected"
    r"|skipp(?:ing|ed) (?:the |this )?(?:optimizer )?(?:step|update|batch)\b.{0,80}"
    r"(?:scale|overflow|\bnans?\b|\binfs?\b|found_inf)"
    r"|(?:step|update|batch) (?:was |is )?skipped\b.{0,60}"
    r"(?:overflow|\bnans?\b|\binfs?\b|found_inf)"
    r"|(?:\bnans?\b|\binfs?\b|non-?finite|overflow).{0,80}skipp(?:ing|ed) "
    r"(?:the |this |optimizer )?(?:step|update|batch)\b(?!e?s?: ?\d)"
)
# verl "grad_norm is not finite", Megatron-LM "found NaN in local forward loss calculation", and the
# loss in tqdm's bar of steps: "10/1600 [00:50<2:13:00,  5.02s/it, avr_loss=nan]".
_NOT_FINITE: Final = lazy_pattern(
    r"grad(?:ient)?s?(?:[_ ]?norm)? (?:is |are )?(?:not |non-?)finite"
    r"|found (?:nan|inf)s? in (?:the |local )?(?:forward|backward|grad|loss)"
    r"|\d/\d+ \[[^\]]{0,200}[\s,](?:av[gr]_|train_|lm_)?loss=(?:nan|inf)\b"
)
# The loss scale after it was lowered, and as Megatron-LM and others write it in each step.
_LOWERED: Final = lazy_pattern(
    r"(?:reducing|lowering|decreas\w+|setting)\b.{0,60}?\bto:? {0,3}(?P<scale>\d[\d.]*(?:e\+?\d+)?)"
)
_SCALE: Final = lazy_pattern(
    r"(?:loss|grad)[_ ]?scale['\"]?\s{0,3}[:=]\s{0,3}(?P<scale>\d[\d.]*(?:e\+?\d+)?)"
)
_STEP: Final = lazy_pattern(
    r"\b(?:global[_ ]?step|step|iter(?:ation)?)s?\b['\"]?\s{0,3}[:=#]?\s{0,6}\[?(?P<step>\d{1,12})(?!\d|%)"
)
# In tqdm's bar, which begins with a share: "steps:   1%|▏  | 10/1600 [00:50<".
_BAR_STEP: Final = lazy_pattern(r"\|\s{0,3}(?P<step>\d{1,12})/\d{1,12} \[\d")
# Losses and figures of other data than the steps'.
_ELSEWHERE: Final = lazy_pattern(r"\b(?:eval|valid|val|test)|train_runtime")
# Not a line of the run: comments, quotations, and source code with its condition.
_FOREIGN: Final = lazy_pattern(
    r"\s*(?:#|//|/\*|<!--|\"{1,3}|`|>)|\s*(?:if|assert|raise|print)\b"
)
_WORDS: Final = (
    b"grad", b"norm", b"loss", b"nan", b"overflow", b"skip",
)  # fmt: skip
# torch/_dynamo/convert_frame.py; config.cache_size_limit before torch 2.6; TORCH_LOGS=graph_breaks
# (torch/_dynamo/symbolic_convert.py).
_LEFT: Final = lazy_pattern(
    r"WON'T CONVERT|torch\._dynamo hit config\.\w*(?:recompile|cache_size)_limit"
)
_GRAPH_BREAK: Final = lazy_pattern(
    r"Graph break (?:in user code at|from user code at|\(user stack suppressed)"
)
_DYNAMO_WORDS: Final = (b"won't convert", b"torch._dynamo hit", b"graph break")


class Sign(NamedTuple):
    """A line and what it says; `place` is the step, or the one before, if any is known."""

    line: int
    place: str
    text: str


class Warned(NamedTuple):
    """A known warning of a log: the first line that has it, and how many lines have it."""

    known: Failure
    line: int
    text: str
    times: int


class LogSigns(NamedTuple):
    """What a log says of lost steps, of code that ran uncompiled, and of what was not as asked.

    Attributes:
        broken: the steps whose gradients were not finite, or that were skipped for it; where lines
            do not say their step, all that stand between two sound steps and read alike are one.
        more: further such steps that a line of several steps counts.
        stands_last: whether no sound step follows the last of them.
        settling: whether all are of a loss scaler that looks for its first scale.
        left: what the compiler says that it left uncompiled.
        graph_breaks: where it says that a graph was broken.
        warned: the known warnings, in the order of their first lines.
    """

    broken: tuple[Sign, ...] = ()
    more: int = 0
    stands_last: bool = False
    settling: bool = False
    left: tuple[Sign, ...] = ()
    graph_breaks: tuple[Sign, ...] = ()
    warned: tuple[Warned, ...] = ()

    @property
    def is_grave(self) -> bool:
        """Whether steps were lost again and again, or the log ends with one."""
        repeats = len(self.broken) + self.more > 1
        return bool(self.broken) and (
            self.stands_last or (repeats and not self.settling)
        )


def read_signs(logs: Sequence[Path]) -> LogSigns:
    """Return what `scan_signs` finds in logs.

    Raises:
        InputError: a log cannot be opened or read.
    """
    if not logs:
        return LogSigns()  # the table of warnings takes a while to read
    of_warnings = [word.encode() for row in known_warnings() for word in row.words]
    words = (*_WORDS, *_DYNAMO_WORDS, *of_warnings)
    return scan_signs(chain.from_iterable(read_lines(log, words=words) for log in logs))


def scan_signs(lines: Iterable[Line]) -> LogSigns:
    """Read the lines of a log in their order."""
    steps = _Steps()
    left = []
    graph_breaks = []
    warned: dict[Failure, Warned] = {}
    for line in lines:
        text = uncolored(line.text[:_MAX_LINE])
        if _LEFT.search(text):
            left.append(Sign(line.number, "", text.strip()[:_SHOWN]))
        elif _GRAPH_BREAK.search(text):
            graph_breaks.append(Sign(line.number, "", text.strip()[:_SHOWN]))
        elif not _FOREIGN.match(text):
            _count_warning(warned, line.number, text)
            steps.hear(line.number, text)
    return LogSigns(
        broken=tuple(steps.broken),
        more=steps.more,
        stands_last=bool(steps.broken) and not steps.sound_since,
        settling=steps.are_all_early and steps.has_scaler,
        left=tuple(left[:MAX_SIGNS]),
        graph_breaks=tuple(graph_breaks[:MAX_SIGNS]),
        warned=tuple(warned.values()),
    )


def _count_warning(
    warned: dict[Failure, Warned],
    number: int,
    text: str,
) -> None:
    known = warning_in(text)
    if known is None:
        return
    first = warned.get(known)
    if first is None:
        first = Warned(known, number, _quoted(known, text.strip()), 0)
    warned[known] = first._replace(times=first.times + 1)


def _quoted(known: Failure, text: str) -> str:
    """Return a line, or of a long one the part that is known."""
    found = known.pattern.search(text)
    start = found.start() if found and len(text) > _SHOWN else 0
    return text[start : start + _SHOWN]


class _Steps:
    """The steps of a log so far: which were lost, and whether a sound one came since."""

    def __init__(self) -> None:
        self.broken: list[Sign] = []
        self.more = 0
        self.sound_since = False
        self.are_all_early = True
        self.has_scaler = False
        self._was_sound = False
        self._seen: set[tuple[str, str]] = set()
        self._scale = math.inf
        self._lowest = math.inf
        self._step = ""

    def hear(self, number: int, text: str) -> None:
        """Take in the next line."""
        lower = text.lower()
        place = f"after step {self._step}" if self._step else ""
        own = _STEP.search(lower) or _BAR_STEP.search(lower)
        if own is not None:
            self._step = str(int(own["step"]))
            place = f"at step {self._step}"
        lowered = _LOWERED.search(lower)
        fallen = self._fallen(lower)
        said = _what_is_wrong(lower) or fallen
        if said and lowered is not None:
            self._lose(Sign(number, place, said), lower, float(lowered["scale"]))
        elif said:
            self._lose(
                Sign(number, place, said), lower, self._scale if fallen else None
            )
        elif _is_sound(lower) and not self._is_of_the_lost(place):
            self.sound_since = True
            self._was_sound = True
            self._seen.clear()

    def _is_of_the_lost(self, place: str) -> bool:
        """Whether a line is of the step that was lost last, as its loss may have its own line."""
        return (
            bool(self.broken)
            and place.startswith("at")
            and self.broken[-1].place == place
        )

    def _lose(
        self,
        sign: Sign,
        lower: str,
        scale: float | None,
    ) -> None:
        """Count a step as lost; `scale` is the loss scale that a scaler lowered for it."""
        if scale is not None:
            self.has_scaler = True
            if scale >= self._lowest:
                return  # a scaler tries a larger scale from time to time, and goes back
            self._lowest = scale
        # Every rank, or logger, may write one step's line.
        key = (sign.place, "" if sign.place.startswith("at") else lower[-_SHOWN:])
        if key in self._seen or len(self.broken) >= MAX_SIGNS:
            return
        self._seen.add(key)
        if self._was_sound:
            self.are_all_early = False
        self.broken.append(sign)
        self.more += max(1, *_counts(lower), 1) - 1
        self.sound_since = False

    def _fallen(self, lower: str) -> str:
        """Say by how much the loss scale fell since the line before, if by half or more."""
        found = _SCALE.search(lower)
        # Settings and other lines name scales that no step used.
        if found is None or not _is_sound(lower) or not _STEP.search(lower):
            return ""
        before = self._scale
        self._scale = float(found["scale"])
        if math.isinf(before):
            self._lowest = self._scale
        if math.isinf(before) or self._scale > before / 2:
            return ""
        return f"the loss scale fell from {before:g} to {self._scale:g}"


def _what_is_wrong(lower: str) -> str:
    """Say what is wrong with the step of a line, or nothing."""
    for found in _NORM.finditer(lower):
        value = float(found["value"])
        if not math.isfinite(value):
            return f"the gradient norm is {value:g}"
    norm = _norm_of_field(lower)
    if norm is not None and not math.isfinite(norm):
        return f"the norm is {norm:g}"
    counted = max(_counts(lower), default=0)
    if counted:
        if counted == 1:
            return "1 step was skipped"
        return f"{counted} steps were skipped"
    if _SKIPPED.search(lower):
        return "a step was skipped"
    if _NOT_FINITE.search(lower):
        return "the loss or a gradient is not finite"
    return ""


def _norm_of_field(lower: str) -> float | None:
    """Return the field "norm" of the line of a training step: no other one is its gradients'."""
    if not _STEP.search(lower) or _ELSEWHERE.search(lower):
        return None
    found = _FIELD_NORM.search(lower)
    return None if found is None else float(found["value"])


def _counts(lower: str) -> Iterator[int]:
    for found in _COUNT.finditer(lower):
        yield min(int(found["n"]), MAX_SIGNS)


def _is_sound(lower: str) -> bool:
    """Whether a line is of a training step with a finite loss or gradient norm."""
    if _ELSEWHERE.search(lower):
        return False
    losses = [float(found["value"]) for found in _LOSS.finditer(lower)]
    if losses:
        return all(map(math.isfinite, losses))
    return _NORM.search(lower) is not None or _norm_of_field(lower) is not None
