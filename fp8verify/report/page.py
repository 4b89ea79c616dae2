"""A result as data for its forms: one page of a verdict, findings, tables and notes.

Reports, comparisons and tables of runs are laid out as pages; each format has one writer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fp8verify.model.verdict import Finding
from fp8verify.terms import Severity, Verdict
from fp8verify.text import capital
from fp8verify.thresholds import COSTLY
from fp8verify.verdict.findings_table import viewed

GOOD = "good"
FAIR = "fair"
BAD = "bad"
# The tone of each verdict; those that are not here are bad.
TONES = {
    Verdict.ACTIVE: GOOD,
    Verdict.PARTIAL: FAIR,
    Verdict.INCONCLUSIVE: FAIR,
}


class Grid(NamedTuple):
    """A table of text.

    Attributes:
        title: what it shows.
        headings: of the columns; one that begins with "<" is over words, which are put to the left.
        rows: the cells.
        stretch: whether the last column may be cut if there is little room.
        shown: how many rows are shown at a glance; None for all.
        above: a line above the table.
        below: lines below it.
        folded: whether Markdown folds it away.
        own_line: whether text shows the last column on a line of its own.
    """

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    stretch: bool = False
    shown: int | None = None
    above: str = ""
    below: tuple[str, ...] = ()
    folded: bool = False
    own_line: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The headings as they are shown."""
        names = []
        for heading in self.headings:
            names.append(heading.removeprefix("<"))
        return tuple(names)

    @property
    def words(self) -> tuple[bool, ...]:
        """Whether each column holds words."""
        are_words = []
        for heading in self.headings:
            are_words.append(heading.startswith("<"))
        return tuple(are_words)

    def head(self, count: int | None) -> Grid:
        """Return the first rows, and a line that counts the others."""
        hidden = 0 if count is None else len(self.rows) - count
        if hidden <= 0:
            return self
        more = f"… and {hidden} more with -v"
        return self._replace(
            rows=self.rows[:count],
            below=(more, *self.below),
        )


class Note(NamedTuple):
    """A line under a label.

    Attributes:
        label: what it is: a source, a severity, "fix", "speed" and the like.
        text: what it says.
        tone: good, fair, bad or empty.
        finding: what it is about, None if it is no finding.
        rank: the order in which lines get what room there is; those of 0, errors and the first
            fix among them, always do.
    """

    label: str
    text: str
    tone: str = ""
    finding: Finding | None = None
    rank: int = 0

    @classmethod
    def of(cls, finding: Finding, rank: int) -> Note:
        """Make the line of a finding; one without a message says what to do."""
        text = finding.message or f"fix: {finding.hint}"
        label = finding.severity.value
        return cls(label, text, finding=finding, rank=rank)

    def coded(self) -> str:
        """Return the text with the code of the finding that it says."""
        if self.finding is None or self.label in ("fix", ""):
            return self.text
        code = f"[{self.finding.code}]"
        if self.label == "speed":
            return f"{self.text} {code}"
        return f"{code} {self.text}"


class Page(NamedTuple):
    """What every form of a result shows, in this order.

    Attributes:
        verdict: a word, with how many errors an ACTIVE run has; empty if the result has none.
        tone: whether the verdict is good, fair or bad.
        run: the run's name, the GPU, the steps, the ranks.
        sentence: what ran in FP8 and what did not, without its full stop.
        fails: whether the result fails what was asked of it.
        exit: the exit code and why, for the last line.
        proof: the table that shows what the sentence says, None if none is needed.
        sources: what log, model and kernels say.
        findings: what the reader should know, most severe first, with the ranks that it is about;
            one whose message is the sentence has none of its own.
        cause: code of the finding that the sentence is about, None if it is about none.
        fix: what to do about the verdict where no error or warning says it.
        speed: whether FP8 pays, or how the losses compare; None if that is not known.
        requested: tables that were asked for when the run was recorded or inspected.
        body: further tables and lines, in the order in which they are shown.
        notes: remarks under labels.
        further: what the body has in a few words.
        urgent: those of the notes that the first screen has if there is room.
        lines: how many the first screen has at most.
        facts: what was run, when and on what, as far as it is known.
        software: the versions of the run's software and of fp8verify.
    """

    verdict: str
    tone: str
    run: tuple[str, ...]
    sentence: str
    fails: bool
    exit: str = ""
    proof: Grid | None = None
    sources: tuple[Note, ...] = ()
    findings: tuple[Finding, ...] = ()
    cause: str | None = None
    fix: str = ""
    speed: Note | None = None
    requested: tuple[Grid | str, ...] = ()
    body: tuple[Grid | str, ...] = ()
    notes: tuple[Note, ...] = ()
    further: tuple[str, ...] = ()
    urgent: tuple[Note, ...] = ()
    lines: int = 28
    facts: tuple[Note, ...] = ()
    software: str = ""

    @property
    def name(self) -> str:
        """What the run is called."""
        return self.run[0]

    @property
    def statement(self) -> str:
        """The sentence with its full stop; one that ends in "…" has none."""
        if self.sentence.endswith("…"):
            return self.sentence
        return f"{self.sentence}."

    @property
    def grids(self) -> Iterator[Grid]:
        """The tables."""
        for part in (*self.requested, *self.body):
            if isinstance(part, Grid):
                yield part

    @property
    def reports(self) -> tuple[Finding, ...]:
        """The findings that decide or cost, but for the one that is the line of the speed.

        Errors come first, then warnings: what costs much GPU time, what decides or costs an
        unknown amount, what costs little.
        """
        paying = self.speed and self.speed.finding
        graver = []
        for finding in self.findings:
            is_info = finding.severity is Severity.INFO
            if not is_info and finding is not paying:
                graver.append(finding)
        return tuple(sorted(graver, key=_by_cost))

    def _infos(self, *, verbose: bool) -> Iterator[Finding]:
        """Yield the findings that need no action; without `verbose` those no other line says."""
        for finding in self.findings:
            is_info = finding.severity is Severity.INFO
            if is_info and (verbose or not viewed(finding, "detail")):
                yield finding

    def told(self, *, verbose: bool = False) -> Iterator[Note]:
        """Yield sources, findings with what to do about them, speed and infos, in this order.

        Nothing is told twice: advice that several findings share stands below the first one.
        """
        yield from self.sources
        fixes = _Fixes()
        if self.fix:
            yield Note("fix", self.fix)
            fixes.said.add(self.fix)
        speed = self.speed
        limiting = speed.finding if speed is not None else None
        minor: list[Finding] = []
        if limiting is not None:
            minor += filter(_costs_little, self.reports)
        # What is worth doing comes before it.
        settled = [finding for finding in self.reports if finding.needs_nothing]
        yield from self._graver(fixes, [*minor, *settled])
        if speed is not None:
            yield speed
        if limiting is not None:  # the fix of what limits is always shown
            yield from fixes.for_speed(limiting)
        for finding in minor:
            yield Note.of(finding, 2)
            yield from fixes.of(finding, 4)
        for finding in self._infos(verbose=verbose):
            yield from self._info(finding, fixes, verbose)
        for finding in settled:
            told = Note.of(finding, 0)
            if finding.message:
                yield told
                yield from fixes.of(finding, 4)
            else:  # what it says is no fix
                yield told._replace(text=finding.hint)

    def _info(self, finding: Finding, fixes: _Fixes, verbose: bool) -> Iterator[Note]:
        """Yield a finding that needs no action, with what would help."""
        costs = viewed(finding, "costs")
        has_hint = bool(finding.hint)
        is_first_fix = costs and has_hint and fixes.none
        rank = 0 if is_first_fix else 5
        is_told = not finding.message and finding.hint in fixes.said
        if not is_told:
            yield Note.of(finding, rank)
        if not finding.message:
            return
        is_new = finding.hint not in fixes.said
        if costs:
            yield from fixes.of(finding, 3)
        elif verbose and is_new:
            yield Note("", finding.hint, finding=finding)
        fixes.said.add(finding.hint)

    def _graver(self, fixes: _Fixes, minor: Sequence[Finding]) -> Iterator[Note]:
        """Yield errors and warnings with what to do about them, but for some that cost little."""
        for place, finding in enumerate(self.reports):
            if finding in minor:
                continue
            is_error = finding.severity is Severity.ERROR
            decides = not finding.message
            is_first = place == 0
            is_always_shown = is_error or decides or is_first
            rank = 0 if is_always_shown else 2
            yield Note.of(finding, rank)
            if finding.message:
                yield from fixes.of(finding, 4)
            fixes.said.add(finding.hint)


def _by_cost(finding: Finding) -> tuple[bool, float]:
    """Return where a finding stands among errors and warnings, which keep their order otherwise."""
    is_warning = finding.severity is not Severity.ERROR
    if not is_warning or finding.gpu_share is None:
        return is_warning, -COSTLY
    return is_warning, -finding.gpu_share


def _costs_little(finding: Finding) -> bool:
    """Whether a warning is of a cost that is known, and small."""
    share = finding.gpu_share
    is_warning = finding.severity is Severity.WARNING
    return is_warning and share is not None and share < COSTLY


class _Fixes:
    """The advice that was given so far."""

    def __init__(self) -> None:
        """Start without any; no advice at all counts as given."""
        self.said = {""}

    @property
    def none(self) -> bool:
        """Whether nothing was advised yet."""
        return self.said == {""}

    def of(self, finding: Finding, rank: int) -> Iterator[Note]:
        """Yield the line that says what to do about a finding, unless another one did."""
        if finding.hint in self.said:
            return
        if self.none:
            rank = 0
        yield Note("fix", finding.hint, finding=finding, rank=rank)
        self.said.add(finding.hint)

    def for_speed(self, finding: Finding) -> Iterator[Note]:
        """Yield what to do about the speed; behind another fix it says that it is about that."""
        aim = "For speed: "
        if self.none:
            aim = ""
        for note in self.of(finding, 0):
            text = f"{aim}{note.text}"
            yield note._replace(text=text)


def sentence(text: str) -> str:
    """Return text as a sentence begins; a name in front stays as it is."""
    first = text.split(" ", 1)[0]
    if first.isalpha() and first.islower():
        return capital(text)
    return text
