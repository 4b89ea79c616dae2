"""A headless Chromium: it opens a page in a frame, runs a script there, and tells the outcome."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
# Chromium reads commands from descriptor 3 and answers on 4, which we cannot choose for a child.
_TO_PIPES = """import fcntl, os, sys
pipes = [fcntl.fcntl(int(pipe), fcntl.F_DUPFD, 10) for pipe in sys.argv[1:3]]
for pipe, wanted in zip(pipes, (3, 4)):
    os.dup2(pipe, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""
# What has the focus: its name, whether one sees that it has it, and whether it is on the screen.
_FOCUS = """(() => {
  const at = document.activeElement;
  const box = at.getBoundingClientRect();
  const style = getComputedStyle(at);
  return {
    tag: at.tagName,
    name: (at.ariaLabel || at.textContent || "").trim(),
    marked: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    shown: box.width > 0 && box.bottom > 0 && box.top < innerHeight,
  };
})()"""
_KEYS = {"Tab": (9, None), "Enter": (13, "\r")}
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


class Focus(NamedTuple):
    """The element that has the focus.

    Attributes:
        tag: its tag in capitals; BODY where nothing has the focus.
        name: what it is called.
        marked: whether an outline shows that it has the focus.
        shown: whether it is on the screen.
    """

    tag: str
    name: str
    marked: bool
    shown: bool


class Keyboard:
    """A page in a browser that is used by real keys, as no script in the page can press them."""

    def __init__(self, commands: int, answers: int) -> None:
        """Attach to a page of a browser that speaks its protocol over two pipes."""
        self._commands = commands
        self._answers = answers
        self._rest = b""
        self._number = 0
        self._session = ""
        page = self._do("Target.createTarget", url="about:blank")["targetId"]
        attached = self._do("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        self._do("Page.enable")

    def open(self, page: Path, width: int = 1280) -> None:
        """Open a file in a window of a width in pixels."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self._do("Emulation.setDeviceMetricsOverride", **size)
        self._do("Page.navigate", url=page.as_uri())
        while self._answer().get("method") != "Page.loadEventFired":
            pass

    def press(self, key: str) -> Focus:
        """Press a key, and return what has the focus then."""
        code, text = _KEYS[key]
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        down = {"type": "rawKeyDown", **event}
        if text is not None:
            down = {"type": "keyDown", "text": text, **event}
        self._do("Input.dispatchKeyEvent", **down)
        self._do("Input.dispatchKeyEvent", type="keyUp", **event)
        return Focus(**self.tell(_FOCUS))

    def tell(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        told = self._do("Runtime.evaluate", expression=expression, returnByValue=True)
        return told["result"].get("value")

    def _do(self, method: str, **params: object) -> dict[str, Any]:
        self._number += 1
        command: dict[str, object] = {
            "id": self._number,
            "method": method,
            "params": params,
        }
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            answer = self._answer()
            if answer.get("id") == self._number:
                result: dict[str, Any] = answer["result"]
                return result

    def _answer(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = os.read(self._answers, 1 << 16)
            assert read, "the browser has ended"
            self._rest += read
        text, self._rest = self._rest.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(text)
        return answer


@contextmanager
def keyboard() -> Iterator[Keyboard]:
    """Start a browser whose pages are used by keys."""
    program = find_browser()
    assert program is not None
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # Virtual time would not wait for keys.
    flags = [flag for flag in FLAGS if "virtual-time" not in flag]
    # Its helper processes may write for a moment longer than it lives.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-c", _TO_PIPES, str(theirs_in), str(theirs_out)]
        command += [program, *flags, "--remote-debugging-pipe"]
        command.append(f"--user-data-dir={folder}")
        browser = subprocess.Popen(
            command, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Keyboard(ours_out, ours_in)
        finally:
            browser.terminate()
            browser.wait()
            os.close(ours_out)
            os.close(ours_in)
