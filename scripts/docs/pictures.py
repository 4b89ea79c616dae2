"""The pictures of the documentation: a terminal's as SVG, the HTML page's as PNG."""

from __future__ import annotations

import hashlib
import html
import io
import json
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from scripts.docs.shell import COLUMNS, ROOT, colored, printed

PICTURES = ROOT / "docs" / "pictures"


class Terminal(NamedTuple):
    """A picture of a terminal.

    Attributes:
        command: what the terminal runs and shows.
        before: a command that runs first, and is not shown.
        columns: how wide it is. On a phone 60 columns can be read, 80 hardly.
    """

    command: str
    before: str = "true"
    columns: int = COLUMNS


TERMINALS: Mapping[str, Terminal] = {
    "torchtitan.svg": Terminal(
        "fp8verify inspect traces/bf16_torchtitan_auto_filter", columns=60
    ),
    "active.svg": Terminal("fp8verify inspect traces/fp8_compiled"),
    "compare.svg": Terminal(
        "fp8verify compare traces/bf16_width4096 traces/fp8_width4096"
    ),
    "doctor.svg": Terminal(
        "fp8verify doctor --config /tmp/llama3_8b.toml | head -n 3",
        before="sed '/converters/d' examples/torchtitan/llama3_8b.toml > /tmp/llama3_8b.toml",
    ),
    "numerics.svg": Terminal("fp8verify inspect examples/data/cpu_numerics_outlier"),
    "live.svg": Terminal(
        "fp8verify run --every 1000 --trace-dir build/run -q scripts/docs/replay.py build/run",
        before="rm -rf build/run",
    ),
}
# The page's picture, the capture that it shows, and its width.
PAGES: Mapping[str, tuple[str, int]] = {
    "page.png": ("traces/fp8_compiled", 1280),
    "page-phone.png": ("traces/bf16_filter_rejects_all", 390),
}
_MADE_OF = PICTURES / "made_of.json"
# rich's own template without its web font, which pages that show the picture do not load.
_FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def terminal(shown: Terminal) -> str:
    """Draw what a command prints in a terminal."""
    printed.__wrapped__(shown.before)  # anew, whatever it printed before
    command = shown.command
    console = Console(
        record=True,
        width=shown.columns,
        file=io.StringIO(),
        force_terminal=True,
        highlight=False,
    )
    said = colored(command, shown.columns).rstrip()
    console.print(Text.from_ansi(f"$ {command}\n\n{said}"))
    return console.export_svg(
        title="fp8verify", unique_id="fp8verify", code_format=_FORMAT
    )


def words_of(svg: str) -> str:
    """Return the text that a picture shows, whatever draws it."""
    shown = "".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))
    return re.sub(r"\s+", "", html.unescape(shown))


def stale_terminals() -> list[str]:
    """Name the pictures of terminals that do not show what their command prints now."""
    return [
        name
        for name, shown in TERMINALS.items()
        if not (PICTURES / name).exists()
        or words_of((PICTURES / name).read_text(encoding="utf-8"))
        != words_of(terminal(shown))
    ]


def stale_pages() -> list[str]:
    """Name the pictures of pages whose report or template is no longer what they show."""
    known = json.loads(_MADE_OF.read_text()) if _MADE_OF.exists() else {}
    return [
        name
        for name, (capture, _) in PAGES.items()
        if not (PICTURES / name).exists() or known.get(name) != _made_of(capture)
    ]


def draw() -> list[str]:
    """Draw every picture that is stale, and return their names."""
    PICTURES.mkdir(exist_ok=True)
    terminals, pages = stale_terminals(), stale_pages()
    for name in terminals:
        (PICTURES / name).write_text(terminal(TERMINALS[name]), encoding="utf-8")
    drawn = _draw_pages(pages) if pages else []
    return [*terminals, *drawn]


def _draw_pages(names: list[str]) -> list[str]:
    from tests.browser import find_browser, screenshot

    if find_browser() is None:
        print(f"no Chromium here: {', '.join(names)} stay as they are", file=sys.stderr)
        return []
    known = json.loads(_MADE_OF.read_text()) if _MADE_OF.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            capture, width = PAGES[name]
            shown = Path(folder, "report.html")
            printed(f"fp8verify inspect {capture} --exit-zero --format html -o {shown}")
            screenshot(shown, PICTURES / name, width)
            printed.cache_clear()
            known[name] = _made_of(capture)
    _MADE_OF.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
    return names


def _made_of(capture: str) -> str:
    """Condense what a page is made of: the report, but for our version, and the template."""
    report = json.loads(
        printed(f"fp8verify inspect {capture} --exit-zero --format json")[0]
    )
    report.pop("fp8verify_version")
    filled = json.dumps(_filled(report), sort_keys=True)
    digest = hashlib.sha256(filled.encode())
    for path in sorted((ROOT / "fp8verify" / "report" / "page").glob("*.*")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _filled(value: Any) -> Any:
    """Leave out what is empty: a new field without a value draws nothing."""
    if isinstance(value, list):
        return [_filled(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {key: _filled(one) for key, one in value.items() if one}
