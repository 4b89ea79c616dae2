"""Have `nsys export` make a SQLite file of a report of Nsight Systems."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fp8verify.errors import InputError

_TIMEOUT_S = 1800


@cache
def export(path: Path) -> Path:
    """Return the SQLite file of a report: one beside it that is as new, or one that nsys makes.

    It is made in a temporary folder, which goes when this process ends.

    Raises:
        InputError: nsys is not installed, or cannot read the report.
    """
    beside = path.with_suffix(".sqlite")
    if beside.is_file() and beside.stat().st_mtime >= path.stat().st_mtime:
        return beside
    # Most readings have no such file, and each of these takes a millisecond to import.
    import atexit
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="fp8verify-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = Path(folder) / beside.name
    run_export(path, target)
    return target


def run_export(path: Path, target: Path) -> None:
    """Have nsys write the SQLite file of a report.

    Raises:
        InputError: nsys is not installed, or cannot read the report.
    """
    import shutil

    nsys = shutil.which("nsys")
    if nsys is None:
        beside = path.with_suffix(".sqlite")
        raise InputError(
            f"{path} is a report of Nsight Systems, and nsys is not on the PATH to read it.",
            f"Where it is: nsys export --type sqlite --output {beside} {path}",
        )
    _run([nsys, "export", "--type", "sqlite", "--output", str(target), str(path)], path)
    if not target.is_file():
        raise InputError(f"nsys export made nothing of {path}.", "Record the run again.")


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
