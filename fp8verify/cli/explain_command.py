"""`fp8verify explain`: what a code, a word, an error message or a kernel's name means."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from fp8verify.cli.options import form_option
from fp8verify.errors import UsageError
from fp8verify.files import parse_toml
from fp8verify.terms import KernelName

if TYPE_CHECKING:
    from fp8verify.logs.failures import Cause


_MAX_NAME = 1 << 16
_CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@click.command("explain")
@click.argument("names", nargs=-1, metavar="NAME… | CODE… | WORD… | MESSAGE… | -")
@form_option(("text", "json"), "json prints one object per line.", "text")
def explain_command(names: tuple[str, ...], form: str) -> None:
    """Explain kernel names, codes of findings and checks, words of reports, and error messages.

    - reads names and messages from standard input, one per line.

    \b
    fp8verify explain claimed-not-active
    fp8verify explain 'RuntimeError: cutlass cannot initialize'
    fp8verify explain 'nvjet_sm90_qrtst_128x128_128x6_2x1_v_bz_coopA_algo2_TNT'
    cut -f1 kernels.tsv | fp8verify explain - --format json
    """
    if not names:
        raise UsageError(
            "no kernel name or finding code given", "Pass names, or - to read them from stdin."
        )
    from msgspec.structs import replace

    from fp8verify.kernels import decode
    from fp8verify.logs.failures import causes

    show = _as_json if form == "json" else _as_text
    for place, name in enumerate(_names(names)):
        between = "\n" if place else ""
        pages = _pages() if form == "text" and _CODE.fullmatch(name) else {}
        if name in pages:
            click.echo(f"{between}{name}\n\n{_as_plain(pages[name](name))}")
            continue
        if form == "text" and (told := _word(name)):
            click.echo(f"{between}{name}\n{_wrapped(told.replace('`', ''), '  ')}")
            continue
        if known := causes(name.splitlines(), alone=True):
            cause = (_cause_as_json if form == "json" else _cause_as_text)(known[0])
            click.echo(f"{between if form == 'text' else ''}{cause}")
            continue
        found = decode(name)
        if found.library == "unknown" and (other := _other(name)):
            found = replace(found, reason=other)
        click.echo(show(found))
        cutoff = 0.6 if "-" in name else 0.8
        if close := get_close_matches(name, pages, n=1, cutoff=cutoff):
            click.echo(f"  Did you mean {close[0]}?")


def _pages() -> dict[str, Callable[[str], str]]:
    """Return what writes the page of each code, of the doctor's and of findings."""
    from fp8verify.preflight.tables import code_page, codes
    from fp8verify.verdict.findings_table import finding_page, findings_table

    pages: dict[str, Callable[[str], str]] = dict.fromkeys(codes(), code_page)
    return pages | dict.fromkeys(findings_table(), finding_page)


def _word(word: str) -> str:
    """Return what a verdict or a word of the glossary means; empty if it is neither."""
    from fp8verify.report.model.report import MEANINGS

    verdicts = {verdict.value.casefold(): text for verdict, text in MEANINGS.items()}
    return verdicts.get(word.casefold()) or meaning(word)


def _as_plain(page: str) -> str:
    """Return Markdown as text of the terminal's width."""
    page = re.sub(r"(?m)^\*(.*)\*$|^#+ |`", r"\1", page)
    page = re.sub(r"\[([^\]]{1,200})\]\([^)]{1,200}\)", r"\1", page)
    return re.sub(r"(?m)^(?:- |  → )?\S.*(?:\n(?!- |  →).+)*", lambda item: _wrapped(item[0]), page)


def _wrapped(text: str, indent: str = "") -> str:
    """Wrap a paragraph, or an item of a list with a hanging indent."""
    mark = re.match(r" *[-→] ", text)
    words = " ".join(text.split())
    first = mark[0] if mark else indent
    return fill(
        words.removeprefix(first.strip()).strip(),
        min(get_terminal_size().columns, 120),
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


# What people paste in place of a name, and the command that takes it.
_OTHERS = (
    (
        r"Traceback \(most recent|  File \"|\w{0,60}(?:Error|Exception|Exit|Interrupt)\b",
        (
            "a traceback, whose message has no known cause here: `fp8verify inspect --log FILE` "
            "reads the whole log"
        ),
    ),
    (
        r"(?:/|\./|~/|\w{1,4}://)\S|\S{1,200}\.(?:ya?ml|toml|json|sh|log|txt|gz|csv|sqlite)$",
        (
            "a file: `fp8verify inspect FILE` takes traces, `inspect --log FILE` logs and "
            "`fp8verify doctor --config FILE` configurations"
        ),
    ),
    (
        r"--\w[\w-]*(?:[ =]|$)|[\"'{\w.-]{1,80}[\"']?\s?[:=]\s?[^:\s=]|\[[\w.]+\]$|export \w+=",
        (
            "a setting: `fp8verify doctor --config FILE` checks a configuration, `fp8verify doctor "
            "-- COMMAND` a command line"
        ),
    ),
    (
        r"[^<>(){}]{0,400}?\w [^<>(){}]{0,400}?\w \w",
        "a sentence: if it is from a log, `fp8verify inspect --log FILE` reads what the log claims",
    ),
)


def _other(text: str) -> str | None:
    """Say what a text is that is no name of a kernel; None if it may be one."""
    if text.startswith("void ") or "::" in text:
        return None
    found = (what for shape, what in _OTHERS if re.match(shape, text))
    what = next(found, None)
    return what and f"this is no name of a kernel, but {what}"


def _names(names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        if name != "-":
            yield name
            continue
        for raw in sys.stdin.buffer:
            line = raw.decode("utf-8", "replace").rstrip("\r\n")
            if line.strip():
                yield line[:_MAX_NAME]


def _cause_as_text(found: Cause) -> str:
    from fp8verify.text import printable

    row = found.failure
    lines = [
        printable(found.text),
        f"  a cause:  {'' if found.is_certain else 'if FP8 code raised it: '}{row.cause}",
        f"  next:     {row.remedy}",
        f"  evidence: {row.evidence}",
        *(
            [f"  doctor:   fp8verify doctor checks for it beforehand ({row.check})"]
            if row.check
            else []
        ),
    ]
    return "\n".join(lines)


def _cause_as_json(found: Cause) -> str:
    import msgspec

    fields = ("cause", "remedy", "evidence", "check")
    row: dict[str, Any] = {field: getattr(found.failure, field) for field in fields}
    return msgspec.json.encode({"message": found.text, **row}).decode()


def _as_json(found: KernelName) -> str:
    import msgspec

    fields = ("name", "role", "precision", "a", "b", "out", "library", "reason")
    row: dict[str, Any] = {field: getattr(found, field) for field in fields}
    return msgspec.json.encode(row).decode()


def _as_text(found: KernelName) -> str:
    from fp8verify.text import printable

    said = f"  {found.role.value}, {found.precision.value}: {found.reason}"
    return f"{printable(found.name)}\n{said}"


@cache
def glossary() -> dict[str, str]:
    """Return the meaning of each word; words that share one are joined by commas."""
    text = Path(__file__).with_name("glossary.toml").read_text(encoding="utf-8")
    return parse_toml(text)


def meaning(word: str) -> str:
    """Return what a word means, in any case; empty if the glossary does not have it."""
    for words, text in glossary().items():
        if word.casefold() in (one.casefold() for one in words.split(", ")):
            return text
    return ""
