"""A log's claims about FP8: for the run, for single layers, and for ranges of steps.

Three kinds of evidence, one file each: exact rows of frameworks (`rows`), settings in dumps
(`settings`), and plain sentences (`plain`). Whatever else names a low-precision format is a mention:
it is quoted and decides nothing.

Neither a claim nor its absence proves anything: torchtitan and KempnerForge print theirs even
when no layer was converted. A claim is compared with the kernels.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fp8verify.frameworks.known import OWN
from fp8verify.logs import plain, rows
from fp8verify.logs.formats import format_of, format_or_high
from fp8verify.logs.layer_lines import MAX_LAYERS, layer_of
from fp8verify.logs.lines import Line, read_between, read_lines, uncolored
from fp8verify.logs.messages import ALIKE, Message, messages_of
from fp8verify.logs.settings import Request, may_set, requests_in
from fp8verify.logs.statements import (
    CONFIGURATION,
    HIGH_PRECISION,
    LayerClaim,
    LogReading,
    PhaseClaim,
    Statement,
)
from fp8verify.model.claims import Claim, Mention
from fp8verify.patterns import lazy_pattern
from fp8verify.text import clean

MAX_CLAIMS = 200  # of different wordings, far more than a run says of FP8
_MAX_SHAPES = 10_000
# Of a setting: every rank of a node may print it, but not every step.
_MAX_REPEATS = 100
_MAX_SETTINGS = 2000  # that are read with what is around them
_MAX_TEXT = 300
_INDEX = lazy_pattern(r"(?<=\.)\d+(?=\.)")
# The value of a recipe if there is none.
_NO_RECIPE = frozenset({"none", "null", "false", "off", "no", "disabled", "na"})
_LOW = lazy_pattern(r"(?:fp|float)[- ]?[48](?!\d)", re.IGNORECASE)


def read_claims(path: Path) -> LogReading:
    """Read a log and return what it claims.

    Raises:
        InputError: the file cannot be opened or read.
    """
    notes: list[str] = []
    scan = _Scan(path.name)
    words = [word.encode() for word in rows.words().all]
    for line in read_lines(path, notes, words=words):
        scan.add(line)
    statements = [*scan.statements, *scan.again.values()]
    statements.sort(key=_line_of)
    if statements:
        beginning = Claim(
            line=0,
            text="",
            framework="",
            says="off",
            source=path.name,
        )
        statements = _with_steps(path, [Statement(beginning, ""), *statements])
    layers = tuple(scan.layers.values())
    mention = scan.mentions.get(False) or scan.mentions.get(True)
    return LogReading(statements, notes, layers, mention)


def _line_of(statement: Statement) -> int:
    return statement.claim.line


# ---- where in the run each statement is

# Python finds places for a pattern by the letters that it may begin with: what has to be before
# these is asked for behind them, which makes long logs several times faster.
_STEP = lazy_pattern(
    rb"(?:s(?<!\ws)tep|i(?<!\wi)ter(?:ation)?|g(?<!\wg)lobal[_ ]?step)"
    rb"[ '\"]{0,2}[ :=#]{0,3}(\d{1,9})(?![\d.]*\s?%)"
)
# A step from which a run goes on is none that it trained.
_RESUMES = lazy_pattern(rb"\b(?:resum|restor|load|start|continu)(?:e|ed|es|ing)\b")
# What ends a run, or starts it again.
_ENDS = lazy_pattern(
    rb"traceback \(most recent|e(?<=\we)rror: |r(?<!\wr)e-?(?:start|launch)"
    rb"|a(?<!\wa)ttempt[ #:=]{0,2}\d"
)


def _with_steps(
    path: Path,
    statements: Iterable[Statement],
) -> list[Statement]:
    """Add to statements which steps the log names after each, and which stretch of it they are."""
    found = list(statements)
    for index, text in read_between(path, list(map(_line_of, found))):
        first = _first_step(text)
        if first:
            numbers = list(map(int, _STEP.findall(text, first.start())))
            numbers += found[index].steps or ()
            steps = (min(numbers), max(numbers))
            found[index] = found[index]._replace(steps=steps)
        if first or _ENDS.search(text):
            for later in range(index + 1, len(found)):
                found[later] = found[later]._replace(stretch=index + 1)
    return found


def _first_step(text: bytes) -> re.Match[bytes] | None:
    """Return the first step that a text names, but for one from which a run goes on."""
    first = _STEP.search(text)
    if first is None:
        return None
    start_of_line = text.rfind(b"\n", 0, first.start())
    if _RESUMES.search(text, max(0, start_of_line), first.start()):
        return _STEP.search(text, first.end())
    return first


# ---- the lines of a log


class _Scan:
    """What was found so far, and how often lines of a shape were read in vain.

    Attributes:
        again: of statements that were repeated, the last.
        mentions: the first line that names FP8 and claims nothing, and the first where it is off.
    """

    def __init__(self, source: str) -> None:
        self.statements: list[Statement] = []
        self.layers: dict[tuple[str, tuple[str, ...]], LayerClaim] = {}
        self.again: dict[Hashable, Statement] = {}
        self.mentions: dict[bool, Mention] = {}
        self._source = source
        self._last: dict[Hashable, tuple[Hashable, str]] = {}
        self._said: Counter[str] = Counter()
        self._in_vain: Counter[int] = Counter()
        self._settings = 0
        self._notice = -1

    def add(self, line: Line) -> None:
        """Read a line, unless others of its shape said nothing."""
        lower = line.text.lower()
        shape = hash(lower.translate(ALIKE))
        if self._in_vain[shape] >= _MAX_REPEATS:
            return
        is_closely_read = any(word in lower for word in rows.words().closely)
        may_be_setting = may_set(uncolored(line.text))
        is_found = False
        requests: list[Request | None] = []
        before = len(self.statements)
        for message in messages_of(line.text, rows.words().all):
            if is_closely_read and (layer := layer_of(line, message.prefix)):
                is_found = True
                self._add_layer(layer, message.rank)
            is_found = self._add(message, line) or is_found
            if may_be_setting and not is_found:
                requests += self._add_settings(message, line)
        is_off = any(request and not request.is_on for request in requests)
        if not is_found and (is_off or len(self.statements) == before):
            self._mention(line, off=is_off)
        if not is_found and len(self._in_vain) < _MAX_SHAPES:
            self._in_vain[shape] += 1 if requests else _MAX_REPEATS

    def _mention(self, line: Line, *, off: bool) -> None:
        # A library's notice that a name is old, and the line of code that Python prints below it,
        # say nothing of the run.
        if "deprecat" in line.text.lower():
            self._notice = line.number
        is_of_notice = line.number - self._notice in (0, 1)
        if off in self.mentions or is_of_notice or not _LOW.search(line.text):
            return
        message = next(messages_of(line.text), Message(line.text))
        text = (message.setting or message.text).strip()
        self.mentions[off] = Mention(
            line=line.number,
            text=clean(text[:_MAX_TEXT]),
            source=self._source,
        )

    def _add(self, message: Message, line: Line) -> bool:
        """Keep what a message claims; return whether it claims anything.

        A plain sentence on a warm-up takes claims back, whether or not the log counts steps as it
        does. Where it does, the steps that it names are not to run in low precision.
        """
        row = rows.match(message.text, message.setting)
        if row is None:
            claim, phase = _claim_of_sentence(message, line.number, self._source)
        else:
            claim = _claim_of_row(row, message, line.number, self._source)
            phase = _phase_of_row(row, claim) if claim else None
        if claim is None:
            return False
        if row is None or phase is None:
            self._keep(Statement(claim, _topic(claim), message.rank))
        if phase is not None:
            # A window in none of its steps is told of it.
            self._mention(line, off=False)
            self._keep(Statement(claim, "phase", message.rank, phase=phase))
        return True

    def _keep(self, statement: Statement) -> None:
        # torchao names each of a model's layers in a line of its own, and each rank repeats it; a
        # later attempt may say again what was taken back.
        claim = statement.claim
        if claim.strength == CONFIGURATION:
            words_used = statement.topic
        else:
            words_used = f"{claim.framework} {_INDEX.sub('*', claim.text)}"
        # Of ranks without a phase only matters whether the line names one.
        rank = statement.rank if statement.phase else bool(statement.rank)
        key = (words_used, statement.phase, rank)
        opposite = self._said["fp8" if claim.says == "not_fp8" else "not_fp8"]
        said = (claim.says, claim.recipe, opposite)
        before = self._last.get(key)
        if before == (said, claim.text):
            self.again[key] = statement
        elif before and before[0] == said:
            return
        elif len(self.statements) < MAX_CLAIMS:
            self._last[key] = (said, claim.text)
            self.statements.append(statement)
            self._said[claim.says] += statement.phase is None

    def _add_layer(self, layer: LayerClaim, rank: str | None) -> None:
        """Keep what is said of layers; one whose precision came to a low one is a claim, too."""
        if len(self.layers) < MAX_LAYERS:
            self.layers[layer.select, layer.names] = layer
        if not layer.is_pin and "quantization_type" in layer.text:
            claim = _plain_claim(
                layer.line, layer.text, layer.framework, self._source, layer.format
            )
            self._keep(Statement(claim, layer.names[0], rank))

    def _add_settings(
        self,
        message: Message,
        line: Line,
    ) -> list[Request | None]:
        """Keep what the settings in a message ask for, and return them."""
        if self._settings >= _MAX_SETTINGS:
            return []
        self._settings += 1
        requests = list(requests_in(message, line))
        for request in requests:
            if request is not None:
                self._add_request(request, message.rank, line)
        return requests

    def _add_request(
        self,
        request: Request,
        rank: str | None,
        line: Line,
    ) -> None:
        """Keep what a setting asks for; one that is off takes back what it was before."""
        values = {name: value.lower() for name, value in request.values.items()}
        claim = _claim_of_request(request, values, line.number, self._source)
        topic = f"{CONFIGURATION} {request.key}"
        self._keep(Statement(claim, topic, rank))
        if not request.is_on:
            return
        for phase in _healing(values, claim.format or "fp4"):
            stated = _plain_claim(
                line.number, claim.text, claim.framework, self._source, phase.format
            )
            self._keep(Statement(stated, topic, rank, phase=phase))
        if blocks := _first_and_last(values):
            pin = LayerClaim(
                select="blocks",
                names=blocks,
                format=HIGH_PRECISION,
                framework=claim.framework,
                line=line.number,
                text=f"first_last_layers_bf16 of the dump around line {line.number}",
            )
            self._add_layer(pin, rank)


# What two claims in the same words differ in.
_NAMED_RECIPE = lazy_pattern(r"\S*(?:wise|delayed|mxfp|nvfp|scaling)\S*", re.IGNORECASE)


def _topic(claim: Claim) -> str:
    return f"{claim.framework} {_NAMED_RECIPE.sub('*', claim.text)}"


# ---- one message

_RECIPE = lazy_pattern(
    r"\brecipe(?:_name)?['\"]?\s*[=: ]\s*['\"]?(?P<named>\w+)"
    r"|\b(?P<known>row-?wise(?:_with_gw_hp)?|tensor-?wise|block-?wise|delayed|"
    r"mxfp[48]_\w+|nvfp4_\w+)\b",
    re.IGNORECASE,
)
_ALL_GATHER = lazy_pattern(
    r"all[-_ ]?gather\w*(?: enabled)?\s*[=:]\s*\{?(?P<on>True|False)", re.IGNORECASE
)
_COUNTS = lazy_pattern(
    r"\b(?:(?:convert|swapp|replac|wrapp)(?:ed|ing) (?=\d)|(?=\d{1,7}\s*(?:/|of|out of)\s*\d)"
    rf"|(?={plain.LINEARS}))"
    r"(?P<converted>\d{1,7})(?:\s*(?:/|of|out of)\s*(?P<total>\d{1,7}))? (?:[\w.]+ ){0,2}"
    rf"(?:layers?|modules?|(?:{plain.NN}|float8|fp8)?linears?)\b",
    re.IGNORECASE,
)
_WGRAD_IN_HIGH_PRECISION = lazy_pattern("gw_hp|wgrad_with_hp", re.IGNORECASE)


def _claim_of_row(
    match: rows.Match,
    message: Message,
    number: int,
    source: str,
) -> Claim | None:
    """Return what a message claims by a framework's row; None if it is taken back."""
    row, found = match
    if row.says == "fp8" and message.denied:
        return None
    if row.declared:
        sentence = message.setting.strip()
    else:
        sentence = rows.sentence_of(message.text, found.end())
        if row.says == "fp8":
            rest = sentence[found.end() :]
            if rows.goes_on(sentence, found.end()) or plain.takes_back(rest):
                return None
    claim = _claim(row.framework, row.says, sentence, number, source)
    return _understood(_with_figures(claim, found.groupdict()))


def _claim_of_sentence(
    message: Message,
    number: int,
    source: str,
) -> tuple[Claim | None, PhaseClaim | None]:
    """Return what a message claims in plain words, and the steps for which it says so."""
    clause = None if message.denied else plain.read(message.text, message.prefix)
    if clause is None:
        return None, None
    sentence = rows.sentence_of(message.text, clause.end)
    claim = _understood(_claim(OWN, clause.says, sentence, number, source))
    if clause.until is None:
        return claim, None
    return claim, PhaseClaim(HIGH_PRECISION, None, clause.until)


def _claim(
    framework: str,
    says: str,
    sentence: str,
    number: int,
    source: str,
) -> Claim:
    """Return the claim of a sentence, with the figures in it."""
    claim = Claim(
        line=number,
        text=clean(sentence[:_MAX_TEXT]),
        framework=framework,
        says=says,
        source=source,
    )
    counts = _COUNTS.search(sentence)
    if counts:
        claim = _with_figures(claim, counts.groupdict())
    if says != "fp8":
        return claim
    recipe = None
    found = _RECIPE.search(sentence)
    if found:
        recipe = found["named"] or found["known"]
    gathers = None
    gather = _ALL_GATHER.search(sentence)
    if gather:
        gathers = gather["on"].lower() == "true"
    return replace(claim, recipe=recipe, all_gather=gathers)


def _with_figures(claim: Claim, figures: Mapping[str, str | None]) -> Claim:
    """Return a claim with the recipe and the counts that an expression found."""
    found: dict[str, Any] = {}
    if figures.get("recipe") and claim.says == "fp8":
        found["recipe"] = figures["recipe"]
    for name in ("converted", "total"):
        if digits := figures.get(name):
            found[name] = int(digits)
    return replace(claim, **found)


def _understood(claim: Claim) -> Claim | None:
    """Return a claim with its format and legs; None if its recipe says that there is none."""
    if claim.says != "fp8":
        return claim
    if claim.converted == 0:
        return replace(
            claim,
            says="not_fp8",
            recipe=None,
            all_gather=None,
        )
    if (claim.recipe or "").lower() in _NO_RECIPE:
        return None
    low = format_of(claim.text, claim.recipe) or "fp8"
    legs = {}
    # torchao's rowwise_with_gw_hp (float8/config.py) and mxfp8_rceil_wgrad_with_hp
    # (prototype/moe_training/config.py) compute the weights' gradient in high precision.
    if _WGRAD_IN_HIGH_PRECISION.search(claim.recipe or ""):
        legs = {
            "fprop": low,
            "dgrad": low,
            "wgrad": HIGH_PRECISION,
        }
    return replace(claim, format=low, legs=legs)


def _phase_of_row(match: rows.Match, claim: Claim) -> PhaseClaim | None:
    """Return the steps for which a row claims, if it says for which."""
    figures = match[1].groupdict()
    first = _number(figures.get("from_step")) or None
    last = _number(figures.get("until_step")) or None
    if first is None and last is None:
        return None
    format_ = claim.format or HIGH_PRECISION
    return PhaseClaim(format_, first, last)


def _plain_claim(
    line: int,
    text: str,
    framework: str,
    source: str,
    format_: str,
) -> Claim:
    """Return what a line says of a format: a low one, or high precision."""
    says = "fp8"
    low: str | None = format_
    if format_ == HIGH_PRECISION:
        says = "not_fp8"
        low = None
    return Claim(
        line=line,
        text=text,
        framework=framework,
        says=says,
        source=source,
        format=low,
    )


def claim_of_call(name: str) -> Claim:
    """Return the claim made by the call of an API, as `fp8verify run` recorded it."""
    name = clean(name)
    whose = name.partition(".")[0][:40]
    return Claim(
        line=0,
        text=f"{name[:200]}()",
        framework=whose,
        says="fp8",
        source=f"{whose}'s call",
        format="fp8",
    )


# ---- settings


def _claim_of_request(
    request: Request,
    values: Mapping[str, str],
    number: int,
    source: str,
) -> Claim:
    """Return what a setting asks for; `values` are the settings beside it, in lower case."""
    kind = "fp4" if "4" in request.key else "fp8"
    recipe = None
    for name in (f"{kind}_recipe", "recipe", "recipe_name"):
        recipe = recipe or values.get(name)
    if (recipe or "") in _NO_RECIPE:
        recipe = None
    low = format_of(f"{request.key} {request.value}", recipe) or kind
    legs = {}
    if values.get(f"{kind}_wgrad") == "false":
        legs = {
            "fprop": low,
            "dgrad": low,
            "wgrad": HIGH_PRECISION,
        }
    return Claim(
        line=number,
        text=clean(request.text[:_MAX_TEXT]),
        framework="Megatron-LM" if " ..." in request.text else CONFIGURATION,
        says="fp8" if request.is_on else "off",
        recipe=recipe,
        source=source,
        format=low,
        all_gather=_gathers(values, kind),
        legs=legs,
        strength=CONFIGURATION,
    )


def _gathers(values: Mapping[str, str], kind: str) -> bool | None:
    """Return whether settings ask for weights that are gathered in a format."""
    # The argument and the field of the configuration are called differently.
    said = {values.get(f"{kind}_param_gather"), values.get(f"{kind}_param")}
    if "true" in said:
        return True
    if "false" in said:
        return False
    return None


def _healing(values: Mapping[str, str], low: str) -> tuple[PhaseClaim, ...]:
    """Return the phases of MLPerf's recipes: FP4 up to an iteration, and then FP8 or BF16."""
    step = _number(values.get("healing_iter"))
    then = format_or_high(values.get("healing_precision", ""))
    if not (step and then):
        return ()
    return PhaseClaim(low, None, step), PhaseClaim(then, step + 1, None)


def _first_and_last(arguments: Mapping[str, str]) -> tuple[str, ...]:
    """Return the numbers of the blocks that Megatron's --first-last-layers-bf16 keeps in BF16."""
    if arguments.get("first_last_layers_bf16", "").lower() != "true":
        return ()
    count = _number(arguments.get("num_layers"))
    count = min(MAX_LAYERS, count)
    at_start = _number(arguments.get("num_layers_at_start_in_bf16"), default=1)
    at_end = _number(arguments.get("num_layers_at_end_in_bf16"), default=1)
    first = range(min(MAX_LAYERS, at_start))
    last = range(max(0, count - at_end), count)
    numbers = sorted({*first, *last})
    return tuple(map(str, numbers))


def _number(text: str | None, default: int = 0) -> int:
    digits = (text or "").replace("_", "").replace(",", "")[:9]
    if digits.isdecimal():
        return int(digits)
    return default
