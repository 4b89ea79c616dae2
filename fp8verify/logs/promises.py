"""A log's statements on formats of single layers and ranges of steps: pins, BF16 warm-ups.

`read_claims` returns these with its claims: `LogReading.layers` and `LogReading.phases`. They are
separate because a claim holds for the whole model and for every step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fp8verify.logs.wording import match
from fp8verify.report.model.parts import Claim
from fp8verify.text import lazy_pattern

HIGH_PRECISION = "high_precision"
_FORMATS = (
    ("nvfp4", lazy_pattern(r"nv[- ]?fp4|nvfloat4", re.IGNORECASE)),
    ("mxfp4", lazy_pattern(r"mx[- ]?fp4", re.IGNORECASE)),
    ("mxfp8", lazy_pattern(r"mx[- ]?fp8|\bMX", re.IGNORECASE)),
    ("fp4", lazy_pattern(r"(?:fp|float)[- ]?4", re.IGNORECASE)),
    ("fp8", lazy_pattern(r"(?:fp|float)[- ]?8", re.IGNORECASE)),
)
MAX_LAYERS = 10_000  # a log names at most so many layers
_MAX_LINE = 1 << 16
_BLOCK = lazy_pattern(r"(?:^|\.)(?:layers|blocks|h|layer)\.(\d+)(?:\.|$)")


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
    """

    match: str
    names: tuple[str, ...]
    format: str
    framework: str
    line: int
    text: str

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
        first_step: first step of the range; None if it begins with the training.
        last_step: last step of the range; None if it lasts to the end.
    """

    format: str
    first_step: int | None
    last_step: int | None

    def covers(self, step: int) -> bool:
        """Whether a step, by the training's own number, is in the range."""
        first, last = self.first_step, self.last_step
        return (first is None or step >= first) and (last is None or step <= last)


# Words, in lower case, of which a line about single layers has one.
WORDS = (
    b"[override]",
    b"quant config",
    b"filter_fqns",
    b"ignored modules for float8",
    b"layers_bf16",
    b"_in_bf16",
    b"num_layers ..",
)
# Lines about layers: whose they are, how their names select modules, and the line.
_LINES = (
    # torchtitan/config/override.py:497
    ("torchtitan", "name", lazy_pattern(
        r"\[Override\] [\w.-]+: (?P<path>\S+) (?P<old>[\w.]+) -> (?P<new>[\w.]+)")),
    # megatron/core/quantization/quant_config.py:210
    ("Megatron-LM", "name", lazy_pattern(
        r"Context \(MatchContext\(module_path='(?P<path>[^']+)'.{0,80}?\)\) "
        r'matched to quant config "(?P<key>[^"]+)"')),
    ("OLMo-core", "name", lazy_pattern(
        r"Ignored modules for Float8 conversion: \[(?P<names>[^\]]{1,4000})\]")),
    ("torchtitan", "part", lazy_pattern(
        r"['\"]?\bfilter_fqns['\"]?\s*[:=]\s*[\[(](?P<names>[^\])]{1,4000})[\])]")),
)  # fmt: skip
_QUOTED = lazy_pattern(r"['\"]([^'\"]{1,300})['\"]")
_HIGH_CLASS = lazy_pattern(r"(?:bf16|bfloat16|fp16|fp32|high)", re.IGNORECASE)
# torchtitan's word for a filter by size is no name of a layer.
_NO_NAMES = frozenset({"auto_filter_small_kn"})


class LayerScan:
    """Collects the statements of a log on single layers.

    Attributes:
        found: by how and which layers, the last line about them only.
    """

    def __init__(self) -> None:
        self.found: dict[tuple[str, tuple[str, ...]], LayerPromise] = {}

    def add(self, text: str, line: int) -> bool:
        """Read a line; return whether it says something of single layers."""
        text = text[:_MAX_LINE]
        for framework, how, pattern in _LINES:
            if found := pattern.search(text):
                said = found.groupdict()
                names = [said["path"]] if "path" in said else _QUOTED.findall(said["names"])
                names = [name for name in names if name not in _NO_NAMES]
                return self.keep(how, names, self._format(said), framework, line, found[0])
        return False

    def _format(self, said: Mapping[str, str]) -> str | None:
        """Return the format of a line's layers; a list names those left in high precision."""
        if "new" in said:
            # An override by another class of high precision, as a fused one, promises nothing.
            return format_of(said["new"]) or (HIGH_PRECISION if format_of(said["old"]) else None)
        if "key" not in said:
            return HIGH_PRECISION
        # The name of a configuration has its format: "mxfp8", "bf16_layers".
        key = said["key"]
        return format_of(key) or (HIGH_PRECISION if _HIGH_CLASS.search(key) else None)

    def keep(self, how: str, names: list[str], format_: str | None, *said_by: Any) -> bool:
        """Keep what a line (framework, number, text) says of layers; return whether it says it."""
        if not names or format_ is None or len(self.found) >= MAX_LAYERS:
            return False
        key = how, tuple(names)
        self.found[key] = LayerPromise(*key, format_, *said_by)
        return True


def first_and_last(arguments: Mapping[str, str]) -> list[str]:
    """Return the numbers of the blocks that Megatron's --first-last-layers-bf16 keeps in BF16."""
    if arguments.get("first_last_layers_bf16") != "True":
        return []
    count = _whole(arguments.get("num_layers"), 0)
    first = _whole(arguments.get("num_layers_at_start_in_bf16"), 1)
    last = _whole(arguments.get("num_layers_at_end_in_bf16"), 1)
    return list(map(str, sorted({*range(first), *range(max(0, count - last), count)})))


def _whole(text: str | None, default: int) -> int:
    return min(int(text), MAX_LAYERS) if text is not None and text.isdecimal() else default


_STEP = (
    r"(?:global |training |optimizer )?(?:step|iteration|iter)s?[ =#:]*(?P<{}>\d[\d_,]*)(?!\s*%)"
)
_COUNT = r"(?P<{}>\d[\d_,]*) (?:\w+[ -]?){{0,2}}?(?:steps|iterations|iters)\b"
# FP8 that begins later: “FP8 training enabled from step 500 on”, “… after 100 warm-up steps”.
_BEGINS = lazy_pattern(
    rf"[\s,;(]*(?:(?:from|at|since|start(?:s|ing)?(?: at| from)?|begin(?:s|ning)?(?: at| from)?)\s+"
    rf"{_STEP.format('at')}|after (?:the first |a )?(?:{_STEP.format('past')}"
    rf"|{_COUNT.format('count')}))",
    re.IGNORECASE,
)
# A warm-up: “BF16 warm-up for 100 steps”, “training in bf16 for the first 100 steps”.
_WARM_UP = lazy_pattern(
    r"(?:bf16|bfloat16|fp16|high[- ]precision)\b.{0,40}?\b(?:warm-?up|first|until|for)\b.{0,20}?"
    rf"(?:{_STEP.format('until')}|{_COUNT.format('count')})",
    re.IGNORECASE,
)


def phases_of(text: str) -> tuple[PhasePromise, ...]:
    """Return a message's statements on ranges of steps."""
    low, said = format_of(text), match(text)
    if found := _WARM_UP.search(text):
        last = _number(found["until"] or found["count"])
        warm_up = PhasePromise(HIGH_PRECISION, None, last)
        return (warm_up, PhasePromise(low, last + 1, None)) if low else (warm_up,)
    if said and said[1] == "fp8" and low and (found := _BEGINS.match(text, said[2].end())):
        first = _number(found["at"] or found["past"] or found["count"]) + (not found["at"])
        if first > 1:
            return (PhasePromise(low, first, None),)
    return ()


def _number(text: str) -> int:
    return int(text.replace("_", "").replace(",", "")[:12] or 0)


class LogReading(NamedTuple):
    """The statements of logs on low precision.

    Attributes:
        claims: in order, the first of each wording only.
        notes: what was not read.
        layers: the formats promised to single layers, pins included.
        phases: the formats promised to ranges of steps.
    """

    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()
    layers: Sequence[LayerPromise] = ()
    phases: Sequence[PhasePromise] = ()
