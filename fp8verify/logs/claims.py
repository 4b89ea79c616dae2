"""What a training log says about FP8: the scan over a log for what its program says of itself.

Neither a claim nor its absence proves anything: torchtitan and KempnerForge print theirs even
when no layer was converted. A claim is held against the kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fp8verify.logs.arguments import ArgumentDump
from fp8verify.logs.lines import Line, read_lines
from fp8verify.logs.messages import Message, messages_of
from fp8verify.logs.promised import all_gather_of, counts_of, format_of, legs_of, recipe_of
from fp8verify.logs.wording import DEEDS, PATTERNS, WORDS, Pattern
from fp8verify.report.model import Claim

MAX_CLAIMS = 200
_WORDS = tuple(word.decode() for word in WORDS)
_MAX_SHAPES = 10_000
_MAX_TEXT = 300
_INDEX = re.compile(r"(?<=\.)\d+(?=\.)")
# What says only how many layers were converted, and of none that nothing was.
_CONVERTED = re.compile(
    r"(?:successfully )?(?:convert|swapp|replac|wrapp)(?:ed|ing)\b", re.IGNORECASE
)
# The value of a recipe where there is none.
_NO_RECIPE = frozenset({"none", "null", "false", "off", "no", "disabled", "na"})


class LogReading(NamedTuple):
    """The claims of a log in order, the first of each wording only, and what was not read."""

    claims: list[Claim]
    notes: list[str]


def read_claims(path: Path) -> LogReading:
    """Read a log and return what it claims.

    Raises:
        InputError: the file cannot be opened or read.
    """
    notes: list[str] = []
    scan = _Scan(path.name)
    for line in read_lines(path, notes, words=WORDS, but=scan.barren):
        scan.add(line)
    found = scan.finish()
    return LogReading(found.claims, notes + found.notes)


def scan_log(lines: Iterable[str], *, source: str = "log") -> list[Claim]:
    """Return the claims of a log that is given line by line.

    Args:
        lines: the log's lines; escape sequences of terminals are ignored.
        source: the file's name, kept in each claim.
    """
    scan = _Scan(source)
    for number, text in enumerate(lines, start=1):
        scan.add(Line(number, text.rstrip("\r\n")))
    return scan.finish().claims


class _Scan:
    """What was found so far, and the shapes of lines in which nothing was found."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._claims: dict[tuple[str, str], Claim] = {}
        self._left_out: set[tuple[str, str]] = set()
        self.barren: set[bytes] = set()
        self._dump = ArgumentDump()

    def add(self, line: Line) -> None:
        fruitful = False
        if DEEDS.search(line.text):
            for message in messages_of(line, _WORDS):
                fruitful = self._add(message, line.number) or fruitful
        if line.shape and not fruitful and len(self.barren) < _MAX_SHAPES:
            self.barren.add(line.shape)

    def _add(self, message: Message, number: int) -> bool:
        if not message.denied and self._dump.add(message.text, number, self._source):
            return True
        claim = claim_of(message, number, self._source)
        if claim is not None:
            self._keep(claim)
        return claim is not None

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
        for claim in self._dump.finish(self._source):
            self._keep(claim)
        notes = []
        if self._left_out:
            many = "or more " if len(self._left_out) == _MAX_SHAPES else ""
            notes.append(
                f"{self._source} has {len(self._left_out)} {many}further lines about FP8 after "
                f"the first {MAX_CLAIMS}, which were not held against the kernels"
            )
        return LogReading(sorted(self._claims.values(), key=lambda c: c.line), notes)


def claim_of(message: Message, number: int = 1, source: str = "log") -> Claim | None:
    """Return what a message claims, or None."""
    for row in PATTERNS:
        found = row.pattern.match(message.text)
        if found is None:
            continue
        # Most lines match no row: what only reads one that does is imported then.
        from fp8verify.logs.retractions import sentence_of, takes_back

        sentence = sentence_of(message.text, found.end())
        if row.says == "fp8" and (message.denied or takes_back(sentence, found.end())):
            return None
        return _claim(row, found, sentence, number, source)
    return None


def claim_of_call(name: str) -> Claim:
    """Return the claim that lies in the call of an API, as `fp8verify run` recorded it."""
    framework = name.partition(".")[0][:40]
    return Claim(
        line=0,
        text=f"{name[:200]}()",
        framework=framework,
        says="fp8",
        source=f"{framework}'s call",
        format="fp8",
    )


def _claim(
    row: Pattern, found: re.Match[str], sentence: str, number: int, source: str
) -> Claim | None:
    groups = found.groupdict()
    recipe = groups.get("recipe") or groups.get("block") or recipe_of(sentence)
    if recipe is not None and recipe.lower() in _NO_RECIPE:
        return None
    converted, total = counts_of(sentence)
    says = "not_fp8" if converted == 0 and _CONVERTED.match(sentence) else row.says
    on = says == "fp8"
    format_ = format_of(sentence, recipe) or "fp8" if on else None
    return Claim(
        line=number,
        text=sentence[:_MAX_TEXT],
        framework=row.framework,
        says=says,
        recipe=recipe if on else None,
        all_gather=all_gather_of(sentence) if on else None,
        source=source,
        format=format_,
        legs=legs_of(format_, recipe),
        converted=converted,
        total=total,
    )
