"""Say why no agent was armed, from the tracebacks that `boot/sitecustomize.py` left."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

ERRORS = "errors.txt"
MAX_BYTES = 1 << 20
LOG = "debug.boot.log"


def boot_errors(boot: Path, debug_folder: Path | None = None) -> tuple[str, ...]:
    """Return the last error of the boot and the line that met it; () if there was none.

    Args:
        boot: the boot folder.
        debug_folder: where to keep the tracebacks, None to name only the last error.
    """
    try:
        with (boot / ERRORS).open("rb") as file:
            text = file.read(MAX_BYTES).decode(errors="replace")
    except OSError:
        return ()
    lines = text.splitlines()
    if not lines:
        return ()
    if debug_folder is not None:
        _append(debug_folder / LOG, text)
    more = "run with --debug for the traceback" if debug_folder is None else f"see {LOG}"
    return (f"the agent could not start: {lines[-1][:300]} ({_place(text, boot)}); {more}",)


def _append(path: Path, text: str) -> None:
    # Several nodes may share the folder: none overwrites what another one wrote.
    with suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.write(text)


def _place(text: str, boot: Path) -> str:
    """Return the file and line of the last frame that is ours."""
    own, shared = (rf"{name}(?:\.compiled)?/_fp8verify_" for name in (r"agent\.zip", r"\.agent"))
    ours = rf"{re.escape(str(boot.parent))}/(?:{re.escape(boot.name)}/(?:{own})?|{shared})"
    frames = re.findall(rf'File "{ours}([^"\n]+)", line ([0-9]+)', text)
    return ":".join(frames[-1]) if frames else "outside of fp8verify"
