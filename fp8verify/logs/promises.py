"""A log's statements on formats of single layers and ranges of steps: pins, BF16 warm-ups.

They are kept apart from claims because a claim holds for the whole model and for every step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from fp8verify.frameworks.known import Framework, frameworks
from fp8verify.logs.lines import Line
from fp8verify.logs.settings import headings
from fp8verify.logs.wording import is_of_another, match
from fp8verify.text import clean

HIGH_PRECISION = "high_precision"
_FORMATS = (
    ("nvfp4", re.compile(r"nv[- ]?fp4|nvfloat4", re.IGNORECASE)),
    ("mxfp4", re.compile(r"mx[- ]?fp4", re.IGNORECASE)),
    ("mxfp8", re.compile(r"mx[- ]?fp8|\bMX", re.IGNORECASE)),
    ("fp4", re.compile(r"(?:fp|float)[- ]?4", re.IGNORECASE)),
    ("fp8", re.compile(r"(?:fp|float)[- ]?8", re.IGNORECASE)),
)
MAX_LAYERS = 10_000  # a log names at most so many layers
_MAX_LINE = 1 << 16
_BLOCK = re.compile(r"(?:^|\.)(?:layers|blocks|h|layer)\.(\d+)(?:\.|$)")


def format_of(text: str, recipe: str | None = None) -> str | None:
    """Return the narrowest format that a recipe or, failing that, a line names."""
    for words in (recipe or "", text):
        for name, pattern in _FORMATS:
            if pattern.search(words):
                return name
    return None


class LayerPromise(NamedTuple):
    """The format in which a log line says that certain layers run.

    Attributes:
        match: how `names` select a module by its qualified name: "name" (the same, apart from
            leading parts that only one side has), "part" (contained in it, as torchtitan's
            filter_fqns), or "blocks" (transformer blocks, names are their numbers from 0).
        names: the names, parts or numbers; any of them selects.
        format: fp8, mxfp8, nvfp4, mxfp4, fp4, or high_precision (a pin).
        framework: whose line it is.
        line: its number, from 1.
        text: the line.
        section: the format whose converter a list of filters belongs to, empty if not known.
    """

    match: str
    names: tuple[str, ...]
    format: str
    framework: str
    line: int
    text: str
    section: str = ""

    @property
    def is_pin(self) -> bool:
        """Whether the layers are to stay in high precision."""
        return self.format == HIGH_PRECISION

    def covers(self, module: str) -> bool:
        """Whether the line is about a module, given by its qualified name."""
        if self.match == "blocks":
            block = _BLOCK.search(module)
            return block is not None and block[1] in self.names
        if self.match == "part":
            return any(name in module for name in self.names)
        ours = f".{module}"
        return any(ours.endswith(f".{name}") or f".{name}".endswith(ours) for name in self.names)


class PhasePromise(NamedTuple):
    """The format in which a log line says that a range of steps runs.

    Attributes:
        format: fp8, mxfp8, nvfp4, mxfp4, fp4, or high_precision (a warm-up).
        first_step: first step of the range; None if it begins with the run.
        last_step: last step of the range; None if it lasts to the end.
    """

    format: str
    first_step: int | None
    last_step: int | None

    def covers(self, step: int) -> bool:
        """Whether a step, by the run's own number, is in the range."""
        first, last = self.first_step, self.last_step
        return (first is None or step >= first) and (last is None or step <= last)


_QUOTED = re.compile(r"['\"]([^'\"]{1,300})['\"]")
_HIGH_CLASS = re.compile(r"(?:bf16|bfloat16|fp16|fp32|high|none$)", re.IGNORECASE)
# The section of a list of filters, which counts only where its converter is in use.
_SECTION = re.compile(r"(?<![a-z])(?P<name>float8|fp8|mxfp8|mx|nvfp4)(?![a-z])", re.IGNORECASE)
# torchtitan's word for a filter by size is no name of a layer.
_NO_NAMES = frozenset({"auto_filter_small_kn"})
_MAX_LIST = 200  # lines


@lru_cache(maxsize=2)
def _lines(known: tuple[Framework, ...]) -> tuple[tuple[str, str, re.Pattern[str]], ...]:
    """Return whose lines about layers there are, how their names select modules, and the line."""
    return tuple(
        (one.name, row.select, re.compile(row.line)) for one in known for row in one.layers
    )


class LayerScan:
    """Collects the statements of a log on single layers.

    Attributes:
        found: by how and which layers, the last line about them only.
    """

    def __init__(self) -> None:
        self.found: dict[tuple[str, tuple[str, ...]], LayerPromise] = {}

    def add(self, line: Line, prefix: str) -> LayerPromise | None:
        """Read a line; return what it says of single layers."""
        text = line.text[:_MAX_LINE]
        if "filter_fqns" in text and text.rstrip().endswith(("[", "(")):
            # A list that a dump spreads over lines is read as one.
            for below in islice(line.below(), _MAX_LIST):
                text += below
                if "]" in below or ")" in below:
                    break
        for framework, how, pattern in _lines(frameworks()):
            if found := pattern.search(text):
                said = found.groupdict()
                names = [said["path"]] if "path" in said else _QUOTED.findall(said["names"])
                names = [name for name in names if name not in _NO_NAMES]
                section = _section(text[: found.start()], line, prefix) if how == "part" else ""
                by = framework, line.number, clean(found[0][:300]), section
                return self.keep(how, names, self._format(said), *by)
        return None

    def _format(self, said: Mapping[str, str]) -> str | None:
        """Return the format of a line's layers; a list names those left in high precision."""
        if "new" in said:
            # An override by another class of high precision, as a fused one, promises nothing.
            return format_of(said["new"]) or (HIGH_PRECISION if format_of(said["old"]) else None)
        # The name of a configuration has its format: "mxfp8", "bf16_layers".
        key = said.get("key") or said.get("type")
        if key is None:
            return HIGH_PRECISION
        return format_of(key) or (HIGH_PRECISION if _HIGH_CLASS.match(key) else None)

    def keep(
        self, how: str, names: list[str], format_: str | None, *said_by: Any
    ) -> LayerPromise | None:
        """Keep what a line (framework, number, text, section) says of layers, and return it."""
        if not names or format_ is None or len(self.found) >= MAX_LAYERS:
            return None
        key = how, tuple(names)
        self.found[key] = LayerPromise(*key, format_, *said_by)
        return self.found[key]


def _section(before: str, line: Line, prefix: str) -> str:
    """Return the format of the section that a list of filters is in, if its name tells it."""
    around = [before[-200:]] if before.strip(" '\"") else headings(line, prefix)
    for text in around:
        if names := _SECTION.findall(text):
            return format_of(names[-1]) or "mxfp8"
    return ""


def first_and_last(arguments: Mapping[str, str]) -> list[str]:
    """Return the numbers of the blocks that Megatron's --first-last-layers-bf16 keeps in BF16."""
    if arguments.get("first_last_layers_bf16", "").lower() != "true":
        return []
    keys = ("num_layers", 0), ("num_layers_at_start_in_bf16", 1), ("num_layers_at_end_in_bf16", 1)
    count, first, last = (min(_whole(arguments.get(key), least), MAX_LAYERS) for key, least in keys)
    return list(map(str, sorted({*range(first), *range(max(0, count - last), count)})))


def _whole(text: str | None, default: int) -> int:
    return int(text[:9]) if text is not None and text.isdecimal() else default


_STEP = (
    r"(?:global |training |optimizer )?(?:step|iteration|iter)s?[ =#:]*(?P<{}>\d[\d_,]*)(?!\s*%)"
)
_COUNT = r"(?P<{}>\d[\d_,]*) (?:\w+[ -]?){{0,2}}?(?:steps|iterations|iters)\b"
# FP8 that begins later: “FP8 training enabled from step 500 on”, “… after 100 warm-up steps”.
_BEGINS = re.compile(
    rf"[\s,;(]*(?:(?:from|at|since|start(?:s|ing)?(?: at| from)?|begin(?:s|ning)?(?: at| from)?)\s+"
    rf"{_STEP.format('at')}|after (?:the first |a )?(?:{_STEP.format('past')}"
    rf"|{_COUNT.format('count')}))",
    re.IGNORECASE,
)
# A warm-up: “BF16 warm-up for 100 steps”, “training in bf16 for the first 100 steps”. What only
# names a precision, as “(bf16 parameters, fp8 linear layers) for 1000 steps”, is none.
_WARM_UP = re.compile(
    r"(?<![=:\w(])(?:bf16|bfloat16|fp16|high[- ]precision)"
    r"(?: (?:training|precision|mode|compute|only))*[, ]*"
    rf"(?:-?\s?warm-?up(?: phase)?[ :,(]*(?:for |until |of |lasts )?(?:the first )?"
    r"|\(?(?:for|during) the first |\(?(?:until|up to|till) |\(?first )"
    rf"(?:{_STEP.format('until')}|{_COUNT.format('count')})",
    re.IGNORECASE,
)


def phases_of(text: str) -> tuple[PhasePromise, ...]:
    """Return a message's statements on ranges of steps."""
    low, said = format_of(text), match(text)
    if (found := _WARM_UP.search(text)) and not is_of_another(text, found.start()):
        last = _number(found["until"] or found["count"])
        warm_up = PhasePromise(HIGH_PRECISION, None, last)
        return (warm_up, PhasePromise(low, last + 1, None)) if low else (warm_up,)
    if said and said[0].says == "fp8" and low and (found := _BEGINS.match(text, said[1].end())):
        first = _number(found["at"] or found["past"] or found["count"]) + (not found["at"])
        if first > 1:
            return (PhasePromise(low, first, None),)
    return ()


# MLPerf's recipes train in FP4 up to an iteration, and then in FP8 or BF16.
_HEALING_STEP, _HEALING = "healing_iter", "healing_precision"


def healing(values: Mapping[str, str], low: str) -> tuple[PhasePromise, ...]:
    """Return the phases of settings that change from a low precision at an iteration."""
    step, name = _whole(values.get(_HEALING_STEP), 0), values.get(_HEALING, "")
    then = format_of(name) or (HIGH_PRECISION if _HIGH_CLASS.match(name) else None)
    if not (step and then):
        return ()
    return PhasePromise(low, None, step), PhasePromise(then, step + 1, None)


def _number(text: str) -> int:
    return int(text.replace("_", "").replace(",", "")[:12] or 0)
