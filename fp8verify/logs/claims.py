"""A log's claims about FP8: for the run, for single layers, and for ranges of steps.

Neither a claim nor its absence proves anything: torchtitan and KempnerForge print theirs even
when no layer was converted. A claim is compared with the kernels.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path

from fp8verify.frameworks.known import OWN, Framework, frameworks
from fp8verify.logs import wording
from fp8verify.logs.lines import Line, read_between, read_lines, uncolored
from fp8verify.logs.messages import ALIKE, Message, indent_of, messages_of
from fp8verify.logs.settings import Request, headings, may_set, own_lines, requests_in
from fp8verify.logs.statements import (
    CONFIGURATION,
    HIGH_PRECISION,
    LayerClaim,
    LogReading,
    PhaseClaim,
    Statement,
)
from fp8verify.report.model.parts import Claim, Mention
from fp8verify.text import clean

MAX_CLAIMS = 200  # of different wordings, far more than a run says of FP8
MAX_LAYERS = 10_000  # that are named
_MAX_SHAPES = 10_000
_MAX_REPEATS = (
    100  # of a setting: every rank of a node may print it, but not every step
)
_MAX_SETTINGS = 2000  # that are read with what is around them
_MAX_TEXT = 300
_INDEX = re.compile(r"(?<=\.)\d+(?=\.)")
# The value of a recipe if there is none.
_NO_RECIPE = frozenset({"none", "null", "false", "off", "no", "disabled", "na"})
_LOW = re.compile(r"(?:fp|float)[- ]?[48](?!\d)", re.IGNORECASE)


def read_claims(path: Path) -> LogReading:
    """Read a log and return what it claims.

    Raises:
        InputError: the file cannot be opened or read.
    """
    notes: list[str] = []
    found = _Scan(path.name)
    for line in read_lines(
        path, notes, words=[word.encode() for word in wording.words().all]
    ):
        found.add(line)
    statements = sorted(
        [*found.statements, *found.again.values()], key=lambda one: one.claim.line
    )
    if statements:
        beginning = Claim(line=0, text="", framework="", says="off", source=path.name)
        statements = _with_steps(path, [Statement(beginning, ""), *statements])
    mention = found.mentions.get(False) or found.mentions.get(True)
    return LogReading(statements, notes, tuple(found.layers.values()), mention)


# Python finds places for a pattern by the letters that it may begin with: what has to be before
# these is asked for behind them, which makes long logs several times faster.
_STEP = re.compile(
    rb"(?:s(?<!\ws)tep|i(?<!\wi)ter(?:ation)?|g(?<!\wg)lobal[_ ]?step)"
    rb"[ '\"]{0,2}[ :=#]{0,3}(\d{1,9})(?![\d.]*\s?%)"
)
# A step from which a run goes on is none that it trained.
_RESUMES = re.compile(rb"\b(?:resum|restor|load|start|continu)(?:e|ed|es|ing)\b")
# What ends a run, or starts it again.
_ENDS = re.compile(
    rb"traceback \(most recent|e(?<=\we)rror: |r(?<!\wr)e-?(?:start|launch)"
    rb"|a(?<!\wa)ttempt[ #:=]{0,2}\d"
)


def _with_steps(path: Path, statements: Iterable[Statement]) -> list[Statement]:
    """Add to statements which steps the log names after each, and which stretch of it they are."""
    found = list(statements)
    for place, text in read_between(path, [one.claim.line for one in found]):
        first = _STEP.search(text)
        if first and _RESUMES.search(
            text, text.rfind(b"\n", 0, first.start()), first.start()
        ):
            first = _STEP.search(text, first.end())
        if first:
            steps = [
                *map(int, _STEP.findall(text, first.start())),
                *(found[place].steps or ()),
            ]
            found[place] = found[place]._replace(steps=(min(steps), max(steps)))
        if first or _ENDS.search(text):
            found[place + 1 :] = [
                one._replace(stretch=place + 1) for one in found[place + 1 :]
            ]
    return found


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

    def add(self, line: Line) -> None:
        lower = line.text.lower()
        shape = hash(lower.translate(ALIKE))
        if self._in_vain[shape] >= _MAX_REPEATS:
            return
        known = wording.words()
        closely = any(map(lower.__contains__, known.closely))
        settings = may_set(uncolored(line.text))
        found = False
        is_setting = False
        is_off = False
        before = len(self.statements)
        if closely or settings or wording.says_something(line.text):
            for message in messages_of(line.text, known.all):
                if closely and (layer := _layer_of(line, message.prefix)):
                    found = True
                    self._add_layer(layer, message.rank)
                found = self._add(message, line) or found
                if settings and not found and self._settings < _MAX_SETTINGS:
                    self._settings += 1
                    for request in requests_in(message, line):
                        is_setting = True
                        if request is not None:
                            is_off = is_off or not request.is_on
                            self._ask(request, message, line)
        if not found and (is_off or len(self.statements) == before):
            self._mention(line, off=is_off)
        if not found and len(self._in_vain) < _MAX_SHAPES:
            self._in_vain[shape] += 1 if is_setting else _MAX_REPEATS

    def _mention(self, line: Line, *, off: bool) -> None:
        if off not in self.mentions and _LOW.search(line.text):
            said = next(messages_of(line.text), Message(line.text))
            text = clean((said.setting or said.text).strip()[:_MAX_TEXT])
            self.mentions[off] = Mention(
                line=line.number, text=text, source=self._source
            )

    def _add(self, message: Message, line: Line) -> bool:
        """Keep what a message claims, and for which steps; return whether it claims anything."""
        said = wording.match(message.text, message.setting)
        claim = said and _claim_of(message, said, line.number, self._source)
        if claim is not None:
            self._keep(Statement(claim, _topic(claim), message.rank))
        found = False
        for phase, unclear in () if message.denied else _phases_of(message, said):
            self._mention(line, off=False)
            text = clean(message.text.strip()[:_MAX_TEXT])
            stated = self._claim(
                line.number, text, OWN, phase.format if phase else None
            )
            self._keep(
                Statement(stated, "phase", message.rank, phase=phase, unclear=unclear)
            )
            found = True
        return claim is not None or found

    def _claim(
        self, line: int, text: str, framework: str, format_: str | None
    ) -> Claim:
        """Return what a line says of a format; of none, that what was said is off."""
        if format_ is None:
            says = "off"
        elif format_ == HIGH_PRECISION:
            says = "not_fp8"
        else:
            says = "fp8"
        low = format_ if says == "fp8" else None
        return Claim(
            line=line,
            text=text,
            framework=framework,
            says=says,
            source=self._source,
            format=low,
        )

    def _keep(self, statement: Statement) -> None:
        # torchao names each of a model's layers in a line of its own, and each rank repeats it; a
        # later attempt may say again what was taken back.
        claim, topic, rank, _, phase, *_ = statement
        in_words = f"{claim.framework} {_INDEX.sub('*', claim.text)}"
        words_used = topic if claim.strength == CONFIGURATION else in_words
        opposite = self._said["fp8" if claim.says == "not_fp8" else "not_fp8"]
        key = (words_used, phase, rank if phase else bool(rank))
        said = (claim.says, claim.recipe, opposite), claim.text
        before = self._last.get(key)
        if before == said:
            self.again[key] = statement
        elif (not before or before[0] != said[0]) and len(self.statements) < MAX_CLAIMS:
            self._last[key] = said
            self.statements.append(statement)
            self._said[claim.says] += phase is None

    def _add_layer(self, layer: LayerClaim, rank: str | None) -> None:
        """Keep what is said of layers; one whose precision came to a low one is a claim, too."""
        if len(self.layers) < MAX_LAYERS:
            self.layers[layer.select, layer.names] = layer
        if not layer.is_pin and "quantization_type" in layer.text:
            claim = self._claim(layer.line, layer.text, layer.framework, layer.format)
            self._keep(Statement(claim, layer.names[0], rank))

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
            all_gather=True
            if "true" in gathers
            else False
            if "false" in gathers
            else None,
            legs=high_wgrad if values.get(f"{kind}_wgrad") == "false" else {},
            strength=CONFIGURATION,
        )
        topic = f"{CONFIGURATION} {request.key}"
        self._keep(Statement(claim, topic, message.rank))
        if request.is_on:
            for phase in _healing(values, low):
                stated = self._claim(line.number, claim.text, framework, phase.format)
                self._keep(Statement(stated, topic, message.rank, phase=phase))
            if blocks := _first_and_last(values):
                text = f"first_last_layers_bf16 of the dump around line {line.number}"
                pin = LayerClaim(
                    "blocks", blocks, HIGH_PRECISION, framework, line.number, text
                )
                self._add_layer(pin, message.rank)


# What two claims in the same words differ in.
_NAMED_RECIPE = re.compile(r"\S*(?:wise|delayed|mxfp|nvfp|scaling)\S*", re.IGNORECASE)


def _topic(claim: Claim) -> str:
    return f"{claim.framework} {_NAMED_RECIPE.sub('*', claim.text)}"


# ---- one message


def _claim_of(
    message: Message, said: wording.Match, number: int, source: str
) -> Claim | None:
    """Return what a message claims, or None."""
    (framework, says, _, declared), where = said
    if message.denied and (says == "fp8" or framework == OWN):
        return None
    if (
        says == "not_fp8"
        and framework == OWN
        and wording.is_limited(message.text, where.end())
    ):
        return None
    if declared:
        sentence = message.setting.strip()
    else:
        sentence = wording.sentence_of(message.text, where.end())
    counted = _COUNTS.search(sentence)
    figures = {**(counted.groupdict() if counted else {}), **where.groupdict()}
    converted, total = (
        int(figures[name]) if figures.get(name) else None for name in _FIGURES
    )
    if says == "fp8" and converted == 0:
        says = "not_fp8"
    recipe = None
    gather = None
    low = None
    legs = {}
    if says == "fp8":
        named = _RECIPE.search(sentence)
        recipe = figures.get("recipe") or (named and (named["named"] or named["known"]))
        denied = not declared and wording.denies(sentence, where.end())
        if denied or (recipe or "").lower() in _NO_RECIPE:
            return None
        gather = _ALL_GATHER.search(sentence)
        low = format_of(sentence, recipe) or "fp8"
        # torchao's rowwise_with_gw_hp (float8/config.py) and mxfp8_rceil_wgrad_with_hp
        # (prototype/moe_training/config.py) compute the weights' gradient in high precision.
        if re.search("gw_hp|wgrad_with_hp", recipe or "", re.IGNORECASE):
            legs = {"fprop": low, "dgrad": low, "wgrad": HIGH_PRECISION}
    return Claim(
        line=number,
        text=clean(sentence[:_MAX_TEXT]),
        framework=framework,
        says=says,
        recipe=recipe,
        all_gather=gather[1].lower() == "true" if gather else None,
        source=source,
        format=low,
        legs=legs,
        converted=converted,
        total=total,
    )


_RECIPE = re.compile(
    r"\brecipe(?:_name)?['\"]?\s*[=: ]\s*['\"]?(?P<named>\w+)"
    r"|\b(?P<known>row-?wise(?:_with_gw_hp)?|tensor-?wise|block-?wise|delayed|"
    r"mxfp[48]_\w+|nvfp4_\w+)\b",
    re.IGNORECASE,
)
_ALL_GATHER = re.compile(
    r"all[-_ ]?gather\w*(?: enabled)?\s*[=:]\s*\{?(True|False)", re.IGNORECASE
)
_FIGURES = ("converted", "total")
_COUNTS = re.compile(
    r"\b(?:(?:convert|swapp|replac|wrapp)(?:ed|ing) (?=\d)|(?=\d{1,7}\s*(?:/|of|out of)\s*\d))"
    r"(?P<converted>\d{1,7})(?:\s*(?:/|of|out of)\s*(?P<total>\d{1,7}))? (?:[\w.]+ ){0,2}"
    r"(?:layers?|modules?|linears?)\b",
    re.IGNORECASE,
)


def claim_of_call(name: str) -> Claim:
    """Return the claim made by the call of an API, as `fp8verify run` recorded it."""
    name = clean(name)
    whose = name.partition(".")[0][:40]
    text = f"{name[:200]}()"
    source = f"{whose}'s call"
    return Claim(
        line=0, text=text, framework=whose, says="fp8", source=source, format="fp8"
    )


# ---- formats

_FORMATS = (
    ("nvfp4", re.compile(r"nv[- ]?fp4|nvfloat4", re.IGNORECASE)),
    ("mxfp4", re.compile(r"mx[- ]?fp4", re.IGNORECASE)),
    ("mxfp8", re.compile(r"mx[- ]?fp8|\bMX", re.IGNORECASE)),
    ("fp4", re.compile(r"(?:fp|float)[- ]?4", re.IGNORECASE)),
    ("fp8", re.compile(r"(?:fp|float)[- ]?8", re.IGNORECASE)),
)


def format_of(text: str, recipe: str | None = None) -> str | None:
    """Return the narrowest format that a recipe or, failing that, a line names."""
    said = (recipe or "", text)
    return next(
        (name for one in said for name, low in _FORMATS if low.search(one)), None
    )


# ---- single layers

_QUOTED = re.compile(r"['\"]([^'\"]{1,300})['\"]")
_HIGH_CLASS = re.compile(r"(?:bf16|bfloat16|fp16|fp32|high|none$)", re.IGNORECASE)
# The section of a list of filters, which counts only where its converter is in use.
_SECTION = re.compile(
    r"(?<![a-z])(?P<name>float8|fp8|mxfp8|mx|nvfp4)(?![a-z])", re.IGNORECASE
)
# torchtitan's word for a filter by size is no name of a layer.
_NO_NAMES = frozenset({"auto_filter_small_kn"})
_MAX_LAYER_LINE = 1 << 16
_MAX_LIST = 200  # lines


@lru_cache(maxsize=2)
def _layer_lines(
    known: tuple[Framework, ...],
) -> tuple[tuple[str, str, re.Pattern[str]], ...]:
    """Return whose lines about layers there are, how their names select modules, and the line."""
    return tuple(
        (one.name, row.select, re.compile(row.line))
        for one in known
        for row in one.layers
    )


def _layer_of(line: Line, prefix: str) -> LayerClaim | None:
    """Return what a line says of single layers."""
    text = line.text[:_MAX_LAYER_LINE]
    if "filter_fqns" in text and text.rstrip().endswith(("[", "(")):
        # A list that a dump spreads over lines is read as one.
        for below in islice(own_lines(line.below(), prefix), _MAX_LIST):
            text += below
            if "]" in below or ")" in below:
                break
    for framework, select, pattern in _layer_lines(frameworks()):
        if found := pattern.search(text):
            said = found.groupdict()
            every = [said["path"]] if "path" in said else _QUOTED.findall(said["names"])
            names = tuple(name for name in every if name not in _NO_NAMES)
            if select == "part":
                section = _section(text[: found.start()], line, prefix)
            else:
                section = ""
            format_ = _layer_format(said)
            text = clean(found[0][:300])
            if not names or format_ is None:
                return None
            return LayerClaim(
                select, names, format_, framework, line.number, text, section
            )
    return None


def _layer_format(said: Mapping[str, str]) -> str | None:
    """Return the format of a line's layers; a list names those left in high precision."""
    if "new" in said:
        # An override by another class of high precision, as a fused one, claims nothing.
        return format_of(said["new"]) or (
            HIGH_PRECISION if format_of(said["old"]) else None
        )
    # The name of a configuration has its format: "mxfp8", "bf16_layers".
    key = said.get("key") or said.get("type")
    return HIGH_PRECISION if key is None else _format_or_high(key)


def _format_or_high(name: str) -> str | None:
    return format_of(name) or (HIGH_PRECISION if _HIGH_CLASS.match(name) else None)


def _section(before: str, line: Line, prefix: str) -> str:
    """Return the format of the section that a list of filters is in, if its name tells it."""
    above = headings(line, prefix, indent_of(line.text[len(prefix) :]))
    for text in [before[-200:]] if before.strip(" '\"") else above:
        if names := _SECTION.findall(text):
            return format_of(names[-1]) or "mxfp8"
    return ""


def _first_and_last(arguments: Mapping[str, str]) -> tuple[str, ...]:
    """Return the numbers of the blocks that Megatron's --first-last-layers-bf16 keeps in BF16."""
    if arguments.get("first_last_layers_bf16", "").lower() != "true":
        return ()
    keys = (
        ("num_layers", 0),
        ("num_layers_at_start_in_bf16", 1),
        ("num_layers_at_end_in_bf16", 1),
    )
    numbers = (_number(arguments.get(key), least) for key, least in keys)
    count, first, last = (min(number, MAX_LAYERS) for number in numbers)
    return tuple(map(str, sorted({*range(first), *range(max(0, count - last), count)})))


def _number(text: str | None, default: int = 0) -> int:
    digits = (text or "").replace("_", "").replace(",", "")[:9]
    return int(digits) if digits.isdecimal() else default


# ---- ranges of steps

_STEP_NUMBER = r"(?:global |training |optimizer )?(?:step|iteration|iter)s?[ =#:]*(?P<{}>\d[\d_,]*)(?!\s*%)"
_HIGH = r"(?:bf16|bfloat16|fp16|high[- ]precision)"
_COUNT = r"(?P<{}>\d[\d_,]*) (?:\w+[ -]?){{0,2}}?(?:steps|iterations|iters)\b"
# FP8 that begins later: “FP8 training enabled from step 500 on”, “… after 100 warm-up steps”.
_BEGINS = re.compile(
    rf"[\s,;(]*(?:(?:from|at|since|start(?:s|ing)?(?: at| from)?|begin(?:s|ning)?(?: at| from)?)\s+"
    rf"{_STEP_NUMBER.format('at')}|after (?:the first |a )?(?:{_STEP_NUMBER.format('past')}"
    rf"|{_COUNT.format('count')}))",
    re.IGNORECASE,
)
# A warm-up: “BF16 warm-up for 100 steps”, “training in bf16 for the first 100 steps”. What only
# names a precision, as “(bf16 parameters, fp8 linear layers) for 1000 steps”, is none.
_WARM_UP = re.compile(
    rf"(?<![=:\w(]){_HIGH}"
    r"(?: (?:training|precision|mode|compute|only))*[, ]*"
    rf"(?:-?\s?warm-?up(?: phase)?[ :,(]*(?:for |until |of |lasts )?(?:the first )?"
    r"|\(?(?:for|during) the first |\(?(?:until|up to|till) |\(?first )"
    rf"(?:{_STEP_NUMBER.format('until')}|{_COUNT.format('count')})",
    re.IGNORECASE,
)


# What takes a warm-up back: “Skipping the bf16 warm-up”, “BF16 warm-up finished at step 90”.
_NO_WARM_UP = re.compile(
    rf"\b(?:no|skip\w*|without|disabl\w+|cancel\w*|end\w*|finish\w*) (?:the )?{_HIGH}[- ]warm-?up"
    rf"|(?<![=:\w(]){_HIGH}[- ]warm-?up(?: phase)?[ :(=-]{{1,3}}(?:is |was |now )*"
    r"(?:disabled|skipped|off|cancel\w+|over|done|finished|ended|complete\w*)\b",
    re.IGNORECASE,
)


def _phases_of(
    message: Message, said: wording.Match | None
) -> Iterator[tuple[PhaseClaim | None, bool]]:
    """Yield what a message states of ranges of steps, and whether it may be of another model.

    None takes back that the run begins in high precision.
    """
    text = message.text
    low = format_of(text)
    prefix = message.before
    if (found := _NO_WARM_UP.search(text)) is not None:
        if wording.is_of_run(prefix, text, found):
            yield None, False
    elif (found := _WARM_UP.search(text)) is not None:
        last = _number(found["until"] or found["count"])
        ours = wording.is_of_run(prefix, text, found)
        for format_, first, end in (
            (HIGH_PRECISION, None, last),
            (low, last + 1, None),
        ):
            if format_ and ours is not False:
                yield PhaseClaim(format_, first, end), ours is None
    elif (
        said
        and said[0].says == "fp8"
        and low
        and (found := _BEGINS.match(text, said[1].end()))
    ):
        first = _number(found["at"] or found["past"] or found["count"]) + (
            not found["at"]
        )
        if first > 1:
            yield (
                PhaseClaim(low, first, None),
                not wording.is_of_run(prefix, text, said[1]),
            )


def _healing(values: Mapping[str, str], low: str) -> tuple[PhaseClaim, ...]:
    """Return the phases of MLPerf's recipes: FP4 up to an iteration, and then FP8 or BF16."""
    step = _number(values.get("healing_iter"))
    then = _format_or_high(values.get("healing_precision", ""))
    if not (step and then):
        return ()
    return PhaseClaim(low, None, step), PhaseClaim(then, step + 1, None)
