"""Run a training under Nsight Systems: https://docs.nvidia.com/nsight-systems/UserGuide."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from fp8verify.errors import InputError
from fp8verify.record.folder import CaptureFolder
from fp8verify.record.outside.tool import Collected, find_program, help_of, stem_of

EXIT_CODE = "exit-code"
KEEPER = Path(__file__).with_name("exit_code.py")
# Kernels with their launches, NVTX ranges, and the kernels inside of CUDA graphs. Sampling the CPU
# would cost time and permissions, and says nothing here.
_OPTIONS = (
    "--trace=cuda,nvtx",
    "--sample=none",
    "--cpuctxsw=none",
    "--cuda-graph-trace=node",
    "--capture-range=cudaProfilerApi",
)
# Not in every release; without the first, the report holds the environment of the training.
_WHERE_KNOWN = {"--discard-environment": "true", "--wait": "primary"}


class Nsys:
    """Nsight Systems on the PATH.

    Args:
        windows: how many times the recording begins and ends.

    Raises:
        InputError: it is not installed, or does not run.
    """

    def __init__(self, windows: int) -> None:
        self._windows = windows
        self._program = find_program("nsys", "Nsight Systems")
        self._help = help_of(self._program, "profile")

    def stem(self, capture: CaptureFolder) -> str:
        """Return how the names of its files begin."""
        return stem_of("nsys", capture)

    def wrap(self, command: Sequence[str], capture: CaptureFolder, boot: Path) -> list[str]:
        """Return the command that runs another one under Nsight Systems.

        Whether `nsys profile` ends with the exit code of what it runs depends on its release, so
        that a process between them writes it down.
        """
        return [
            self._program,
            "profile",
            *_OPTIONS,
            f"--capture-range-end={self._range_end}",
            *(f"{name}={value}" for name, value in _WHERE_KNOWN.items() if name in self._help),
            f"--output={_escaped(capture.path / self.stem(capture))}",
            *(sys.executable, "-I", "-S", str(KEEPER), str(boot / EXIT_CODE)),
            *command,
        ]

    @property
    def _range_end(self) -> str:
        # Neither ends the training, as the default does. With `stop` there is one report, with
        # `repeat` one for each time: nsys.1.nsys-rep and so on.
        return "stop" if self._windows == 1 else f"repeat:{self._windows}"

    def collect(self, capture: CaptureFolder, boot: Path) -> Collected:
        """Export the reports to SQLite beside them, so that no nsys is needed to read them."""
        stem = self.stem(capture)
        reports = _files(capture.path, stem, "nsys-rep")
        notes = [note for report in reports for note in _export(report)]
        if not reports:
            notes += _without_report(capture.path, stem)
        return Collected(_exit_code(boot), tuple(notes), found=bool(reports))


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")  # %h, %p and %q{…} stand for host, process and variables


def _export(report: Path) -> Iterator[str]:
    from fp8verify.trace.nsys_own_export import export_beside

    try:
        export_beside(report)
    except InputError as error:
        yield f"{error.fact} The report stays in the capture: {report.name}"


def _without_report(folder: Path, stem: str) -> Iterator[str]:
    """Say what Nsight Systems left if it made no report."""
    for raw in _files(folder, stem, "qdstrm")[:1]:
        yield (
            f"Nsight Systems left {raw.name} and made no report of it: where it is installed "
            f"whole, QdstrmImporter -i {raw.name} does"
        )
        return
    yield "Nsight Systems wrote no report: no window began, or what it printed says why"


def _files(folder: Path, stem: str, ending: str) -> list[Path]:
    return sorted((*folder.glob(f"{stem}.{ending}"), *folder.glob(f"{stem}.*.{ending}")))


def _exit_code(boot: Path) -> int | None:
    """Return the exit code of the training, 128 + n if signal n ended it; None if it never ran."""
    with suppress(OSError, ValueError):
        return int((boot / EXIT_CODE).read_text(encoding="ascii"))
    return None
