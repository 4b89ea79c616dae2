"""Run a run plain and attached, and compare all that can be seen of the two."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
OURS = ("capture", "report")  # what `fp8verify run` leaves in the working directory
MARK = "FP8VERIFY_HARNESS"
SPARE_MB = 64  # the agent, and the events of a small window


@dataclass(frozen=True)
class Outcome:
    """All that can be seen of a run from outside and, by `attach/witness.py`, from inside.

    Attributes:
        code: exit code; of one that a signal ended, the signal's number, negative.
        files: name and content of each file left behind.
        children: processes that are still running.
        inside: what the process saw of itself at exit; empty if it was killed.
        peak_mb: the most memory that it had; not compared exactly.
    """

    code: int
    stdout: str
    stderr: str
    files: tuple[tuple[str, str], ...]
    children: int
    inside: Mapping[str, Any]
    peak_mb: float = field(compare=False)

    def _seen(self) -> dict[str, Any]:
        outside = {
            one.name: getattr(self, one.name) for one in fields(self) if one.compare
        }
        return {**outside, **outside.pop("inside")}

    def differences(self, other: Outcome, *, spare_mb: float = SPARE_MB) -> list[str]:
        """Return what differs in `other`, a line for each field.

        Of memory it may have `spare_mb` more.
        """
        before, after = self._seen(), other._seen()
        found = [
            f"{name}: {before.get(name)!r} became {after.get(name)!r}"
            for name in before.keys() | after.keys()
            if before.get(name) != after.get(name)
        ]
        if other.peak_mb > self.peak_mb + spare_mb:
            found.append(f"peak_mb: {self.peak_mb:.0f} became {other.peak_mb:.0f}")
        return found


def scrub(text: str) -> str:
    """Take out what differs between any two runs: times, process ids, addresses, folders."""
    patterns = (
        r"[WIE]?\d{4}[-:]?\d\d[-:]?\d\d[T ][\d:.,]+( \d+(:\d+)?)?",
        r"[WIEV]\d{4} [\d:.]+( \d+)?",
        r"0x[0-9a-f]+|\d+:\d+|pid[:=]? ?\d+|\bin \d+\.\d+|port: \d+",
        r"_(runtime|per_second)'?\s*[:=]\s*'?[\d.:]+",
        r"\d+(\.\d+)?\s?(it/s|s/it|ms\b|seconds)|\d\d:\d\d|'train_\w+': '?[\d.e-]+'?",
        r"/tmp/\S+?/(plain|attached)",
    )
    return re.sub("|".join(patterns), "…", text)


def execute(
    folder: Path, before: tuple[object, ...], command: tuple[object, ...]
) -> Outcome:
    """Run `command` behind the words of `before` in a new folder."""
    folder.mkdir()
    inside = folder.with_name(f"{folder.name}.inside.json")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    environment |= {MARK: str(inside)}
    done = subprocess.run(
        [str(word) for word in (*before, *command)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    seen = json.loads(inside.read_text(encoding="utf-8")) if inside.exists() else {}
    peak = float(seen.pop("peak_mb", 0))
    out, error = scrub(done.stdout), scrub(done.stderr)
    return Outcome(
        done.returncode,
        out,
        error,
        left_in(folder),
        still_running(str(inside)),
        seen,
        peak,
    )


def pair(
    folder: Path,
    *arguments: object,
    options: tuple[object, ...] = ("--steps", "3-4"),
    python: str | Path = sys.executable,
    runner: str | Path = sys.executable,
    witness: bool = True,
) -> tuple[Outcome, Outcome]:
    """Run a script plain and attached; `arguments` are the words after `python`.

    `runner` is the Python of `fp8verify run`.

    `folder` gets one folder for each of the two, and the capture in `attached/capture`. A `witness`
    looks from inside too, which takes a script and no `-m`.
    """
    command = (
        (python, HERE / "attach" / "witness.py", *arguments)
        if witness
        else (python, *arguments)
    )
    run = (runner, "-m", "fp8verify", "run", *options, "--trace-dir", OURS[0])
    plain = execute(folder / "plain", (), command)
    attached = execute(
        folder / "attached", (*run, "-o", OURS[1], "--exit-zero", "--"), command
    )
    return plain, attached


def left_in(folder: Path) -> tuple[tuple[str, str], ...]:
    """Return the files that a run left, without ours; saved tensors with their content."""
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and path.relative_to(folder).parts[0] not in OURS
    )
    return tuple((str(path.relative_to(folder)), _content(path)) for path in found)


def _content(path: Path) -> str:
    if path.suffix in (".pt", ".safetensors", ".txt"):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return ""  # logs and traces name times


def still_running(mark: str) -> int:
    """Return how many processes have the mark in their environment."""
    return sum(
        mark.encode() in _environment(entry) for entry in Path("/proc").glob("[0-9]*")
    )


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:  # it has ended, or belongs to another user
        return b""
