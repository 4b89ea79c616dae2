"""A training log's claims about FP8, and its promises for layers and for steps.

Neither a claim nor its absence proves anything: torchtitan and KempnerForge print theirs even
when no layer was converted. A claim is compared with the kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from fp8verify.logs import promises
from fp8verify.logs.lines import read_lines
from fp8verify.logs.messages import Message, messages_of
from fp8verify.logs.promises import (
    HIGH_PRECISION,
    LayerScan,
    LogReading,
    PhasePromise,
    first_and_last,
    format_of,
    phases_of,
)
from fp8verify.logs.wording import OWN, WORDS, denies, match, says_something, sentence_of
from fp8verify.report.model.parts import Claim
from fp8verify.text import clean, lazy_pattern

MAX_CLAIMS = 200  # of different wordings, far more than a training says of FP8
_WORDS = tuple(word.decode() for word in WORDS)
_LAYER_WORDS = tuple(word.decode() for word in promises.WORDS)
_MAX_SHAPES = 10_000
_MAX_SHAPE = 2000
_MAX_TEXT = 300
# As many digits as before, so that fp8 stays another word than fp16.
_DIGITS = str.maketrans("123456789", "0" * 9)
_INDEX = re.compile(r"(?<=\.)\d+(?=\.)")
# The value of a recipe if there is none.
_NO_RECIPE = frozenset({"none", "null", "false", "off", "no", "disabled", "na"})


def read_claims(path: Path) -> LogReading:
    """Read a log and return what it claims and promises.

    Raises:
        InputError: the file cannot be opened or read.
    """
    notes: list[str] = []
    found = scan_promises(read_lines(path, notes, words=(*WORDS, *promises.WORDS)), path.name)
    return found._replace(notes=notes)


def scan_promises(lines: Iterable[tuple[int, str]], source: str = "log") -> LogReading:
    """Return what a log claims and promises.

    Args:
        lines: the number and the text of each line.
        source: the file's name, kept in each claim.
    """
    scan = _Scan(source)
    for number, text in lines:
        scan.add(number, text)
    return scan.finish()


class _Scan:
    """What was found so far, and the shapes of lines in which nothing was found."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._claims: dict[tuple[str, str], Claim] = {}
        self._barren: set[str] = set()
        self._layers = LayerScan()
        self._phases: dict[PhasePromise, None] = {}
        self._arguments: dict[str, tuple[str, int, str]] = {}

    def add(self, number: int, text: str) -> None:
        lower = text.lower()
        shape = lower.translate(_DIGITS) if len(lower) < _MAX_SHAPE else ""
        if shape in self._barren:
            return
        found = any(map(lower.__contains__, _LAYER_WORDS)) and self._layers.add(text, number)
        if says_something(text):
            for message in messages_of(text, (*_WORDS, *_LAYER_WORDS)):
                found = self._add(message, number) or found
        if shape and not found and len(self._barren) < _MAX_SHAPES:
            self._barren.add(shape)

    def _add(self, message: Message, number: int) -> bool:
        claim = claim_of(message, number, self._source)
        if claim is not None:
            self._keep(claim)
        if message.denied:
            return claim is not None
        argument = _ARGUMENT.match(message.text)
        if argument and argument["value"] != "None":
            said = argument["value"].strip(), number, message.text.strip()
            self._arguments.setdefault(argument["name"], said)
        phases = phases_of(message.text)
        self._phases.update(dict.fromkeys(phases))
        return claim is not None or argument is not None or bool(phases)

    def _keep(self, claim: Claim) -> None:
        # torchao names each of a model's layers in a line of its own.
        key = (claim.framework, _INDEX.sub("*", claim.text))
        if len(self._claims) < MAX_CLAIMS:
            self._claims.setdefault(key, claim)

    def _add_megatron(self, kind: str) -> None:
        """Join the arguments of one format: megatron/training/arguments.py:1990 prints them."""
        values = {name: value for name, (value, *_) in self._arguments.items()}
        if values.get(kind) not in _FORMAT_VALUES[kind]:
            return
        _, number, text = self._arguments[kind]
        recipe = values.get(f"{kind}_recipe")
        low = format_of(kind, recipe) or kind
        high_wgrad = {"fprop": low, "dgrad": low, "wgrad": HIGH_PRECISION}
        # The argument and the field of the configuration are called differently.
        gathers = {values.get(f"{kind}_param_gather"), values.get(f"{kind}_param")}
        claim = Claim(
            line=number,
            text=text,
            framework="Megatron-LM",
            says="fp8",
            recipe=recipe,
            source=self._source,
            format=low,
            all_gather=True if "True" in gathers else False if "False" in gathers else None,
            legs=high_wgrad if values.get(f"{kind}_wgrad") == "False" else {},
        )
        self._keep(claim)
        if blocks := first_and_last(values):
            _, *line = self._arguments["first_last_layers_bf16"]
            self._layers.keep("blocks", blocks, HIGH_PRECISION, "Megatron-LM", *line)

    def finish(self) -> LogReading:
        for kind in _FORMAT_VALUES:
            self._add_megatron(kind)
        claims = sorted(self._claims.values(), key=lambda claim: claim.line)
        return LogReading(claims, [], tuple(self._layers.found.values()), tuple(self._phases))


# ---- one message


def claim_of(message: Message, number: int, source: str) -> Claim | None:
    """Return what a message claims, or None."""
    found = match(message.text)
    if found is None:
        return None
    framework, says, where = found
    if message.denied and (says == "fp8" or framework == OWN):
        return None
    sentence = sentence_of(message.text, where.end())
    counts = next((said for pattern in _COUNTS if (said := pattern.search(sentence))), None)
    converted = int(counts["converted"]) if counts else None
    total = int(counts["total"]) if counts and counts["total"] else None
    if says == "fp8" and converted == 0:
        says = "not_fp8"
    claim = Claim(
        line=number,
        text=clean(sentence[:_MAX_TEXT]),
        framework=framework,
        says=says,
        source=source,
        converted=converted,
        total=total,
    )
    if says != "fp8":
        return claim
    named = _RECIPE.search(sentence)
    recipe = where.groupdict().get("recipe") or (named and (named["named"] or named["known"]))
    if denies(sentence, where.end()) or (recipe or "").lower() in _NO_RECIPE:
        return None
    low = format_of(sentence, recipe) or "fp8"
    # torchao's rowwise_with_gw_hp (float8/config.py) and mxfp8_rceil_wgrad_with_hp
    # (prototype/moe_training/config.py) compute the gradient of the weights in high precision.
    high_wgrad = re.search("gw_hp|wgrad_with_hp", recipe or "", re.IGNORECASE)
    gather = _ALL_GATHER.search(sentence)
    return replace(
        claim,
        recipe=recipe,
        all_gather=gather[1].lower() == "true" if gather else None,
        format=low,
        legs={"fprop": low, "dgrad": low, "wgrad": HIGH_PRECISION} if high_wgrad else {},
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
        r"\b(?:(?:convert|swapp|replac|wrapp)(?:ed|ing) (?=\d)|(?=\d{1,7}\s*(?:/|of|out of)\s*\d))"
        r"(?P<converted>\d{1,7})(?:\s*(?:/|of|out of)\s*(?P<total>\d{1,7}))? (?:[\w.]+ ){0,2}"
        r"(?:layers?|modules?|linears?)\b",
        re.IGNORECASE,
    ),
)


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


# The dump of arguments that Megatron-LM and DeepSpeed print, one `name ....... value` a line. Its
# lines say little each on their own: `fp8_recipe` has a value also where FP8 is off.
_ARGUMENT = lazy_pattern(r"(?P<name>[a-z]\w{1,47}) \.{3,} (?P<value>\S.{0,80})$")
_FORMAT_VALUES = {"fp8": ("hybrid", "e4m3"), "fp4": ("e2m1",)}
