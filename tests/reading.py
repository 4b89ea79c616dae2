"""What a reader trips over in a report: each fault by the text that has it, none of a good one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fp8verify import Report
from fp8verify.report.forms import page_of
from fp8verify.report.page import Page
from fp8verify.terms import Severity

# A percentage, and whether it stands beside one that names its whole.
_SHARE = re.compile(r"(?P<of>\(threshold: )?[\d.]+%(?P<after>[^%]*)")
# What may stand behind a percentage: its whole, or a comparison.
_NAMED = re.compile(r" (?:of|faster|slower|less|more|expected)\b")
_OF = re.compile(r"(\d+) of (\d+)(?: \S+){0,6}? GEMMs")


def faults(report: Report) -> Iterator[str]:
    """Yield the faults of a report as its first screen and `--verbose` show it."""
    page = page_of(report, verbose=True)
    yield from _said_twice(page)
    yield from _without_whole(page)
    yield from _of_two_wholes(page)
    yield from _of_two_measures(page)
    yield from _hidden(report)


def _texts(page: Page) -> list[str]:
    notes = [*page.told(verbose=True), *page.notes]
    return [page.sentence, *(note.text for note in notes)]


def _said_twice(page: Page) -> Iterator[str]:
    seen: set[str] = set()
    # Advice of several findings may begin alike.
    notes = [note for note in page.told(verbose=True) if note.label != "fix"]
    told = [page.sentence, *(note.text for note in notes)]
    for text in told:
        # Behind a colon too: what follows the name of a file, or gives a cause.
        for sentence in re.split(r"(?<=[.;:])\s+", text):
            plain = sentence.strip(" .;:").casefold()
            if len(plain.split()) > 4 and plain in seen:
                yield f"twice: {plain}"
            seen.add(plain)


def _without_whole(page: Page) -> Iterator[str]:
    for text in _texts(page):
        for share in re.finditer(_SHARE, text):
            if not share["of"] and not _NAMED.match(share["after"]):
                yield f"of what: {text}"


def _of_two_wholes(page: Page) -> Iterator[str]:
    """Yield a sentence whose second count is of more than its first: of another whole."""
    first, *others = _OF.findall(page.sentence) or [("0", "0")]
    for _, whole in others:
        if int(whole) > int(first[1]):
            yield f"of two wholes: {page.sentence}"


def _of_two_measures(page: Page) -> Iterator[str]:
    """Yield a sentence and a line of the kernels that give shares of the work in two measures."""
    told = [page.sentence, *(note.text for note in page.sources)]
    measures: set[str] = set()
    for text in told:
        measures.update(re.findall(r"% of (?:\S+ ){0,3}?GEMM (time|FLOPs)", text))
    if len(measures) > 1:
        yield f"of two measures: {' '.join(told)}"


def _hidden(report: Report) -> Iterator[str]:
    text = " ".join(report.to_text().split())
    page = page_of(report)
    for finding in page.findings:
        if finding.severity is Severity.ERROR and f"[{finding.code}]" not in text:
            yield f"hidden: {finding.code}"
    for note in page.told():
        if note.label == "fix" or note.text.startswith("fix: "):
            if " ".join(note.text.split()) not in text:
                yield f"hidden: {note.text}"
            return
