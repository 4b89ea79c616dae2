"""Nsight Systems' own files (.nsys-rep), which only `nsys export` can read."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fp8verify.errors import InputError
from fp8verify.trace.places import is_remote

if TYPE_CHECKING:
    from fp8verify.trace.formats import Format, Glance, Reading, Source
    from fp8verify.trace.tables import Trace

SUFFIX = ".nsys-rep"
_TIMEOUT_S = 1800


class NsysReportFormat:
    """A report of Nsight Systems, exported by the user's own nsys.

    Args:
        glance_at: returns format and glance of a file in any format.
        read_trace: reads one.
    """

    name = "Nsight Systems"
    suffixes = (SUFFIX,)

    def __init__(
        self, glance_at: Callable[[Path], tuple[Format, Glance]], read_trace: Callable[..., Trace]
    ) -> None:
        self._glance_at, self._read_trace = glance_at, read_trace

    def probe(self, head: bytes, name: str) -> bool:  # noqa: ARG002
        """Whether the file is called like a report; its bytes are not documented."""
        return name.endswith(SUFFIX)

    def glance(self, source: Source) -> Glance:
        """Export it; the processes in it are only known then."""
        exported = export(_path(source))
        return self._glance_at(exported)[1]._replace(instead=exported)

    def read(self, source: Source, how: Reading) -> Trace:
        """Export it and read that."""
        exported = export(_path(source))
        return self._read_trace(exported, name=source.name, layers=how.layers, part=how.part)


def _path(source: Source) -> Path:
    if source.path is None or is_remote(source.path):
        raise InputError(
            f"{source.name} is a report of Nsight Systems that is not on this machine's disk.",
            "Download it, or export it where it is: nsys export --type sqlite.",
        )
    return source.path


@cache
def export(path: Path) -> Path:
    """Return the SQLite file of a report: one next to it that is as new, or one that nsys makes.

    It is made in a temporary folder, which goes when this process ends.

    Raises:
        InputError: nsys is not installed, or cannot read the report.
    """
    exported = path.with_suffix(".sqlite")
    if exported.is_file() and exported.stat().st_mtime >= path.stat().st_mtime:
        return exported
    # Most readings have no such file, and each of these takes a millisecond to import.
    import atexit
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="fp8verify-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = Path(folder) / exported.name
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
        exported = path.with_suffix(".sqlite")
        raise InputError(
            f"{path} is a report of Nsight Systems, and nsys is not on the PATH to read it.",
            f"Where it is: nsys export --type sqlite --output {exported} {path}",
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
