"""`fp8verify explain`: what a code, a word, an error message or a kernel's name means."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill, indent
from typing import TYPE_CHECKING

import click

from fp8verify.cli.options import form_option
from fp8verify.errors import UsageError
from fp8verify.files import parse_toml
from fp8verify.text import clean

if TYPE_CHECKING:
    from fp8verify.logs.failures import Cause


_MAX_NAME = 1 << 16
# As of a verdict that cannot be decided.
UNKNOWN_MESSAGE = 3
_WORD = re.compile(r"(?i)\b(?:\w*error|warning|exception|traceback|failed|won't)\b")
_OF_KERNELS = re.compile(r"::|<|^void |_kernel\b")
_SETTING = re.compile(r"^\s*[\w.-]+(?: \.{3,} |\s+[=:]\s|[:=]\s+)\S")
_CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# What is no message in a traceback: its first line and each place; marks below a line of source.
_FRAME = re.compile(r'\s*(?:Traceback \(most recent call|File "[^"]{1,400}", line \d)')
_MARKS = re.compile(r"[\s^~]+")
_RANK = re.compile(r"^\[(?:rank)?\d{1,5}\]: ?")
_FENCE = re.compile(r"^```\w*\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)


@click.command("explain")
@click.argument(
    "names", nargs=-1, metavar="NAME… | CODE… | WORD… | MESSAGE… | FILE… | -"
)
@form_option(("text", "json"), "json prints one object per line.", "text")
def explain_command(names: tuple[str, ...], form: str) -> None:
    """Explain kernel names, codes of findings and checks, words of reports, and error messages.

    - reads names and messages from standard input, one per line; a message that is not in the list
    exits with 3. Of a file of machine code (.ptx, .ttgir, .amdgcn, .cubin) it says which matrix
    instructions are in it, and on which types.

    \b
    fp8verify explain claimed-not-active
    fp8verify explain 'RuntimeError: cutlass cannot initialize'
    fp8verify explain 'nvjet_sm90_qrtst_128x128_128x6_2x1_v_bz_coopA_algo2_TNT'
    fp8verify explain ~/.triton/cache/*/_fp8matmul_kernel.ptx
    cut -f1 kernels.tsv | fp8verify explain - --format json
    """
    if not names:
        raise UsageError(
            "no kernel name or finding code given",
            "Pass names, or - to read them from stdin.",
        )
    given = list(_names(names))
    if form == "json":
        for name in given:
            click.echo(_as_json(name))
    else:
        click.echo("\n\n".join(map(_as_text, given)))
    if any(map(_is_unknown_message, given)):
        sys.exit(UNKNOWN_MESSAGE)


def _names(names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        if name != "-":
            yield name
            continue
        lines = []
        for raw in sys.stdin.buffer:
            line = raw.decode("utf-8", "replace").rstrip("\r\n")
            if line.strip():
                lines.append(_RANK.sub("", line[:_MAX_NAME]))
        yield from _without_frames(lines)


def _without_frames(lines: Sequence[str]) -> Iterator[str]:
    """Yield lines without the frames of tracebacks, each a place and a line of source."""
    place = None  # how far a place is indented, where a line of source may follow it
    for line in lines:
        indented = len(line) - len(line.lstrip())
        is_source = place is not None and indented > place
        if _FRAME.match(line):
            place = indented
        elif not is_source and _MARKS.fullmatch(line) is None:
            place = None
            yield line


def _as_json(name: str) -> str:
    """Return an object for a message whose cause is known, else for the name of a kernel."""
    import msgspec

    from fp8verify.kernels import decode
    from fp8verify.kernels.code_of_file import code_of_file, is_code_file
    from fp8verify.logs.failures import nearest

    def fields(row: object, names: Iterable[str]) -> dict[str, object]:
        values = {field: getattr(row, field) for field in names}
        return {
            field: clean(value) if isinstance(value, str) else value
            for field, value in values.items()
        }

    if is_code_file(name):
        found = code_of_file(Path(name))
        row = {
            "file": clean(name),
            "functions": found.functions,
            "precision": found.code.precision,
            "instructions": found.instructions,
        }
        return msgspec.json.encode(row).decode()
    if (cause := _cause(name)) is not None:
        known = fields(cause.failure, ("cause", "remedy", "evidence", "check"))
        return msgspec.json.encode({"message": clean(cause.text), **known}).decode()
    if _is_unknown_message(name):
        near = nearest(name)
        told = {"message": clean(name), "known": False, "nearest": near and near.cause}
        return msgspec.json.encode(told).decode()
    shown = ("name", "role", "precision", "a", "b", "out", "library", "reason")
    return msgspec.json.encode(fields(decode(name), shown)).decode()


def _cause(message: str) -> Cause | None:
    from fp8verify.logs.failures import causes

    return next(iter(causes(message.splitlines(), alone=True)), None)


def _as_text(name: str) -> str:
    """Return what a code, a word, an error message or the name of a kernel means."""
    from fp8verify.kernels import decode
    from fp8verify.kernels.code_of_file import explained, is_code_file
    from fp8verify.logs.failures import operands_of
    from fp8verify.text import printable

    if is_code_file(name):
        return f"{printable(name)}\n{explained(Path(name))}"
    pages = _pages() if _CODE.fullmatch(name) else {}
    if name in pages:
        return f"{name}\n\n{_as_plain(pages[name](name))}"
    if told := _meaning(name):
        return f"{name}\n{_wrapped(told.replace('`', ''), '  ')}"
    if (cause := _cause(name)) is not None:
        known = cause.failure
        doubt = "if FP8 code raised it: "
        if cause.is_certain:
            doubt = ""
        lines = [printable(cause.text), f"  a cause:  {doubt}{known.cause}"]
        if told := operands_of(name):
            lines.append(f"  note:     {told}")
        lines += [f"  next:     {known.remedy}", f"  evidence: {known.evidence}"]
        if known.check:
            lines.append(
                f"  doctor:   fp8verify doctor checks for it beforehand ({known.check})"
            )
        return "\n".join(lines)
    if _is_unknown_message(name):
        return _as_unknown(name)
    found = decode(name)
    said = f"  {found.role.value}, {found.precision.value}: {found.reason}"
    close = get_close_matches(name, pages, n=1, cutoff=0.6 if "-" in name else 0.8)
    meant = f"\n  Did you mean {close[0]}?" if close else ""
    return "\n".join([printable(found.name), said, *_parts(name)]) + meant


def _parts(name: str) -> list[str]:
    """Return a line for each part of a kernel's name that has a meaning."""
    from fp8verify.kernels.name_parts import parts_of
    from fp8verify.text import printable

    parts = parts_of(name)
    width = max((len(part) for part, _ in parts), default=0)
    return [f"    {printable(part):{width}}  {meaning}" for part, meaning in parts]


def _is_unknown_message(name: str) -> bool:
    """Whether it is a sentence that is neither known nor a file, a page or the name of a kernel."""
    from fp8verify.kernels import decode
    from fp8verify.kernels.code_of_file import is_code_file
    from fp8verify.terms import Precision

    text = name.strip()
    is_sentence = " " in text or _WORD.search(text) is not None
    if not is_sentence or is_code_file(name) or _meaning(name):
        return False
    if _cause(name) is not None:
        return False
    if _SETTING.search(name):
        return True  # `fp8_amax_compute_algo ..... max` names no kernel, though it begins as one
    if decode(name).precision is not Precision.UNKNOWN:
        return False
    return _WORD.search(text) is not None or _OF_KERNELS.search(text) is None


def _as_unknown(message: str) -> str:
    from fp8verify.logs.failures import about, nearest
    from fp8verify.text import printable

    lines = [printable(message.strip()[:300]), "  not in the list of messages"]
    told = about(message)
    if told:
        lines.append(f"  its words:     {told}")
    near = nearest(message)
    if near is not None:
        lines.append(f"  nearest known: {near.cause}")
        lines.append(f"  evidence:      {near.evidence}")
    return "\n".join(lines)


def _pages() -> dict[str, Callable[[str], str]]:
    """Return what writes the page of each code, of the doctor's and of findings."""
    from fp8verify.preflight.tables import code_page, codes
    from fp8verify.verdict.findings_table import finding_page, findings_table

    pages: dict[str, Callable[[str], str]] = dict.fromkeys(codes(), code_page)
    return pages | dict.fromkeys(findings_table(), finding_page)


def _as_plain(page: str) -> str:
    """Return Markdown as text of the terminal's width; blocks of code keep their lines."""
    parts = _FENCE.split(page)
    shown = []
    for prose, code in zip(parts[::2], [*parts[1::2], ""], strict=True):
        shown += [_prose(prose), indent(code, "    ")]
    return "".join(shown)


def _prose(text: str) -> str:
    """Return Markdown without blocks of code as text of the terminal's width."""
    text = re.sub(r"(?m)^\*(.*)\*$|^#+ |`", r"\1", text)
    text = re.sub(r"\[([^\]]{1,200})\]\([^)]{1,200}\)", r"\1", text)
    return re.sub(
        r"(?m)^(?:- |  → )?\S.*(?:\n(?!- |  →).+)*",
        lambda item: _wrapped(item[0]),
        text,
    )


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


@cache
def glossary() -> dict[str, dict[str, str]]:
    """Return the meanings of verdicts, words and labels; those that share one have commas between."""
    text = Path(__file__).with_name("glossary.toml").read_text(encoding="utf-8")
    return parse_toml(text)


def _meaning(word: str) -> str:
    """Return what a word means, in any case, one or many; empty if the glossary has it not."""
    known = _meanings()
    asked = word.casefold()
    return known.get(asked, "") or known.get(asked.removesuffix("s"), "")


@cache
def _meanings() -> dict[str, str]:
    """Return the meaning of each word in small letters; of two, the first one's."""
    known: dict[str, str] = {}
    for table in glossary().values():
        for words, text in table.items():
            for word in words.casefold().split(", "):
                known.setdefault(word, text)
    return known
