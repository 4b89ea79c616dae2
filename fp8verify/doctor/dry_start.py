"""Start a training until its first optimizer is built, and read which layers its model has then."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, cast

import msgspec

from fp8verify.capture.schema import ModuleRecord
from fp8verify.doctor.causes import Cause, causes
from fp8verify.doctor.processes import Tail, end_all, ended_on_signals
from fp8verify.record.command import resolve_command
from fp8verify.record.injection import (
    ARCHIVE,
    boot_folder,
    child_environment,
    write_agent,
    write_config,
)
from fp8verify.version import __version__

TIMEOUT_S = 120.0
# A dry start is no run: nothing should be reported to a tracking service.
_QUIET = {"WANDB_MODE": "disabled"}
_MARK = "FP8VERIFY_DRY_START"  # its value tells the processes of one dry start from all others


class DryModel(NamedTuple):
    """What a dry start saw.

    Attributes:
        modules: the linear layers of the model, in the order of the model.
        tied: names of those that share their weight with an embedding.
        why_none: why no model was seen; "" where one was.
        remedy: the next step where none was seen.
        causes: known causes of a failure, if it failed.
        appeared: names that appeared in the current folder meanwhile.
    """

    modules: tuple[ModuleRecord, ...] = ()
    tied: tuple[str, ...] = ()
    why_none: str = ""
    remedy: str = ""
    causes: tuple[Cause, ...] = ()
    appeared: tuple[str, ...] = ()


class _Seen(msgspec.Struct):
    modules: tuple[ModuleRecord, ...]
    tied: tuple[str, ...] = ()


def dry_start(command: Sequence[str], timeout: float = TIMEOUT_S) -> DryModel:
    """Run `command` until its first optimizer is built, at most for `timeout` seconds.

    What the script does before that is done: folders that it makes, data that it loads.

    Raises:
        UsageError, InputError: the command cannot be run.
    """
    arguments = resolve_command(command)
    before = _names_here()
    with tempfile.TemporaryDirectory(prefix="fp8verify-doctor-") as name:
        folder = Path(name)
        with boot_folder(folder) as boot:
            config = {"version": __version__, "boot": str(boot), "dry": str(folder)}
            write_agent(boot / ARCHIVE)
            write_config(boot, config)
            ending, tail = _run(arguments, boot, name, timeout)
        seen = _read(folder)
    appeared = tuple(sorted(_names_here() - before))
    if seen is not None:
        return DryModel(seen.modules, seen.tied, appeared=appeared)
    return DryModel(
        why_none=_why(ending, tail, timeout),
        remedy=_remedy(ending),
        causes=tuple(causes(tail.splitlines())),
        appeared=appeared,
    )


def _names_here() -> set[str]:
    try:
        return {path.name for path in Path().iterdir()}
    except OSError:  # the folder is gone, or not to be listed
        return set()


def _run(arguments: list[str], boot: Path, mark: str, timeout: float) -> tuple[int | None, str]:
    """Return the exit code, None if time ran out, and the end of the output."""
    environment = child_environment({**os.environ, **_QUIET, _MARK: mark}, boot)
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
        try:
            code: int | None = child.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_all(child, f"{_MARK}={mark}")
    return code, output.text()


def _read(folder: Path) -> _Seen | None:
    """Return the largest model that a process had: ranks have the same, helpers a smaller one."""
    found: list[_Seen] = []
    for path in folder.glob("model-*.json"):
        with suppress(OSError, ValueError):
            found.append(msgspec.json.decode(path.read_bytes(), type=_Seen))
    return max(found, key=_parameters, default=None)


def _parameters(seen: _Seen) -> int:
    return sum((m.in_features or 0) * (m.out_features or 0) for m in seen.modules)


def _why(ending: int | None, tail: str, timeout: float) -> str:
    if ending is None:
        return f"it built no optimizer in {timeout:g} s, and was ended"
    lines = [line for line in tail.splitlines() if line.strip()]
    last = f": {lines[-1].strip()[:200]}" if lines and ending else ""
    how = f"with exit code {ending}" if ending >= 0 else f"by signal {-ending}"
    return f"it ended {how} before it built an optimizer{last}"


def _remedy(ending: int | None) -> str:
    if ending is None:
        return "Give it more time with --timeout, or --static to read its files only."
    if ending:
        return "See why it fails when started by itself; --static reads its files only."
    return "Put the command that trains after --; --static reads its files only."
