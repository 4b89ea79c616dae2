"""Run a command and write its exit code into a file: `exit_code.py FILE COMMAND…`.

It stands between Nsight Systems and the training. Only the standard library is imported.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    """Do what the command line says, and end as the command did."""
    kept, *command = sys.argv[1:]
    early: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def forward(number: int, _: FrameType | None) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    for number in FORWARDED:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, forward)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        # A terminal sends it to the command as well.
        signal.signal(signal.SIGINT, lambda *_: None)
    try:
        child = subprocess.Popen(command, close_fds=False)  # noqa: S603 - the user's command
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
    for waiting in early:
        child.send_signal(waiting)
    code = child.wait()
    code = code if code >= 0 else 128 - code
    Path(kept).write_text(str(code), encoding="ascii")
    sys.exit(code)


if __name__ == "__main__":
    main()
