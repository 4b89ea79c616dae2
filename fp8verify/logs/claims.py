"""What a training log says about FP8: its claims, and its promises for layers and for steps.

Neither a claim nor its absence proves anything: torchtitan and KempnerForge print theirs even
when no layer was converted. A claim is compared with the kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fp8verify.logs import promises
from fp8verify.logs.lines import Line, read_lines
from fp8verify.logs.messages import Message, messages_of
from fp8verify.logs.promises import (
    HIGH_PRECISION,
    LayerPromise,
    LayerScan,
    PhasePromise,
    format_of,
    phases_of,
)
from fp8verify.logs.wording import OWN, WORDS, denies, match, says_something, sentence_of
from fp8verify.report.model import Claim
from fp8verify.text import clean, lazy_pattern

MAX_CLAIMS = 200
_WORDS = tuple(word.decode() for word in WORDS)
_LAYER_WORDS = tuple(word.decode() for word in promises.WORDS)
_MAX_SHAPES = 10_000
_MAX_TEXT = 300
_INDEX = re.compile(r"(?<=\.)\d+(?=\.)")
# The value of a recipe where there is none.
_NO_RECIPE = frozenset({"none", "null", "false", "off", "no", "disabled", "na"})


class LogReading(NamedTuple):
    """What a log says of low precision.

    Attributes:
        claims: in order, the first of each wording only.
        notes: what was not read.
        layers: the formats promised to single layers, pins included.
        phases: the formats promised to ranges of steps.
    """

    claims: list[Claim]
    notes: list[str]
    layers: tuple[LayerPromise, ...] = ()
    phases: tuple[PhasePromise, ...] = ()


def read_claims(path: Path) -> LogReading:
    """Read a log and return what it claims and promises.

    Raises:
        InputError: the file cannot be opened or read.
    """
    notes: list[str] = []
    scan = _Scan(path.name)
    words = (*WORDS, *promises.WORDS)
    for line in read_lines(path, notes, words=words, but=scan.barren):
        scan.add(line)
    found = scan.finish()
    return found._replace(notes=notes + found.notes)


def scan_promises(lines: Iterable[str], *, source: str = "log") -> LogReading:
    """Return what a log that is given line by line claims and promises.

    Args:
        lines: the log's lines; escape sequences of terminals are ignored.
        source: the file's name, kept in each claim.
    """
    scan = _Scan(source)
    for number, text in enumerate(lines, start=1):
        scan.add(Line(number, text.rstrip("\r\n")))
    return scan.finish()


class _Scan:
    """What was found so far, and the shapes of lines in which nothing was found."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._claims: dict[tuple[str, str], Claim] = {}
        self._left_out: set[tuple[str, str]] = set()
        self.barren: set[bytes] = set()
        self._layers = LayerScan(source)
        self._phases: dict[str, PhasePromise] = {}
        self._dump = _ArgumentDump(source, self._layers)

    def add(self, line: Line) -> None:
        found = False
        lower = line.text.lower()
        if any(map(lower.__contains__, _LAYER_WORDS)):
            found = self._layers.add(line.text, line.number)
        if says_something(line.text):
            for message in messages_of(line, (*_WORDS, *_LAYER_WORDS)):
                found = self._add(message, line.number) or found
        if line.shape and not found and len(self.barren) < _MAX_SHAPES:
            self.barren.add(line.shape)

    def _add(self, message: Message, number: int) -> bool:
        if not message.denied and self._dump.add(message.text, number):
            return True
        claim = claim_of(message, number, self._source)
        if claim is not None:
            self._keep(claim)
        phases = [] if message.denied else phases_of(message.text, number, self._source)
        for phase in phases:
            self._phases.setdefault(f"{phase.text} {phase.format}", phase)
        return claim is not None or bool(phases)

    def _keep(self, claim: Claim) -> None:
        # torchao names each of a model's layers in a line of its own.
        key = (claim.framework, _INDEX.sub("*", claim.text))
        if len(self._claims) < MAX_CLAIMS:
            self._claims.setdefault(key, claim)
        elif key not in self._claims and len(self._left_out) < _MAX_SHAPES:
            self._left_out.add(key)

    def finish(self) -> LogReading:
        for claim in self._dump.finish():
            self._keep(claim)
        notes = []
        if self._left_out:
            many = "or more " if len(self._left_out) == _MAX_SHAPES else ""
            notes.append(
                f"{self._source} has {len(self._left_out)} {many}further lines about FP8 after "
                f"the first {MAX_CLAIMS}, which were not compared with the kernels"
            )
        claims = sorted(self._claims.values(), key=lambda claim: claim.line)
        return LogReading(claims, notes, self._layers.found, tuple(self._phases.values()))


# ---- one message


def claim_of(message: Message, number: int = 1, source: str = "log") -> Claim | None:
    """Return what a message claims, or None."""
    found = match(message.text)
    if found is None:
        return None
    framework, says, where = found
    sentence = sentence_of(message.text, where.end())
    groups = where.groupdict()
    recipe = groups.get("recipe") or groups.get("block") or _recipe_of(sentence)
    converted, total = _counts_of(sentence)
    if message.denied and (says == "fp8" or framework == OWN):
        return None
    if says == "fp8" and converted == 0:
        says = "not_fp8"
    on = says == "fp8"
    if on and (denies(sentence, where.end()) or (recipe or "").lower() in _NO_RECIPE):
        return None
    gather = _ALL_GATHER.search(sentence) if on else None
    format_ = format_of(sentence, recipe) or "fp8" if on else None
    return Claim(
        line=number,
        text=clean(sentence[:_MAX_TEXT]),
        framework=framework,
        says=says,
        recipe=recipe if on else None,
        all_gather=gather[1].lower() == "true" if gather else None,
        source=source,
        format=format_,
        legs=_legs_of(format_, recipe),
        converted=converted,
        total=total,
    )


_RECIPE = lazy_pattern(
    r"\brecipe(?:_name)?['\"]?\s*[=: ]\s*['\"]?(?P<named>\w+)"
    r"|\b(?P<known>row-?wise(?:_with_gw_hp)?|tensor-?wise|block-?wise|delayed|"
    r"mxfp[48]_\w+|nvfp4_\w+)\b",
    re.IGNORECASE,
)
_ALL_GATHER = lazy_pattern(
    r"all[-_ ]?gather\w*(?: enabled)?\s*[=:]\s*\{?(True|False)", re.IGNORECASE
)
_COUNTS = (
    lazy_pattern(r"\b(?P<converted>\d{1,7}) Float8Linear modules, (?P<total>\d{1,7}) total"),
    lazy_pattern(
        r"\b(?:convert|swapp|replac|wrapp)(?:ed|ing) (?P<converted>\d{1,7})"
        r"(?:\s*(?:/|of|out of)\s*(?P<total>\d{1,7}))?(?= (?:[\w.]+ ){0,2}(?:layers?|modules?|"
        r"linears?)\b)",
        re.IGNORECASE,
    ),
    lazy_pattern(
        r"\b(?P<converted>\d{1,7})\s*(?:/|of|out of)\s*(?P<total>\d{1,7}) "
        r"(?:[\w.]+ ){0,2}(?:layers|modules|linears)\b",
        re.IGNORECASE,
    ),
)


def _recipe_of(text: str) -> str | None:
    """Return the recipe that a line names in words of its own."""
    found = _RECIPE.search(text)
    return (found["named"] or found["known"]) if found else None


def _counts_of(text: str) -> tuple[int | None, int | None]:
    """Return how many layers a line says were converted, and of how many."""
    for pattern in _COUNTS:
        if found := pattern.search(text):
            return int(found["converted"]), int(found["total"]) if found["total"] else None
    return None, None


def _legs_of(format_: str | None, recipe: str | None) -> dict[str, str]:
    """Return the format of each leg where the recipe's name distinguishes them.

    torchao's rowwise_with_gw_hp (float8/config.py) and mxfp8_rceil_wgrad_with_hp
    (prototype/moe_training/config.py) compute the gradient of the weights in high precision.
    """
    name = (recipe or "").lower()
    if format_ is None or not ("gw_hp" in name or "wgrad_with_hp" in name):
        return {}
    return {"fprop": format_, "dgrad": format_, "wgrad": HIGH_PRECISION}


def claim_of_call(name: str) -> Claim:
    """Return the claim made by the call of an API, as `fp8verify run` recorded it."""
    name = clean(name)
    framework = name.partition(".")[0][:40]
    return Claim(
        line=0,
        text=f"{name[:200]}()",
        framework=framework,
        says="fp8",
        source=f"{framework}'s call",
        format="fp8",
    )


# ---- the dump of arguments that Megatron-LM and DeepSpeed print, one `name ....... value` a line

_ARGUMENT = lazy_pattern(r"(?P<name>[a-z]\w{1,47}) \.{3,} (?P<value>\S.{0,80})$")
_FORMAT_VALUES = {"fp8": ("hybrid", "e4m3"), "fp4": ("e2m1",)}


class _ArgumentDump:
    """Collects the arguments about low precision, line by line, into claims and pins.

    Its lines say little each on their own: `fp8_recipe` has a value also where FP8 is off.
    """

    def __init__(self, source: str, layers: LayerScan) -> None:
        self._source = source
        self._layers = layers
        self._lines: dict[str, tuple[int, str]] = {}
        self._values: dict[str, str] = {}
        self._claims: list[Claim] = []

    def add(self, text: str, number: int) -> bool:
        """Read a message; return whether it is a line of a dump."""
        found = _ARGUMENT.match(text)
        if found is None:
            return False
        name = found["name"]
        if name in self._values:  # another dump begins
            self.finish()
        self._values[name] = found["value"].strip()
        self._lines[name] = number, found[0].strip()
        return True

    def finish(self) -> list[Claim]:
        """Return the claims of all dumps."""
        for kind, values in _FORMAT_VALUES.items():
            if self._values.get(kind) in values:
                self._add_megatron(kind)
        if self._values.get("msamp_enabled") == "True":
            level = self._values.get("msamp_optlevel")
            self._claim("msamp_enabled", framework="MS-AMP", recipe=level, format="fp8")
        self._values, self._lines = {}, {}
        return self._claims

    def _add_megatron(self, kind: str) -> None:
        """Join the lines of one format: megatron/training/arguments.py:1990 prints them."""
        values = {name: value for name, value in self._values.items() if value != "None"}
        recipe = values.get(f"{kind}_recipe")
        low = format_of(kind, recipe) or kind
        high_wgrad = {"fprop": low, "dgrad": low, "wgrad": HIGH_PRECISION}
        # The argument and the field of the configuration are called differently.
        gathers = {values.get(f"{kind}_param_gather"), values.get(f"{kind}_param")}
        self._claim(
            kind,
            framework="Megatron-LM",
            recipe=recipe,
            format=low,
            all_gather=True if "True" in gathers else False if "False" in gathers else None,
            legs=high_wgrad if values.get(f"{kind}_wgrad") == "False" else {},
        )
        number, text = self._lines.get("first_last_layers_bf16", (0, ""))
        self._layers.add_blocks(values, number, text)

    def _claim(self, argument: str, **said: Any) -> None:
        number, text = self._lines[argument]
        claim = Claim(line=number, text=text, says="fp8", source=self._source, **said)
        self._claims.append(claim)
