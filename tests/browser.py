"""A headless Chromium: it opens a page in a frame, runs a script there, and tells the outcome."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.command_line import PATIENCE_S

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
    ),
    *(
        "--hide-scrollbars",
        "--disable-background-networking",
        "--enable-logging=stderr",
    ),
    "--virtual-time-budget=20000",
    *(
        "--allow-file-access-from-files",
        "--disable-web-security",
    ),  # so that we see the frame
)
DARK = "--blink-settings=preferredColorScheme=0"
_PAGE = """<!DOCTYPE html><body style="margin:0">
<script>
const visits = [];
const visit = (address, width, height, run) => visits.push(new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.style = `width:${width}px;height:${height}px;border:0;display:block`;
  frame.onload = async () => {
    const page = frame.contentWindow;
    try { done(await run(page, page.document, page.innerWidth) ?? null); }
    catch (e) { done(`${e}`); }
  };
  frame.src = address;
  document.body.append(frame);
}));
%s
Promise.all(visits).then((values) => {
  const seen = document.createElement("pre");
  seen.id = "seen";
  seen.textContent = JSON.stringify(values);
  document.body.append(seen);
});
</script>"""
_VISIT = "visit(%s, %d, %d, (window, document, innerWidth) => { %s });"


class Visit(NamedTuple):
    """A page, the body of a function of `window`, `document` and `innerWidth`, and a size."""

    page: Path
    script: str = ""
    width: int = 1280
    height: int = 900


class Seen(NamedTuple):
    """What a script returned, and what the console, the security policy and the network said."""

    value: Any
    complaints: list[str]


def find_browser() -> str | None:
    """Return the path of a Chromium, None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def browse(
    page: Path,
    script: str = "",
    *,
    width: int = 1280,
    height: int = 900,
    dark: bool = False,
) -> Seen:
    """Open a file and run the body of a function of `window`, `document` and `innerWidth` there."""
    visit = Visit(page, script, width, height)
    values, complaints = browse_all([visit], dark=dark)
    return Seen(values[0], complaints)


def browse_all(visits: Sequence[Visit], *, dark: bool = False) -> Seen:
    """Open files side by side, since to start a browser takes longer than all of them.

    Returns:
        The list of what the scripts returned, and the complaints of all pages.
    """
    frames = [
        _VISIT
        % (json.dumps(visit.page.as_uri()), visit.width, visit.height, visit.script)
        for visit in visits
    ]
    width = max(500, *(visit.width for visit in visits))
    height = max(visit.height for visit in visits)
    with tempfile.TemporaryDirectory() as folder:
        frame = Path(folder, "frame.html")
        frame.write_text(_PAGE % "\n".join(frames), encoding="utf-8")
        options = ["--dump-dom", *([DARK] if dark else [])]
        done = _chromium(Path(folder), frame, (width, height), *options)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Seen(json.loads(html.unescape(found[1])), complaints)


def screenshot(page: Path, picture: Path, width: int) -> None:
    """Save a picture of the whole page."""
    height, _ = browse(
        page, "return document.documentElement.scrollHeight", width=width
    )
    with tempfile.TemporaryDirectory() as folder:
        _chromium(
            Path(folder), page, (width, min(height, 8000)), f"--screenshot={picture}"
        )


def _chromium(
    folder: Path, page: Path, size: tuple[int, int], *options: str
) -> subprocess.CompletedProcess[str]:
    program = find_browser()
    assert program is not None
    place = [
        f"--user-data-dir={folder / 'profile'}",
        "--window-size={},{}".format(*size),
    ]
    command = [program, *FLAGS, *place, *options, page.as_uri()]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
