"""A headless Chromium: it opens a page in a frame, runs a script there, and tells the outcome."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

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
_FRAME = """<!DOCTYPE html><body style="margin:0">
<iframe src="%s" style="width:%dpx;height:%dpx;border:0"></iframe>
<script>
document.querySelector("iframe").onload = async ({target: {contentWindow: page}}) => {
  const run = (window, document, innerWidth) => { %s };
  let value;
  try { value = await run(page, page.document, page.innerWidth); } catch (e) { value = `${e}`; }
  const seen = document.createElement("pre");
  seen.id = "seen";
  seen.textContent = JSON.stringify(value ?? null);
  document.body.append(seen);
};
</script>"""


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
    with tempfile.TemporaryDirectory() as folder:
        frame = Path(folder, "frame.html")
        frame.write_text(
            _FRAME % (page.as_uri(), width, height, script), encoding="utf-8"
        )
        options = ["--dump-dom", *([DARK] if dark else [])]
        done = _chromium(Path(folder), frame, (max(width, 500), height), *options)
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
        command, capture_output=True, text=True, timeout=120, check=True
    )
