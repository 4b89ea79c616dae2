"""Nsight Systems' own files (.nsys-rep), which only `nsys export` can read."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fp8verify.errors import InputError
from fp8verify.trace.places import is_remote

SUFFIX = ".nsys-rep"
_TIMEOUT_S = 1800


@cache
def export(path: Path) -> Path:
    """Return the SQLite file of a report: one next to it that is as new, or one that nsys makes.

    It is made in a temporary folder, which goes when this process ends.

    Raises:
        InputError: nsys is not installed, cannot read the report, or the report is remote.
    """
    if is_remote(path):
        raise InputError(
            f"{path.name} is a report of Nsight Systems that is not on this machine's disk.",
            "Download it, or export it where it is: nsys export --type sqlite.",
        )
    exported = path.with_suffix(".sqlite")
    if exported.is_file() and exported.stat().st_mtime >= path.stat().st_mtime:
        return exported
    # Most readings have no such file, and each of these takes a millisecond to import.
    import atexit
    import shutil
    import tempfile

    nsys = shutil.which("nsys")
    if nsys is None:
        raise InputError(
            f"{path} is a report of Nsight Systems, and nsys is not on the PATH to read it.",
            f"Where it is: nsys export --type sqlite --output {exported} {path}",
        )
    folder = tempfile.mkdtemp(prefix="fp8verify-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = Path(folder) / exported.name
    _run([nsys, "export", "--type", "sqlite", "--output", str(target), str(path)], path)
    if not target.is_file():
        raise InputError(f"nsys export made nothing of {path}.", "Record the run again.")
    return target


def _run(command: list[str], path: Path) -> None:
    import subprocess

    try:
        done = subprocess.run(  # noqa: S603 - the program is nsys, found on the user's PATH
            command, capture_output=True, text=True, errors="replace", check=False,
            timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        reason = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2][:200]
        failed = done.returncode != 0
    except subprocess.TimeoutExpired:
        reason, failed = f"no end after {_TIMEOUT_S // 60} minutes", True
    except OSError as error:
        reason, failed = error.strerror or type(error).__name__, True
    if failed:
        raise InputError(
            f"nsys export cannot read {path}: {reason.rstrip('.') or 'it says nothing'}.",
            "Export it with the nsys that recorded it: nsys export --type sqlite.",
        )
