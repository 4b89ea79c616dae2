"""The table of findings: `findings.toml` says what each code means, and this makes findings of it.

Rules hand over facts only. What a finding says, how grave it is, which verdict it makes of its
ranks and what to do about it are in the table, from which the pages of
`docs/findings` and `fp8verify explain CODE` are written too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from fp8verify import thresholds
from fp8verify.files import parse_toml
from fp8verify.model.meanings import meanings
from fp8verify.model.verdict import Finding
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import Severity, Verdict
from fp8verify.verdict.clauses import optional


class Piece(NamedTuple):
    """A piece of advice.

    Attributes:
        text: what it says.
        needs: the facts of a run that it needs; "not " before one denies it.
        settles: whether it says that nothing is to be done.
    """

    text: str
    needs: tuple[str, ...] = ()
    settles: bool = False

    def fits(self, holds: frozenset[str]) -> bool:
        """Whether the facts that hold of a run allow it."""
        return all(_is_met(need, holds) for need in self.needs)


def _is_met(need: str, holds: frozenset[str]) -> bool:
    is_denied = need.startswith("not ")
    return (need.removeprefix("not ") in holds) is not is_denied


class Case(NamedTuple):
    """What a code says in one case.

    Attributes:
        severity: error, warning or info.
        message: the sentence; facts are in braces.
        pieces: what to do, with facts in braces; empty if nothing is to be done.
        verdict: what it makes of its ranks, None if they may be ACTIVE.
        place: in the table.
    """

    severity: Severity
    message: str
    pieces: tuple[Piece, ...]
    verdict: Verdict | None
    place: int

    @property
    def hint(self) -> str:
        """All that it may advise."""
        texts = [piece.text for piece in self.pieces]
        return " ".join(texts)

    def hint_for(self, holds: frozenset[str]) -> str:
        """What it advises where certain facts hold."""
        return " ".join(piece.text for piece in self._fitting(holds))

    def needs_nothing(self, holds: frozenset[str]) -> bool:
        """Whether what it advises there begins with that nothing is to be done."""
        fitting = self._fitting(holds)
        return bool(fitting) and fitting[0].settles

    def _fitting(self, holds: frozenset[str]) -> list[Piece]:
        return [piece for piece in self.pieces if piece.fits(holds)]


def finding(
    code: str,
    case: str = "",
    *,
    ranks: Iterable[int] = (),
    layers: Iterable[str] = (),
    holds: frozenset[str] = frozenset(),
    gpu_share: float | None = None,
    **facts: object,
) -> Finding:
    """Make a finding of facts.

    Args:
        code: a code of the table.
        case: a case of the code, empty for what the code says by itself.
        ranks: the ranks that it is about, none if it is about the run.
        layers: the layers that it is about, by their exact names, each once.
        holds: facts of the run that pieces of the advice need, as `advice.Fact` names them.
        gpu_share: share of GPU time that its cause costs, if known.
        facts: what the sentences of the case name in braces, besides thresholds.

    Raises:
        KeyError: the table has no such code or case, or a fact is missing.
    """
    found = cases_of(code)[case]
    named = {**vars(thresholds), **facts}
    if gpu_share is not None:
        gpu_share = round(gpu_share, 6)
    return Finding(
        code=code,
        severity=found.severity,
        message=found.message.format_map(named),
        hint=found.hint_for(holds).format_map(named),
        verdict=found.verdict,
        ranks=tuple(ranks),
        layers=tuple(dict.fromkeys(layers)),
        gpu_share=gpu_share,
        needs_nothing=found.needs_nothing(holds),
    )


def told(
    code: str,
    case: str = "",
    *,
    when: object,
    **facts: Any,
) -> Iterator[Finding]:
    """Yield a finding if a condition holds.

    Args:
        code: a code of the table.
        case: a case of the code.
        when: the condition.
        facts: what else `finding` takes.
    """
    if when:
        yield finding(code, case, **facts)


def viewed(found: Finding, view: str) -> bool:
    """Whether pages treat a finding in a way that `findings.toml` names, such as "detail"."""
    return view in _views_of(found.code)


@cache
def _views_of(code: str) -> tuple[str, ...]:
    # Of a code with rows of several severities, one has the views of all.
    views: tuple[str, ...] = ()
    if not is_in_table(code):
        return views
    for row in _rows_of(code):
        if "views" in row.fields:
            views = tuple(row.fields["views"])
    return views


# What stands in the table below a code, or below a case of it.
_Fields: TypeAlias = Mapping[str, Any]


class _Row(NamedTuple):
    """A row of the table: a code in one severity.

    Attributes:
        severity: error, warning or info.
        fields: what it says.
        place: in the table.
    """

    severity: Severity
    fields: _Fields
    place: int


# The head of a row, or of a case that has another severity than its code: [error.CODE.CASE].
_HEAD: Final = lazy_pattern(r"^\[(\w+)\.([\w-]+).*\]$", re.MULTILINE)


class _Source(NamedTuple):
    """The TOML of a row, and its place in the table."""

    text: str
    place: int


@cache
def _sources() -> Mapping[str, Mapping[str, _Source]]:
    """Return the rows by code and severity, in the order of the table.

    To parse the whole table would take as long as to judge a small trace.
    """
    text = _text_of("findings.toml")
    heads = list(_HEAD.finditer(text))
    ends = [head.start() for head in heads[1:]]
    sources: dict[str, dict[str, _Source]] = defaultdict(dict)
    last = -1
    for head, end in zip(heads, [*ends, len(text)], strict=True):
        severity, code = head.groups()
        section = text[head.start() : end]
        known = sources[code].get(severity)
        if known is None:
            last += 1
            sources[code][severity] = _Source(section, last)
        else:
            sources[code][severity] = known._replace(text=known.text + section)
    return dict(sources)


@cache
def _rows_of(code: str) -> list[_Row]:
    """Return the rows of a code in their order.

    Raises:
        KeyError: the table has no such code.
    """
    rows = []
    for severity, source in _sources()[code].items():
        fields = parse_toml(source.text)[severity][code]
        row = _Row(Severity(severity), fields, source.place)
        rows.append(row)
    return rows


def _text_of(name: str) -> str:
    """Return the text of a file beside this one."""
    path = Path(__file__).with_name(name)
    return path.read_text(encoding="utf-8")


@cache
def cases_of(code: str) -> Mapping[str, Case]:
    """Return what a code says, by case; the empty case is what it says by itself.

    Raises:
        KeyError: the table has no such code.
    """
    rows = _rows_of(code)
    by_itself: _Fields = {}
    for row in rows:
        if "message" in row.fields:
            by_itself = row.fields
    cases: dict[str, Case] = {}
    for row in rows:
        for name, case in _cases_of(row.fields).items():
            fields = {**by_itself, **case}
            cases[name] = _case(row.severity, fields, row.place)
    return cases


def is_in_table(code: str) -> bool:
    """Whether the table has a code."""
    return code in _sources()


@cache
def findings_table() -> Mapping[str, Mapping[str, Case]]:
    """Return what all codes say, by case."""
    return {code: cases_of(code) for code in _sources()}


def _cases_of(row: _Fields) -> dict[str, _Fields]:
    """Return what a row says in each of its cases; the empty case is what it says by itself."""
    cases: dict[str, _Fields] = {}
    for name, case in row.items():
        if isinstance(case, dict):
            cases[name] = case
    if "message" in row:
        cases[""] = {}
    return cases


def _case(severity: Severity, fields: _Fields, place: int) -> Case:
    verdict = None
    decides = fields.get("verdict")  # empty in cases that do not
    if decides and severity is not Severity.INFO:
        verdict = Verdict(decides)
    return Case(
        severity=severity,
        message=fields["message"],
        pieces=_pieces(fields.get("hint", [])),
        verdict=verdict,
        place=place,
    )


def _pieces(hint: str | list[_Fields]) -> tuple[Piece, ...]:
    """Return the pieces of a hint of the table; a sentence is one that needs nothing."""
    if isinstance(hint, str):
        return (Piece(hint),)
    pieces = []
    for row in hint:
        needs = tuple(row.get("needs", ()))
        settles = row.get("settles", False)
        pieces.append(Piece(row["text"], needs, settles))
    return tuple(pieces)


def place_of(found: Finding) -> tuple[int, int]:
    """Return where a finding stands in a report: most severe first, else as in the table."""
    cases = cases_of(found.code).values()
    places = [case.place for case in cases if case.severity is found.severity]
    severities = list(Severity)
    severity = severities.index(found.severity)
    return severity, min(places, default=0)


def finding_page(code: str) -> str:
    """Return what a code means as Markdown, under the headings that every page has.

    Raises:
        KeyError: no finding has this code.
    """
    cases = cases_of(code).values()
    kinds = {case.severity for case in cases}
    severities = " or ".join(filter(kinds.__contains__, Severity))
    verdicts = dict.fromkeys(case.verdict for case in cases)
    decides = " or ".join(filter(None, verdicts))
    makes = optional(f"; can make the verdict {decides}", when=decides)
    remedies = dict.fromkeys(map(_remedy, cases))
    as_list = "\n".join(f"- {remedy}" for remedy in remedies if remedy)
    fixes = [as_list, _fixes()[code]]
    about = meanings()[code]
    sections = {
        "What it means": f"{about.means}\n\n{about.causes}",
        "Why it matters": about.why,
        "Example": about.example,
        "Fix": "\n\n".join(filter(None, fixes)),
        "Evidence": about.evidence,
    }
    page = f"*{severities}{makes}*"
    for heading, text in sections.items():
        page += f"\n\n## {heading}\n\n{text}"
    return page


# How the page of a code names what the advice to a run calls by its name.
_IN_GENERAL: Final = {
    "{here}": "the rank",
    "{Here}": "The rank",
    "{elsewhere}": "the other ranks",
    "{Elsewhere}": "The other ranks",
    "{those}": "the layers",
    "{legs}": "this pass",
    "{micro}": "the micro-batch",
    "{Step}": "The step",
    "{alike}": "other steps",
}


def _remedy(case: Case) -> str:
    """Return what a hint says of every run: no sentence that facts of a run complete."""
    hint = case.hint
    for fact, name in _IN_GENERAL.items():
        hint = hint.replace(fact, name)
    general = re.sub(r", such as [^.]*\{[^.]*|(?<=\))\{\w+\}", "", hint)
    sentences = re.split(r"(?<=\.) ", general)
    whole = [sentence for sentence in sentences if "{" not in sentence]
    return " ".join(whole)


@cache
def _fixes() -> Mapping[str, str]:
    """Return what `fixes.md` says of each code: code to write instead, and when it applies."""
    text = _text_of("fixes.md")
    _, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    fixes = {}
    for section in sections:
        code, _, fix = section.partition("\n\n")
        fixes[code] = fix.strip()
    return fixes
