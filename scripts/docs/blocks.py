"""Find the parts of a page that a machine writes, and write them anew.

<!-- output -->            what the commands (lines that begin with `$ `) of the fenced
```console                 block below print
$ fp8verify inspect traces/fp8_compiled
```
                           (`…` alone on a line leaves lines out: as many stay before the first
                           and after the last one as there are; what is between two is found by
                           its first two words)

<!-- test: PATH::NAME -->   commands that the test runs: it takes the fixture `shown` of
                           tests/conftest.py, which fails the test that left one out

<!-- ran DATE: MACHINE -->  below a block: no test runs it, and this is where it ran

<!-- table: findings -->   a table, or other text, made from the code
<!-- end of table -->

What `scripts/docs/shell.py` says of the environment of commands holds for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from scripts.docs.shell import ROOT, transcript

_OUTPUT = re.compile(
    r"(?<=^<!-- output -->\n```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL
)
OMITTED = "…"
_TEST = re.compile(r"<!-- test: (tests/[\w/]+\.py::\w+) -->")
_TABLE = re.compile(
    r"(^<!-- table: (?P<name>[\w ,-]+) -->\n).*?(^<!-- end of table -->$)",
    re.MULTILINE | re.DOTALL,
)


def pages() -> list[Path]:
    """Return every page that a reader of the documentation meets."""
    inside = ("docs", "examples", "benchmarks", "traces")
    found = [path for folder in inside for path in (ROOT / folder).rglob("*.md")]
    above = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
    return sorted([*found, *(ROOT / name for name in above)])


def commands_of(block: str) -> list[str]:
    """Return the commands of a console block, each with the lines that go on after a backslash."""
    lines = block.replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def _shortened(shown: str, written: str) -> str:
    """Leave out of what a block prints now the lines that its `…` leaves out."""
    parts = zip(_by_command(shown), _by_command(written), strict=True)
    lines = [line for old, new in parts for line in _excerpt(old, new)]
    return "\n".join(lines) + "\n"


def _by_command(block: str) -> list[list[str]]:
    """Split a block into its commands, each with the lines that it prints."""
    parts: list[list[str]] = []
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            parts.append([])
        parts[-1].append(line)
    return parts


def _excerpt(old: list[str], new: list[str]) -> list[str]:
    if OMITTED not in old:
        return new
    first, *parts, last = ("\n".join(old) + "\n").split(f"{OMITTED}\n")
    shown = new[: first.count("\n")]
    for part in parts:
        words = part.split()[:2]
        begin = next(
            (at for at, line in enumerate(new) if line.split()[:2] == words), len(new)
        )
        shown += [OMITTED, *new[begin : begin + part.count("\n")]]
    return [*shown, OMITTED, *new[len(new) - last.count("\n") :]]


def rewritten(text: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """Return a page with its outputs and tables as they are now."""
    text = _OUTPUT.sub(
        lambda found: _shortened(found.group(), transcript(commands_of(found.group()))),
        text,
    )
    return _TABLE.sub(
        lambda found: f"{found[1]}\n{tables[found['name']]().strip()}\n\n{found[3]}",
        text,
    )


class Block(NamedTuple):
    """A block of commands on a page.

    Attributes:
        before: the line before it, which may be a marker.
        text: what stands between the fences.
        after: the line after it, which may say where the commands ran.
    """

    before: str
    text: str
    after: str

    @property
    def commands(self) -> list[str]:
        """Return its commands."""
        return commands_of(self.text)

    @property
    def test(self) -> str | None:
        """Return the test that its marker names, as PATH::NAME."""
        found = _TEST.fullmatch(self.before)
        return None if found is None else found[1]


def console_blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of commands of a page."""
    pattern = r"^([^\n]*)\n+```(?:console|bash|sh|shell)\n(.*?)^```$\n*([^\n]*)"
    for found in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
        yield Block(found[1], found[2], found[3])
