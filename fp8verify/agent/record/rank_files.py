"""The files of one rank in the capture folder, and what it leaves for its runner."""

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

STREAMS = {1: "out", 2: "err"}
BLOCK = 4096  # of a disk; spaces behind JSON mean nothing
SPARE = 512


class RankFiles:
    """The files of one rank in the capture folder, claimed so that no other process's are hit."""

    def __init__(self, config: dict[str, Any], rank: int) -> None:
        self.folder = Path(config["capture"])
        self._boot = Path(config["boot"])
        self._packs = not config["live"]  # a trace that is dropped soon is not worth packing
        self.stem = self._claim(rank, config["guest"])
        with suppress(OSError), (self._boot / "ranks").open("a", encoding="utf-8") as file:
            file.write(f"{rank}\n")
        if config["log"]:
            with suppress(OSError):
                self._name_own_logs(rank)

    def _claim(self, rank: int, guest: str | None) -> str:
        # A shell script may train twice: the second process of a rank gets files of its own.
        first = f"rank{rank}.{guest}" if guest else f"rank{rank}"
        for stem in (first, f"{first}-{os.getpid()}"):
            try:
                os.close(os.open(self._meta(stem), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:
                continue
            return stem
        raise FileExistsError(self._meta(f"{first}-{os.getpid()}"))

    def _meta(self, stem: str) -> Path:
        return self.folder / f"{stem}.meta.json"

    @property
    def drafts(self) -> Path:
        """A folder for files that are not whole: the runner removes its boot folder."""
        return self._boot if self._boot.is_dir() else self.folder

    def trace_path(self, window: int) -> Path:
        """Return where the trace of the window of that index (from 0) belongs."""
        suffix = f".w{window + 1}" if window else ""
        packed = ".gz" if self._packs else ""
        return self.folder / f"{self.stem}{suffix}.json{packed}"

    def script_path(self, number: int, source: Path) -> Path:
        """Return where the copy of a trace of the script's own profiler belongs."""
        suffix = ".json.gz" if source.suffix == ".gz" else ".json"
        return self.folder / f"{self.stem}.script{number if number > 1 else ''}{suffix}"

    def layers_path(self) -> Path:
        """Return where the trace of the eager step that names layers belongs."""
        folder = self.folder / "layers"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / f"{self.stem}.json.gz"

    def write_meta(self, meta: dict[str, Any]) -> None:
        """Replace the meta file in one step, so that a reader never sees half of it.

        On a full disk it is written over the old one, in the room that was kept for that.

        Raises:
            OSError: there is no room at all.
        """
        path = self._meta(self.stem)
        partial = path.with_name(f".{path.name}")
        data = json.dumps(meta).encode()
        try:
            partial.write_bytes(data.ljust((len(data) + SPARE) // BLOCK * BLOCK + BLOCK))
            partial.replace(path)
        except OSError:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            _overwrite(path, data)

    def discard(self) -> None:
        """Remove the files of a window of which nothing was recorded, and its folder at last."""
        with suppress(OSError):  # other ranks may still have files there
            for path in self.folder.glob(f"{self.stem}.*"):
                path.unlink(missing_ok=True)
            self.folder.rmdir()

    def write_numerics(self, found: dict[str, Any]) -> None:
        """Replace the file of scales and measured tensors."""
        path = self.folder / f"{self.stem}.numerics.json"
        partial = path.with_name(f".{path.name}")
        try:
            partial.write_text(json.dumps(found), encoding="utf-8")
            partial.replace(path)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)

    def append_numerics(self, line: dict[str, Any]) -> None:
        """Add a measured step to the series of a long run."""
        path = self.folder / f"{self.stem}.numerics.jsonl"
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def take_series(self, other: RankFiles) -> None:
        """Add the measured steps of a window of a watch to those of the run."""
        found = other.folder / f"{other.stem}.numerics.jsonl"
        with suppress(OSError):
            lines = found.read_text(encoding="utf-8")
            with (self.folder / f"{self.stem}.numerics.jsonl").open("a", encoding="utf-8") as file:
                file.write(lines)

    def _name_own_logs(self, rank: int) -> None:
        """Name the files that this process writes its output to, if a launcher redirected it.

        What is not redirected arrives at the parent through a pipe or a terminal.
        """
        seen = set()
        for descriptor, name in STREAMS.items():
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            stream = {
                "name": f"rank{rank}.{name}",
                "path": str(Path(f"/proc/self/fd/{descriptor}").readlink()),
            }
            with (self._boot / "streams.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(stream) + "\n")


def _overwrite(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        room = os.fstat(file.fileno()).st_size
        if len(data) > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        file.write(data.ljust(room))
