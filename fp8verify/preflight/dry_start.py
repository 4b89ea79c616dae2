"""Start a run until its first optimizer is built, and read which layers its model has then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

import msgspec

from fp8verify.capture.schema import ModuleRecord
from fp8verify.frameworks import for_agent
from fp8verify.logs.failures import causes
from fp8verify.preflight.launch import DryModel
from fp8verify.preflight.layers import flops, layers_of
from fp8verify.record.command import resolve_command
from fp8verify.record.injection import boot_folder, child_environment
from fp8verify.record.leftovers import remove_abandoned
from fp8verify.version import __version__

GRACE_S = 3.0
_POLL_S = 0.05
_FOLDERS = "fp8verify-doctor-"
_TAIL = 64 << 10
# A dry start is no run: nothing should be reported to a tracking service.
_QUIET = {"WANDB_MODE": "disabled"}
_SEEN = dict[str, tuple[ModuleRecord, ...]]
_MARK = "FP8VERIFY_DRY_START"  # its value tells the processes of one dry start from all others


def dry_start(command: Sequence[str], timeout: float) -> DryModel:
    """Run `command` until its first optimizer is built, at most for `timeout` seconds.

    What the script does before that is done: folders that it makes, data that it loads.

    Raises:
        UsageError, InputError: the command cannot be run.
    """
    arguments = resolve_command(command)
    remove_abandoned(_FOLDERS)
    with tempfile.TemporaryDirectory(prefix=_FOLDERS) as name:
        folder = Path(name)
        config = {
            "version": __version__,
            "dry": str(folder),
            **for_agent(),
        }
        with boot_folder(folder, config) as boot:
            ending, tail = _run(arguments, boot, name, timeout)
        modules = _read(folder)
    if modules:
        return DryModel(modules)
    why, remedy = _why(ending, tail, timeout)
    known = [cause for cause in causes(tail.splitlines()) if cause.ends_run]
    return DryModel((), why, remedy, tuple(cause.failure for cause in known))


def _run(
    arguments: list[str],
    boot: Path,
    mark: str,
    timeout: float,
) -> tuple[int | None, str]:
    """Return the exit code, None if time ran out, and the end of the output."""
    environment = child_environment(
        {
            **os.environ,
            **_QUIET,
            _MARK: mark,
        },
        boot,
    )
    with ended_on_signals():
        child = subprocess.Popen(  # noqa: S603 - starting the user's command is the job
            arguments,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        output = Tail(cast("IO[bytes]", child.stdout))
        code = wait_and_end(child, f"{_MARK}={mark}", timeout)
    return code, output.text()


def wait_and_end(
    child: subprocess.Popen[bytes],
    mark: str,
    timeout: float,
) -> int | None:
    """Return the exit code of a command, None if time ran out; leave no process of it behind."""
    try:
        return child.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        end_all(child, mark)


def _read(folder: Path) -> tuple[ModuleRecord, ...]:
    """Return the largest model that a process had: ranks have the same, helpers a smaller one."""
    found: list[tuple[ModuleRecord, ...]] = []
    for path in folder.glob("model-*.json"):
        with suppress(OSError, ValueError):
            found.append(msgspec.json.decode(path.read_bytes(), type=_SEEN)["modules"])
    return max(found, key=lambda modules: flops(layers_of(modules)), default=())


def _why(
    ending: int | None,
    tail: str,
    timeout: float,
) -> tuple[str, str]:
    """Return why no model was seen, and the next step."""
    files_only = "--static reads its files only."
    if ending is None:
        why = f"it built no optimizer in {timeout:g} s, and was ended"
        return why, f"Give it more time with --timeout; {files_only}"
    lines = [line for line in tail.splitlines() if line.strip()]
    last = ""
    if lines and ending:
        last = f": {lines[-1].strip()[:200]}"
    if ending >= 0:
        how = f"with exit code {ending}"
    else:
        how = f"by signal {-ending}"
    if ending:
        step = "See why it fails by itself"
    else:
        step = "Put the command that trains after --"
    return f"it ended {how} before it built an optimizer{last}", f"{step}; {files_only}"


class Tail:
    """The last bytes of an output, read as they come: a script may print without end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._bytes = b""
        self._thread = threading.Thread(
            target=self._follow,
            args=(stream,),
            daemon=True,
        )
        self._thread.start()

    def _follow(self, stream: IO[bytes]) -> None:
        with stream:
            while some := os.read(stream.fileno(), _TAIL):
                self._bytes = (self._bytes + some)[-_TAIL:]

    def text(self) -> str:
        """Return the end of the output, once no process writes to it any more."""
        self._thread.join(timeout=1.0)
        return self._bytes.decode("utf-8", "replace")


def end_all(child: subprocess.Popen[bytes], mark: str) -> None:
    """End a command, its session, and the processes that carry its mark in their environment.

    torchrun's workers and data loaders have sessions of their own; on Linux the mark finds them.
    """
    for number in (int(signal.SIGTERM), int(signal.SIGKILL)):
        deadline = time.monotonic() + GRACE_S
        while _signal(child, mark, number) and time.monotonic() < deadline:
            child.poll()  # else the command itself would stay in its session as a zombie
            time.sleep(_POLL_S)
            number = 0
    child.wait()


def _signal(
    child: subprocess.Popen[bytes],
    mark: str,
    number: int,
) -> bool:
    """Send a signal to all processes; False if none is left."""
    left = False
    for pid in (-child.pid, *marked(mark)):  # its process group is named by the minus
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            left = True
    return left


def marked(mark: str) -> Iterator[int]:
    """Yield the processes that were started with the variable `mark`, given as NAME=value."""
    wanted = b"\0" + os.fsencode(mark) + b"\0"
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in b"\0" + (folder / "environ").read_bytes() + b"\0":
                yield int(folder.name)


@contextmanager
def ended_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this process as an exception, so it can clean up.

    Elsewhere than in the main thread Python handles no signals, and they do what they did.
    """
    handled = [
        n
        for n in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(n) is signal.SIG_DFL
    ]
    if threading.current_thread() is not threading.main_thread():
        handled = []
    for number in handled:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
