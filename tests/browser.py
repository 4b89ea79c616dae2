"""A headless Chromium, driven over its DevTools protocol through two pipes."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_PATIENCE = 60.0
# The browser reads commands from descriptor 3 and writes to 4.
_EXEC = """
import os, sys
commands, answers = (os.dup(os.dup(int(number))) for number in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str | None:
    """Return the path of a Chromium, None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page; `complaints` are what its console, its security policy and its network said."""

    def __init__(self, read_end: int, write_end: int) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._in, self._out = read_end, write_end
        self._rest = b""
        self._number = 0
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(answer["error"])
                return answer["result"]
            self._note(answer)

    def open(
        self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False
    ) -> float:
        """Load a file and return the seconds until it had loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        begin = time.monotonic()
        self.call("Page.navigate", url=path.as_uri())
        while (
            self.evaluate("document.readyState") != "complete"
            or self.evaluate("location.protocol") != "file:"
        ):
            if time.monotonic() - begin > _PATIENCE:
                raise TimeoutError(f"{path} did not load")
            time.sleep(0.01)
        return time.monotonic() - begin

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"])
        return result["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=code,
                **({"text": text} if text and kind == "keyDown" else {}),
            )

    def screenshot(self, path: Path) -> None:
        """Save a picture of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 8000)}
        found = self.call(
            "Page.captureScreenshot", clip={**clip, "scale": 1}, captureBeyondViewport=True
        )
        path.write_bytes(base64.b64decode(found["data"]))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._in, 1 << 20)
            if not data:
                raise RuntimeError("the browser went away")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled":
            self.complaints.append(str(params["args"]))
        elif event.get("method") == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif event.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Start the browser with a fresh profile in `folder`, and end it."""
    program = find_browser()
    assert program is not None
    to_read, to_us = os.pipe()
    from_us, to_write = os.pipe()
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            _EXEC,
            str(from_us),
            str(to_us),
            program,
            *FLAGS,
            f"--user-data-dir={folder / 'profile'}",
        ],
        pass_fds=(from_us, to_us),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(from_us)
    os.close(to_us)
    try:
        yield Page(to_read, to_write)
    finally:
        process.terminate()
        process.wait(30)
        os.close(to_read)
        os.close(to_write)
