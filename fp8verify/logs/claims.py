"""A log's claims about FP8, and its promises for layers and for steps.

Neither a claim nor its absence proves anything: torchtitan and KempnerForge print theirs even
when no layer was converted. A claim is compared with the kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from fp8verify.frameworks.known import OWN
from fp8verify.logs.lines import Line, read_lines, uncolored
from fp8verify.logs.messages import ALIKE, Message, messages_of
from fp8verify.logs.promises import (
    HIGH_PRECISION,
    LayerPromise,
    LayerScan,
    PhasePromise,
    first_and_last,
    format_of,
    healing,
    phases_of,
)
from fp8verify.logs.settings import Request, may_set, requests_in
from fp8verify.logs.statements import CONFIGURATION, LogReading, Statement
from fp8verify.logs.wording import (
    Words,
    denies,
    is_limited,
    match,
    says_something,
    sentence_of,
    words,
)
from fp8verify.report.model.parts import Claim, Mention
from fp8verify.text import clean

MAX_CLAIMS = 200  # of different wordings, far more than a run says of FP8
_MAX_SHAPES = 10_000
_MAX_SHAPE = 2000
_MAX_LONG = 2000  # longer lines in which nothing is found, before they are left out
_MAX_REPEATS = 100  # of a setting: every rank of a node may print it, but not every step
_MAX_SETTINGS = 2000  # that are read with what is around them
_MAX_TEXT = 300
_INDEX = re.compile(r"(?<=\.)\d+(?=\.)")
# The value of a recipe if there is none.
_NO_RECIPE = frozenset({"none", "null", "false", "off", "no", "disabled", "na"})
_LOW = re.compile(r"(?:fp|float)[- ]?[48](?!\d)", re.IGNORECASE)


def read_claims(path: Path) -> LogReading:
    """Read a log and return what it claims and promises.

    Raises:
        InputError: the file cannot be opened or read.
    """
    notes: list[str] = []
    found = scan(read_lines(path, notes, words=_gate()), path.name)
    if len({statement.claim.says for statement in found.statements} & {"fp8", "not_fp8"}) > 1:
        found = found._replace(statements=_with_steps(path, found.statements))
    return found._replace(notes=notes)


def _gate() -> list[bytes]:
    return [word.encode() for word in words().all]


def scan(lines: Iterable[Line], source: str) -> LogReading:
    """Return what a log claims and promises.

    Args:
        lines: those with one of `words().all`.
        source: the file's name, kept in each claim.
    """
    found = _Scan(source)
    for line in lines:
        found.add(line)
    return LogReading(
        found.statements,
        [],
        tuple(found.layers.found.values()),
        tuple(found.phases),
        found.mention or found.off,
    )


_STEP = re.compile(
    rb"\b(?:global[_ ]?step|step|iter|iteration)[ '\"]{0,2}[ :=#]{0,3}(\d{1,9})(?![\d.]*\s?%)",
    re.IGNORECASE,
)


def _with_steps(path: Path, statements: Iterable[Statement]) -> list[Statement]:
    """Add to statements which steps the log names after each of them."""
    found = list(statements)
    at = -1
    for line in read_lines(path, words=(b"step", b"iter")):
        while at + 1 < len(found) and found[at + 1].claim.line < line.number:
            at += 1
        if at >= 0 and (said := _STEP.search(line.block, line.start, line.end)):
            step = int(said[1])
            first, last = found[at].steps or (step, step)
            found[at] = found[at]._replace(steps=(min(first, step), max(last, step)))
    return found


class _Scan:
    """What was found so far, and the shapes of lines in which nothing was found."""

    def __init__(self, source: str) -> None:
        self._words: Words = words()
        self.statements: list[Statement] = []
        self.layers = LayerScan()
        self.phases: dict[PhasePromise, None] = {}
        self.mention: Mention | None = None
        self.off: Mention | None = None  # a line that names FP8 where it is off
        self._source = source
        self._last: dict[tuple[str, bool], object] = {}
        self._claims = self._denials = 0
        self._barren: set[str] = set()
        self._repeats: dict[str, int] = {}
        self._long = self._settings = 0

    def add(self, line: Line) -> None:
        lower = line.text.lower()
        shape = lower.translate(ALIKE) if len(lower) < _MAX_SHAPE else ""
        if shape in self._barren or (not shape and self._long > _MAX_LONG):
            return
        found, is_setting, is_off, before = False, False, False, len(self.statements)
        of_layers = any(map(lower.__contains__, self._words.layers))
        declared = any(map(lower.__contains__, self._words.declared))
        settings = may_set(uncolored(line.text))
        if of_layers or declared or settings or says_something(line.text):
            for message in messages_of(line.text, self._words.all):
                if of_layers and (pin := self.layers.add(line, message.prefix)):
                    found = True
                    self._add_layer(pin, line.number, message.rank)
                found = self._add(message, line) or found
                if settings and not found and self._settings < _MAX_SETTINGS:
                    self._settings += 1
                    asked = list(requests_in(message, line))
                    is_setting = is_setting or bool(asked)
                    for request in filter(None, asked):
                        is_off = is_off or not request.is_on
                        self._ask(request, message, line)
        if not found and (is_off or len(self.statements) == before):
            self._mention(line, off=is_off)
        if not (found or (is_setting and self._is_rare(shape))):
            self._long += not shape
            if shape and len(self._barren) < _MAX_SHAPES:
                self._barren.add(shape)

    def _is_rare(self, shape: str) -> bool:
        self._repeats[shape] = self._repeats.get(shape, 0) + 1
        return self._repeats[shape] < _MAX_REPEATS

    def _mention(self, line: Line, *, off: bool) -> None:
        if (self.off if off else self.mention) is None and _LOW.search(line.text):
            said = next(messages_of(line.text), Message(line.text))
            text = clean((said.setting or said.text).strip()[:_MAX_TEXT])
            mention = Mention(line=line.number, text=text, source=self._source)
            if off:
                self.off = mention
            else:
                self.mention = mention

    def _add(self, message: Message, line: Line) -> bool:
        claim = claim_of(message, line.number, self._source)
        if claim is not None:
            self._keep(claim, _topic(claim), message.rank)
        if message.denied:
            return claim is not None
        phases = phases_of(message.text)
        self.phases.update(dict.fromkeys(phases))
        return claim is not None or bool(phases)

    def _keep(self, claim: Claim, topic: str, rank: str | None) -> None:
        # torchao names each of a model's layers in a line of its own, and each rank repeats it; a
        # later attempt may say again what was taken back.
        state: object
        if claim.strength == CONFIGURATION:
            key, state = (topic, rank is None), (claim.says, claim.recipe, self._denials)
        else:
            text = _INDEX.sub("*", claim.text)
            opposite = self._claims if claim.says == "not_fp8" else self._denials
            key, state = (f"{claim.framework} {claim.says} {text}", rank is None), opposite
        if self._last.get(key) != state and len(self.statements) < MAX_CLAIMS:
            self._last[key] = state
            self.statements.append(Statement(claim, topic, rank))
            self._claims += claim.says == "fp8"
            self._denials += claim.says == "not_fp8"

    def _add_layer(self, pin: LayerPromise, number: int, rank: str | None) -> None:
        """Take a layer whose precision came to a low one for a claim."""
        if not pin.is_pin and "quantization_type" in pin.text:
            claim = Claim(
                line=number,
                text=pin.text,
                framework=pin.framework,
                says="fp8",
                source=self._source,
                format=pin.format,
            )
            self._keep(claim, pin.names[0], rank)

    def _ask(self, request: Request, message: Message, line: Line) -> None:
        """Keep what a setting asks for; one that is off takes back what it was before."""
        values = {name: value.lower() for name, value in request.values.items()}
        kind = "fp4" if "4" in request.key else "fp8"
        names = (f"{kind}_recipe", "recipe", "recipe_name")
        recipe = next((values[name] for name in names if values.get(name)), None)
        recipe = None if (recipe or "") in _NO_RECIPE else recipe
        low = format_of(f"{request.key} {request.value}", recipe) or kind
        high_wgrad = {"fprop": low, "dgrad": low, "wgrad": HIGH_PRECISION}
        # The argument and the field of the configuration are called differently.
        gathers = {values.get(f"{kind}_param_gather"), values.get(f"{kind}_param")}
        framework = "Megatron-LM" if " ..." in request.text else CONFIGURATION
        claim = Claim(
            line=line.number,
            text=clean(request.text[:_MAX_TEXT]),
            framework=framework,
            says="fp8" if request.is_on else "off",
            recipe=recipe,
            source=self._source,
            format=low,
            all_gather=True if "true" in gathers else False if "false" in gathers else None,
            legs=high_wgrad if values.get(f"{kind}_wgrad") == "false" else {},
            strength=CONFIGURATION,
        )
        self._keep(claim, f"{CONFIGURATION} {request.key}", message.rank)
        if request.is_on:
            self.phases.update(dict.fromkeys(healing(values, low)))
            if blocks := first_and_last(values):
                text = f"first_last_layers_bf16 of the dump around line {line.number}"
                self.layers.keep("blocks", blocks, HIGH_PRECISION, framework, line.number, text)


# What two claims in the same words differ in.
_NAMED_RECIPE = re.compile(r"\S*(?:wise|delayed|mxfp|nvfp|scaling)\S*", re.IGNORECASE)


def _topic(claim: Claim) -> str:
    return f"{claim.framework} {_NAMED_RECIPE.sub('*', claim.text)}"


# ---- one message


def claim_of(message: Message, number: int, source: str) -> Claim | None:
    """Return what a message claims, or None."""
    found = match(message.text, message.setting)
    if found is None:
        return None
    (framework, says, _, declared), where = found
    if message.denied and (says == "fp8" or framework == OWN):
        return None
    if says == "not_fp8" and framework == OWN and is_limited(message.text, where.end()):
        return None
    sentence = message.setting.strip() if declared else sentence_of(message.text, where.end())
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
    if (not declared and denies(sentence, where.end())) or (recipe or "").lower() in _NO_RECIPE:
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


_RECIPE = re.compile(
    r"\brecipe(?:_name)?['\"]?\s*[=: ]\s*['\"]?(?P<named>\w+)"
    r"|\b(?P<known>row-?wise(?:_with_gw_hp)?|tensor-?wise|block-?wise|delayed|"
    r"mxfp[48]_\w+|nvfp4_\w+)\b",
    re.IGNORECASE,
)
_ALL_GATHER = re.compile(r"all[-_ ]?gather\w*(?: enabled)?\s*[=:]\s*\{?(True|False)", re.IGNORECASE)
_COUNTS = (
    re.compile(r"\b(?P<converted>\d{1,7}) Float8Linear modules, (?P<total>\d{1,7}) total"),
    re.compile(
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
