"""The laws: each yields a check of a capture or of a random run, with what broke it, if anything."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from fp8verify import Report, inspect
from tests.captures import ROOT, report_of
from tests.laws import captures, flips, runs, sentences

# Findings about time, cost or purpose: other times and other products may change them.
OF_TIME = frozenset((
    "fp8-not-paying", "fp8-gemm-slow", "gpu-idle", "small-gemms", "weight-recast", "attention-unfused",
    "regression", "scalar-all-reduces", "grouped-gemm-high-precision", "lm-head-fp8", "opaque-kernels",
    "unknown-gemm",
))  # fmt: skip
# Statements of these sources may be all that something is short of.
STATES = ("log", "module list", "later steps")
# What a run is PARTIAL for whose share of the work alone is short.
_IS_SHARE = "less than half"


@dataclass(frozen=True)
class Said:
    """What a report says of what ran; `excuses` if it says that something stays high by design."""

    verdict: str
    findings: frozenset[tuple[str, str]]
    accuses: bool
    reason: str
    excuses: bool

    def __str__(self) -> str:
        codes = sorted(f"{code} ({severity})" for code, severity in self.findings)
        return f"{self.verdict} [{', '.join(codes)}] {self.reason[:160]}"


@dataclass(frozen=True)
class Check:
    """One case of a law: what it was about, whether it held, and what was said."""

    law: str
    case: str
    kind: str
    broken: str | None


def said(report: Report) -> Said:
    """Return what a report says of what ran."""
    found = frozenset(
        (finding.code, finding.severity.value)
        for finding in report.findings
        if finding.severity != "info" and finding.code not in OF_TIME
    )
    accuses = report.exit_code == 1 or any(severity == "error" for _, severity in found)
    excuses = any(
        finding.code.endswith("-not-fp8") and finding.severity == "info"
        for finding in report.findings
    )
    return Said(report.verdict.value, found, accuses, report.reason, excuses)


class Subject:
    """A capture that laws are tried on: as it is, and as what an edit makes of it."""

    def __init__(self, folder: Path, name: str, scratch: Path, seed: int = 1) -> None:
        self.folder, self.name, self.scratch = folder, name, scratch
        self.rng = random.Random(f"{seed} {name}")

    @cached_property
    def report(self) -> Report:
        """The report of the capture as it is."""
        if self.folder.parent == ROOT:
            return report_of(self.folder.name)  # every law begins with it
        return inspect(self.folder)

    @property
    def before(self) -> Said:
        """What is said of the capture as it is."""
        return said(self.report)

    def after(self, edit: captures.Edit | None, without: tuple[str, ...] = ()) -> Said:
        """What is said after an edit of the traces, or without some files."""
        documents = captures.read(self.folder)
        if edit is not None:
            edit(documents, self.rng)
        return said(self._judged(documents, without))

    def _judged(
        self, documents: list[captures.Document], without: tuple[str, ...] = ()
    ) -> Report:
        with tempfile.TemporaryDirectory(dir=self.scratch) as place:
            to = Path(place) / self.folder.name
            captures.write(self.folder, documents, to, without=without)
            return inspect(to)

    def check(self, law: str, kind: str, after: Said, broken: bool) -> Check:
        """Return what came of a law."""
        told = f"{self.before} -> {after}" if broken else None
        return Check(law, self.name, kind, told)


# ---- laws of any capture


def time(subject: Subject) -> Iterator[Check]:
    """Other durations never change the verdict nor a finding about what ran."""
    after = subject.after(captures.other_times)
    yield subject.check("time", "times", after, _differ(subject.before, after))


def order(subject: Subject) -> Iterator[Check]:
    """The order of the file and the numbers of processes, threads, streams, ranks change nothing."""
    after = subject.after(captures.other_order)
    yield subject.check("order", "order", after, _differ(subject.before, after))
    if len(captures.trace_files(subject.folder)) > 1:
        after = subject.after(captures.other_ranks)
        yield subject.check("order", "ranks", after, _differ(subject.before, after))


def _differ(before: Said, after: Said) -> bool:
    return (before.verdict, before.findings) != (after.verdict, after.findings)


def sources(
    subject: Subject, chosen: tuple[str, ...] = captures.SOURCES
) -> Iterator[Check]:
    """Fewer sources: the same verdict, or none, or a milder one if the source alone stated it."""
    for source in chosen:
        if source in captures.HIDDEN:
            after = subject.after(captures.without_source(source))
        elif source == "later steps":
            if subject.before.verdict != "ACTIVE":
                continue
            after = subject.after(captures.without_later_steps)
        else:
            name = {"log": "log.txt", "module list": ".meta.json"}[source]
            after = subject.after(None, (name,))
        broken = not _weaker(subject.before, after, source)
        yield subject.check("sources", f"without {source}", after, broken)


def _weaker(before: Said, after: Said, source: str) -> bool:
    """Whether an answer is one that may be given with a source less."""
    if after.accuses and not before.accuses:
        return False
    if after.verdict in (before.verdict, "INCONCLUSIVE"):
        return True
    if source == "shapes" and after.verdict == "ACTIVE":
        # They alone say how much of the work each layer is, where no list does.
        return _IS_SHARE in before.reason and not _says_short(before)
    if source == "later steps" and _IS_SHARE in after.reason:
        # Nothing says what was to run, so half is a default, and each window has its own share of
        # the work: experts get other tokens in each step.
        return not _says_short(after)
    if source not in STATES:
        return False
    claims = before.verdict, after.verdict
    if after.verdict == "PARTIAL" and before.verdict in ("ACTIVE", "INCONCLUSIVE"):
        # What the source stated may have been the excuse of what ran in high precision.
        return before.excuses
    return after.verdict == "ACTIVE" or claims in (
        ("CONTRADICTED", "INACTIVE"), ("CONTRADICTED", "PARTIAL"),
    )  # fmt: skip


def repetition(subject: Subject) -> Iterator[Check]:
    """A window twice as long says the same."""
    after = subject.after(captures.twice)
    yield subject.check("repetition", "twice", after, _differ(subject.before, after))


def outside(subject: Subject) -> Iterator[Check]:
    """Products of the optimizer change nothing that is said about layers."""
    if subject.before.verdict in ("INACTIVE", "INCONCLUSIVE"):
        return  # without a backward pass an optimizer is news
    after = subject.after(captures.optimizer_products)
    yield subject.check("outside", "optimizer", after, _differ(subject.before, after))


def flip(
    subject: Subject, most: int | None = 1, kinds: Container[str] | None = None
) -> Iterator[Check]:
    """One call in BF16 is never ACTIVE without a finding, if a source states it or peers show it.

    Args:
        subject: the capture.
        most: how many of the possible flips are tried, None for all.
        kinds: what is to show these flips, None for anything.
    """
    if (
        subject.before.verdict != "ACTIVE"
        or len(captures.trace_files(subject.folder)) != 1
    ):
        return
    (document,) = captures.read(subject.folder)
    possible = flips.possible_flips(subject.folder, document)
    if kinds is not None:
        possible = [one for one in possible if one.shown_by in kinds]
    if most is not None:
        possible = subject.rng.sample(possible, min(most, len(possible)))
    for one in possible:
        after = subject.after(
            lambda documents, _, one=one: flips.flip(documents[0], one)
        )
        case = replace(
            subject.check(
                "flip", one.shown_by, after, not _reported(subject.before, after)
            ),
            case=f"{subject.name}: call {one.place}, {one.legs}, {one.where}",
        )
        yield case


def _reported(before: Said, after: Said) -> bool:
    return after.verdict != "ACTIVE" or bool(after.findings - before.findings)


def numbers(subject: Subject) -> Iterator[Check]:
    """The numbers of sentences are those of the ledger's entries."""
    if subject.report.ledger is None:
        return
    wrong = sentences.untrue(subject.report)
    told = "; ".join(wrong) if wrong else None
    yield Check("numbers", subject.name, "sentences", told)


OF_CAPTURES: dict[str, Callable[[Subject], Iterator[Check]]] = {
    "time": time, "order": order, "sources": sources, "flip": flip, "outside": outside,
    "repetition": repetition, "numbers": numbers,
}  # fmt: skip


# ---- laws of random runs


def of_run(
    run: runs.Run, law: str, name: str, choose: runs.Choose, scratch: Path
) -> Iterator[Check]:
    """Try a law on a random run."""
    folder = runs.write(run, scratch / "run")
    subject = Subject(folder, name, scratch)
    subject.report = _report_of(run, folder)
    if law == "sound":
        yield _sound(run, subject)
    elif law == "flip":
        yield from _flipped(run, subject, choose)
    elif law == "outside":
        yield from _outside(run, subject)
    elif law == "repetition":
        longer = replace(run, steps=2 * run.steps, window=run.steps)
        after = _said_of(longer, scratch / "longer")
        yield subject.check(law, "twice", after, _differ(subject.before, after))
    elif law == "entries":
        yield from _entries(run, subject)
    elif law in ("time", "order", "numbers"):
        yield from OF_CAPTURES[law](subject)
    elif law == "sources":
        yield from sources(subject, (choose(captures.SOURCES),))
    shutil.rmtree(scratch, ignore_errors=True)


RANDOM = (
    "sound",
    "time",
    "order",
    "sources",
    "flip",
    "outside",
    "repetition",
    "numbers",
    "entries",
)


_reports: dict[runs.Run, Report] = {}


def _report_of(run: runs.Run, folder: Path) -> Report:
    """Return the report of a run that a folder holds; several laws are tried on the same run."""
    if run not in _reports:
        _reports.clear()  # the last one alone: they follow each other
        _reports[run] = inspect(folder)
    return _reports[run]


def _said_of(run: runs.Run, folder: Path) -> Said:
    return said(inspect(runs.write(run, folder)))


def _sound(run: runs.Run, subject: Subject) -> Check:
    """A sound run is not accused, where its evidence says what was configured."""
    states_recipe = run.recipe == "all legs" or run.lists
    converted = any(one.low for one in run.layers)
    before = subject.before
    kind = "sound" if before.verdict != "INCONCLUSIVE" else "doubted"
    broken = states_recipe and converted and (before.accuses or _says_short(before))
    return Check("sound", subject.name, kind, str(before) if broken else None)


def _entries(run: runs.Run, subject: Subject) -> Iterator[Check]:
    """The ledger's entries are what the run did: launches, and those in FP8."""
    if subject.report.ledger is None:
        return
    sums = sentences.Ledger(subject.report.ledger)
    found = sums.low(), sums.launches()
    truth = runs.launches(run)
    told = f"{found} in FP8 and in all, in truth {truth}" if found != truth else None
    yield Check("entries", subject.name, run.form, told)


def _says_short(told: Said) -> bool:
    """Whether a finding says that something did not run in FP8."""
    codes = [code for code, _ in told.findings]
    return any("-not-fp8" in code or "-without-fp8" in code for code in codes)


def _flipped(run: runs.Run, subject: Subject, choose: runs.Choose) -> Iterator[Check]:
    made = runs.random_flip(run, choose)
    if made is None or subject.before.verdict != "ACTIVE":
        return
    flipped, one = made
    after = _said_of(flipped, subject.scratch / "flipped")
    check = subject.check(
        "flip", one.shown_by, after, not _reported(subject.before, after)
    )
    layer = run.layers[one.place].name
    yield replace(check, case=f"{subject.name}: {layer}, {one.legs}, {one.where}")


def _outside(run: runs.Run, subject: Subject) -> Iterator[Check]:
    """Say the same of layers without what belongs to none."""
    for extra in ("teacher", "evaluation", "optimizer", "attention"):
        if extra not in run.extras:
            continue
        plain = replace(run, extras=run.extras - {extra})
        before = _said_of(plain, subject.scratch / f"without {extra}")
        broken = _differ(before, subject.before)
        told = f"{before} -> {subject.before}" if broken else None
        yield Check("outside", subject.name, extra, told)
