"""What a training log says about FP8: its claims, and its promises for layers and for steps.

Neither a claim nor its absence proves anything: torchtitan and KempnerForge print theirs even
when no layer was converted. A claim is compared with the kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fp8verify.logs import layer_promises
from fp8verify.logs.arguments import ArgumentDump
from fp8verify.logs.layer_promises import LayerPromise, LayerScan, PhasePromise, phases_of
from fp8verify.logs.lines import Line, read_lines
from fp8verify.logs.messages import Message, messages_of
from fp8verify.logs.promised import all_gather_of, counts_of, format_of, legs_of, recipe_of
from fp8verify.logs.wording import OWN, WORDS, denies, match, says_something, sentence_of
from fp8verify.report.model import Claim
from fp8verify.text import clean

MAX_CLAIMS = 200
_WORDS = tuple(word.decode() for word in WORDS)
_LAYER_WORDS = tuple(word.decode() for word in layer_promises.WORDS)
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
    words = (*WORDS, *layer_promises.WORDS)
    for line in read_lines(path, notes, words=words, but=scan.barren):
        scan.add(line)
    found = scan.finish()
    return found._replace(notes=notes + found.notes)


def scan_log(lines: Iterable[str], *, source: str = "log") -> list[Claim]:
    """Return the claims of a log that is given line by line.

    Args:
        lines: the log's lines; escape sequences of terminals are ignored.
        source: the file's name, kept in each claim.
    """
    return scan_promises(lines, source=source).claims


def scan_promises(lines: Iterable[str], *, source: str = "log") -> LogReading:
    """Return what a log that is given line by line claims and promises."""
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
        self._dump = ArgumentDump(source, self._layers)

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
        if key in self._claims:
            return
        if len(self._claims) < MAX_CLAIMS:
            self._claims[key] = claim
        elif len(self._left_out) < _MAX_SHAPES:
            self._left_out.add(key)

    def finish(self) -> LogReading:
        for claim in self._dump.finish():
            self._keep(claim)
        notes = []
        if self._left_out:
            many = "or more " if len(self._left_out) == _MAX_SHAPES else ""
            notes.append(
                f"{self._source} has {len(self._left_out)} {many}further lines about FP8 after "
                f"the first {MAX_CLAIMS}, which were not held against the kernels"
            )
        claims = sorted(self._claims.values(), key=lambda claim: claim.line)
        phases = tuple(self._phases.values())
        return LogReading(claims, notes, self._layers.found, phases)


def claim_of(message: Message, number: int = 1, source: str = "log") -> Claim | None:
    """Return what a message claims, or None."""
    found = match(message.text)
    if found is None:
        return None
    framework, says, where = found
    sentence = sentence_of(message.text, where.end())
    groups = where.groupdict()
    recipe = groups.get("recipe") or groups.get("block") or recipe_of(sentence)
    converted, total = counts_of(sentence)
    if message.denied and (says == "fp8" or framework == OWN):
        return None
    if says == "fp8" and converted == 0:
        says = "not_fp8"
    if says == "fp8" and (
        denies(sentence, where.end()) or (recipe is not None and recipe.lower() in _NO_RECIPE)
    ):
        return None
    on = says == "fp8"
    format_ = format_of(sentence, recipe) or "fp8" if on else None
    return Claim(
        line=number,
        text=clean(sentence[:_MAX_TEXT]),
        framework=framework,
        says=says,
        recipe=recipe if on else None,
        all_gather=all_gather_of(sentence) if on else None,
        source=source,
        format=format_,
        legs=legs_of(format_, recipe),
        converted=converted,
        total=total,
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
