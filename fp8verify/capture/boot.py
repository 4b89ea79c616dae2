"""What the boot folder of a run says about processes that were not observed."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from fp8verify.capture.names import BOOTS

ERRORS = "errors.txt"  # tracebacks of the boot
DEBUG_LOG = "debug.boot.log"
OUR_FRAME = re.compile(
    r'File "(?:[^"\n]*/)?(?:_fp8verify_agent|fp8verify/agent|\.boot-\w+)/([^"\n]+)", line (\d+)'
)
MAX_BYTES = 1 << 20
UNOBSERVED = (
    "no Python process completed a training step with these exports: either none stepped a "
    "torch.optim optimizer, or PYTHONPATH did not reach it, or torch was imported before"
)


def boot_errors(boot: Path, debug_folder: Path | None = None) -> tuple[str, ...]:
    """Return why no agent was started: the last error of the boot and its line; () without one.

    Args:
        boot: the boot folder.
        debug_folder: where to keep the tracebacks, None to name only the last error.
    """
    lines = boot_lines(boot / ERRORS)
    if not lines:
        return ()
    text = "\n".join(lines) + "\n"
    if debug_folder is not None:
        # Several nodes may share the folder: none overwrites what another one wrote.
        with suppress(OSError), (debug_folder / DEBUG_LOG).open("a", encoding="utf-8") as file:
            file.write(text)
    more = "run with --debug for the traceback" if debug_folder is None else f"see {DEBUG_LOG}"
    frames = OUR_FRAME.findall(text)
    place = ":".join(frames[-1]) if frames else "outside of fp8verify"
    return (f"the agent could not start: {lines[-1][:300]} ({place}); {more}",)


def notes_on_attachment(capture: Path, *, observed: bool) -> tuple[str, ...]:
    """Return what kept processes from being observed, if `fp8verify env` made the capture.

    Args:
        capture: the capture folder.
        observed: whether any process left a record.
    """
    boots = sorted(capture.glob(BOOTS))
    if not boots:
        return ()
    errors = tuple(note for boot in boots for note in boot_errors(boot))
    return errors or (() if observed else (UNOBSERVED,))


def boot_lines(path: Path) -> list[str]:
    """Return the lines of a file of a boot folder, the last ones if it is large; [] without it."""
    with suppress(OSError), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - MAX_BYTES))
        return file.read(MAX_BYTES).decode(errors="replace").splitlines()
    return []
