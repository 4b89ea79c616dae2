"""Keep the logs of ranks whose output a launcher sends to files instead of to us.

torchrun does so with --log-dir and --redirects, Slurm with --output, a shell script with `>`: the
agent leaves the paths in the boot folder, whatever the launcher.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from fp8verify.record.folder import CaptureFolder
from fp8verify.record.log import HEAD_BYTES, TAIL_BYTES

STREAMS = "streams.jsonl"
MAX_LOGS = 1024
NAME = re.compile(r"rank[0-9]{1,9}\.(?:out|err)")


def collect_rank_logs(boot: Path, capture: CaptureFolder) -> None:
    """Copy the first and last 8 MB of each rank's own log into the capture as `log.rankR.out.txt`.

    A log that is gone, or that another process of the rank left already, is passed over.
    """
    try:
        with (boot / STREAMS).open(encoding="utf-8") as file:
            lines = [line for _, line in zip(range(MAX_LOGS), file, strict=False)]
    except OSError:
        return
    for line in lines:
        stream = _parse(line)
        if stream is None:
            continue
        name, source = stream
        if _is_ours(source):  # it is read already, from where the run began to write
            continue
        suffix = f".{capture.secondary_node}" if capture.secondary_node else ""
        try:
            _copy_ends(source, capture.path / f"log.{name}{suffix}.txt")
        except OSError:
            continue


def _parse(line: str) -> tuple[str, Path] | None:
    try:
        stream: Any = json.loads(line)
        name, path = stream["name"], Path(stream["path"])
    except (ValueError, KeyError, TypeError):
        return None
    return (name, path) if NAME.fullmatch(name) else None


def _is_ours(log: Path) -> bool:
    """Whether our own stdout or stderr goes to this file."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(log.stat(), os.fstat(descriptor)):
                return True
    return False


def _copy_ends(source: Path, target: Path) -> None:
    with source.open("rb") as log, target.open("xb") as copy:
        size = os.fstat(log.fileno()).st_size
        copy.write(log.read(HEAD_BYTES))
        left_out = size - HEAD_BYTES - TAIL_BYTES
        if left_out > 0:
            copy.write(b"\n[fp8verify: %d bytes left out here]\n" % left_out)
            log.seek(-TAIL_BYTES, os.SEEK_END)
        copy.write(log.read(TAIL_BYTES))
