"""This process's record: `rankR.meta.json`, and the places of its other files."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from .clock import Clock
from .config import Config
from .debug import debug
from .guard import is_the_scripts, quietly
from .private import open_private
from .process import api_calls, gpu, rank_and_world_size, versions
from .windows.plan import Plan, Window

SCHEMA = 1
MAX_NOTES = 32
HEARTBEAT_S = 10.0  # how stale the step count of a process that was killed may be
STREAMS = {1: "out", 2: "err"}
BLOCK = 4096  # of a disk; spaces behind JSON mean nothing
SPARE = 512


class RankRecord:
    """The windows, notes and instruments' results of one rank; on disk from step 1 on.

    Args:
        config: the boot folder's `config.json`.
        clock: counts the steps.
        plan: has the windows.
        sections: returns the fields of the instruments.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock,
        plan: Plan,
        sections: Callable[[], dict[str, Any]],
    ) -> None:
        self.sees_gpu: bool | None = None
        self._config = config
        self._clock = clock
        self._plan = plan
        self._sections = sections
        self._notes: list[str] = []
        self._written_at = 0.0

    @cached_property
    def files(self) -> RankFiles:
        """The rank's files in the capture folder, claimed by the first use."""
        return RankFiles(self._config, *rank_and_world_size())

    def note(self, text: str) -> None:
        """Keep a remark for the reader of the report; repetitions and floods are dropped."""
        if text not in self._notes and len(self._notes) < MAX_NOTES:
            debug.event(f"note: {text}")
            self._notes.append(text)

    def mark(
        self,
        window: Window,
        state: str,
        reason: str | None,
        **more: Any,
    ) -> None:
        """Set what became of a window, and write it down."""
        steps = f"{window['first']}-{window['last']}"
        debug.event(f"window {steps} is {state}: {reason or 'nothing is missing'}")
        window.update(
            state=state,
            reason=reason,
            **more,
        )
        self.write()

    @property
    def has_steps(self) -> bool:
        """Whether a trace with a whole step was written."""
        steps = self._clock.steps
        return any(
            window["trace"] and window["first"] <= steps
            for window in self._plan.windows
        )

    def leave_out(self, state: str, reason: str) -> None:
        """Set the state of every window that has not begun."""
        for window in [*self._plan.windows, *self._plan.waiting]:
            if window["state"] == "never":
                window.update(state=state, reason=reason)

    def fail(self, reason: str) -> None:
        """Give up every unfinished window, and record it."""
        self.leave_out("dropped", reason)
        for window in self._plan.windows:
            if window["state"] == "cut" and window["trace"] is None:
                window.update(state="dropped", reason=reason)
        self.write()

    def write_if_stale(self) -> None:
        """Write again if the file on disk has grown old."""
        if time.monotonic() - self._written_at > HEARTBEAT_S:
            self.write()

    def write(self, *, ended: bool = False) -> None:
        """Write the meta file; `ended` says that the process is about to exit."""
        try:
            self.files.write_meta(self._state(ended))
        except OSError as error:  # a full disk is not for ever: it is written again
            if is_the_scripts(error):
                raise
            debug.error("writing the record")
        self._written_at = time.monotonic()

    def _state(self, ended: bool) -> dict[str, Any]:
        clock = self._clock
        seen = "the run ended" if ended else "the process was last seen"
        return {
            "schema": SCHEMA,
            "rank": self.files.rank,
            "world_size": self.files.world_size,
            "window": self._plan.records(f"{seen} after step {clock.steps}"),
            "steps_seen": clock.steps,
            "ended": ended,
            "steps_skipped": clock.skipped,
            "clock": clock.source,
            "leader": clock.leader,
            "optimizer_updates": clock.updates,
            "notes": [*self._notes, *self._plan.notes, *clock.notes],
            "steps_outside": clock.outside.summary(),
            "api_calls": api_calls,
            "versions": versions(),
            "environment": {**gpu(), "sees_gpu": self.sees_gpu},
            **self._sections(),
        }


class RankFiles:
    """The files of one rank in the capture folder, claimed so that no other process's are hit."""

    def __init__(
        self,
        config: Config,
        rank: int,
        world_size: int,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.folder = Path(config["capture"])
        self._boot = Path(config["boot"])
        # A trace that is dropped soon is not worth packing.
        self._packs = not config["live"]
        self.stem = self._claim(rank, config["guest"])
        with (
            quietly(OSError),
            (self._boot / "ranks").open("a", encoding="utf-8") as file,
        ):
            file.write(f"{rank}\n")
        if config["capture_log"]:
            with quietly(OSError):
                self._name_own_logs(rank)

    def _claim(self, rank: int, guest: str | None) -> str:
        # A shell script may train twice: the second process of a rank gets files of its own.
        first = f"rank{rank}.{guest}" if guest else f"rank{rank}"
        for stem in (first, f"{first}-{os.getpid()}"):
            path = self.folder / f"{stem}.meta.json"
            with quietly(FileExistsError):
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
                os.close(os.open(path, flags, 0o600))
                return stem
        raise FileExistsError(path)

    @property
    def drafts(self) -> Path:
        """A folder for files that are not whole: the runner removes its boot folder."""
        return self._boot if self._boot.is_dir() else self.folder

    def trace_path(self, window: int) -> Path:
        """Return where the trace of the window of that index (from 0) belongs."""
        suffix = f".w{window + 1}" if window else ""
        packed = ".gz" if self._packs else ""
        return self.folder / f"{self.stem}{suffix}.json{packed}"

    def write_meta(self, meta: dict[str, Any]) -> None:
        """Replace the meta file atomically, so a reader never sees half of it.

        On a full disk the old file is overwritten, in space that was reserved for this.

        Raises:
            OSError: there is no room at all.
        """
        path = self.folder / f"{self.stem}.meta.json"
        data = json.dumps(meta).encode()
        try:
            _replace(path, data.ljust((len(data) + SPARE) // BLOCK * BLOCK + BLOCK))
        except OSError as error:
            if is_the_scripts(error):
                raise
            with path.open("r+b") as file:
                room = os.fstat(file.fileno()).st_size
                if len(data) > room:
                    raise OSError(
                        errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)
                    ) from None
                file.write(data.ljust(room))

    def write_numerics(self, record: dict[str, Any]) -> None:
        """Replace the file of scales and measured tensors."""
        _replace(
            self.folder / f"{self.stem}.numerics.json", json.dumps(record).encode()
        )

    def append_numerics(self, text: str) -> None:
        """Add measured steps, a line each, to the series of a long run."""
        with open_private(self.series, "ab") as file:
            file.write(text.encode())

    @property
    def series(self) -> Path:
        """The file of measured steps, a line each."""
        return self.folder / f"{self.stem}.numerics.jsonl"

    def discard(self) -> None:
        """Remove the files of a window without a recording, and finally its folder."""
        with quietly(OSError):  # other ranks may still have files there
            for path in self.folder.glob(f"{self.stem}.*"):
                path.unlink(missing_ok=True)
            self.folder.rmdir()

    def _name_own_logs(self, rank: int) -> None:
        """Return the files that this process writes its output to, if a launcher redirected it.

        Otherwise the output arrives at the parent through a pipe or a terminal.
        """
        seen = set()
        for descriptor, name in STREAMS.items():
            status = os.fstat(descriptor)
            if (
                not stat.S_ISREG(status.st_mode)
                or (status.st_dev, status.st_ino) in seen
            ):
                continue
            seen.add((status.st_dev, status.st_ino))
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            with (self._boot / "streams.jsonl").open("a", encoding="utf-8") as file:
                file.write(
                    json.dumps({"name": f"rank{rank}.{name}", "path": str(path)}) + "\n"
                )


def _replace(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}")
    try:
        with open_private(draft, "wb") as file:
            file.write(data)
        draft.replace(path)
    finally:
        with quietly(OSError):
            draft.unlink(missing_ok=True)
