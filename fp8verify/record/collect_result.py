"""What a run left behind: its capture, and why nothing was observed if nothing was."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fp8verify.capture.files import boot_errors, boot_lines
from fp8verify.capture.names import METAS
from fp8verify.record.folder import CaptureFolder
from fp8verify.record.log import HEAD_BYTES, TAIL_BYTES
from fp8verify.record.settings import RunSettings

INNER = "inner"  # written by boot/sitecustomize.py
RANKS = "ranks"  # and one for each that claimed its files
IMPORTED = "imported"  # by the agent: one line for each process that imported torch
STEP = "call fp8verify.step() after each step"
STREAMS = "streams.jsonl"  # by the agent: where ranks print whose output does not come to us
MAX_LOGS = 1024
NAME = re.compile(r"rank[0-9]{1,9}\.(?:out|err)")


class RunResult(NamedTuple):
    """What a run left behind.

    Attributes:
        exit_code: the command's own; 128 + n when signal n killed it.
        notes: what kept the run from being observed, for the user.
        guess: why it was not, where nothing that is left says so.
        ranks: those that trained below this runner.
        last: whether no other runner of the job is left to record, so it can be judged.
        signal: the one that ended the command, if one did.
    """

    capture: Path
    exit_code: int
    notes: tuple[str, ...] = ()
    last: bool = True
    ranks: tuple[int, ...] = ()
    signal: int | None = None
    guess: str = ""


def collect_result(
    boot: Path, capture: CaptureFolder, exit_code: int, settings: RunSettings
) -> RunResult:
    """Return what a run that has ended left in its capture and in its boot folder."""
    collect_rank_logs(boot, capture)
    # Records that a full disk left empty.
    empty = [
        path for path in capture.path.glob(METAS) if path.is_file() and not path.stat().st_size
    ]
    for path in empty:
        path.unlink()
    unwritten = tuple(f"{path.name} could not be written: is the disk full?" for path in empty)
    errors = boot_errors(boot, capture.path if settings.debug else None)
    ranks = tuple(int(line) for line in boot_lines(boot / RANKS) if line.isdecimal())
    # What processes of this run were writing when they were killed.
    for rank in set(ranks):
        for name in (f".rank{rank}.*", f".rank{rank}-*"):
            for draft in (*capture.path.glob(name), *capture.path.glob(f"live/*/{name}")):
                with suppress(OSError):
                    draft.unlink()
    inner = [folder for folder in boot_lines(boot / INNER) if any(Path(folder).glob(METAS))]
    if not errors and any(capture.path.glob(METAS)):
        return RunResult(capture.path, exit_code, notes=unwritten, ranks=ranks)
    if inner:
        notes = (f"a run of fp8verify inside this one recorded the script: {inner[0]}",)
        return RunResult(capture=Path(inner[0]), exit_code=exit_code, notes=notes)
    known = errors or unwritten
    guess = "" if known else _why_unobserved(boot, exit_code)
    return RunResult(capture.path, exit_code, notes=known, guess=guess)


def _why_unobserved(boot: Path, exit_code: int) -> str:
    if exit_code:
        return f"the command ended with {exit_code} before its first training step"
    if not boot_lines(boot / IMPORTED):
        return (
            "no observed Python process imported torch: either the command trains nothing, or "
            "its Python ran with -I, -E or -S, or a container or launcher dropped PYTHONPATH"
        )
    return (
        "the command ended without a training step: no torch.optim optimizer stepped; "
        f"where another one does, {STEP} (import fp8verify)"
    )


def collect_rank_logs(boot: Path, capture: CaptureFolder) -> None:
    """Copy the first and last 8 MB of each rank's own log into the capture as `log.rankR.out.txt`.

    Ranks have logs of their own by torchrun's --log-dir and --redirects, Slurm's --output, a
    shell's `>`. One that is gone, or that another process of the rank left already, is passed over.
    """
    suffix = f".{capture.secondary_node}" if capture.secondary_node else ""
    for line in boot_lines(boot / STREAMS)[:MAX_LOGS]:
        with suppress(ValueError, KeyError, TypeError, OSError):
            stream = json.loads(line)
            name, source = stream["name"], Path(stream["path"])
            # What goes to our own stdout or stderr is in the log already.
            is_ours = any(os.path.samestat(source.stat(), os.fstat(given)) for given in (1, 2))
            if NAME.fullmatch(name) and not is_ours:
                _copy_ends(source, capture.path / f"log.{name}{suffix}.txt")


def _copy_ends(source: Path, target: Path) -> None:
    with source.open("rb") as log, target.open("xb") as copy:
        size = os.fstat(log.fileno()).st_size
        copy.write(log.read(HEAD_BYTES))
        left_out = size - HEAD_BYTES - TAIL_BYTES
        if left_out > 0:
            copy.write(b"\n[fp8verify: %d bytes left out here]\n" % left_out)
            log.seek(-TAIL_BYTES, os.SEEK_END)
        copy.write(log.read(TAIL_BYTES))
