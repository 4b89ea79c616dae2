"""Run a training under rocprofv3: https://rocm.docs.amd.com/projects/rocprofiler-sdk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fp8verify.errors import InputError
from fp8verify.record.folder import CaptureFolder
from fp8verify.record.outside.tool import Collected, find_program, help_of, stem_of

# Kernels, the calls that launch them, and roctx ranges, between roctxProfilerResume and Pause.
_OPTIONS = ("--kernel-trace", "--hip-runtime-trace", "--marker-trace", "--memory-copy-trace")
_REGIONS = "--selected-regions"
_ENDINGS = ("_results.db", "_kernel_trace.csv")


class Rocprof:
    """rocprofv3 on the PATH.

    Raises:
        InputError: it is not installed, does not run, or is too old.
    """

    def __init__(self) -> None:
        self._program = find_program("rocprofv3", "ROCm 6.2 or newer")
        self._help = help_of(self._program)
        if _REGIONS not in self._help:
            raise InputError(
                f"{self._program} has no {_REGIONS}, so the training was not started.",
                "Install a newer ROCm, or run without --profiler.",
            )

    def stem(self, capture: CaptureFolder) -> str:
        """Return how the names of its files begin."""
        return stem_of("rocprofv3", capture)

    def wrap(self, command: Sequence[str], capture: CaptureFolder, boot: Path) -> list[str]:  # noqa: ARG002
        """Return the command that runs another one under rocprofv3, which becomes it by exec."""
        return [
            self._program,
            *_OPTIONS,
            _REGIONS,
            # CSV is in every release, the database in newer ones, which give CSV up.
            *("--output-format", "rocpd" if "rocpd" in self._help else "csv"),
            *("--output-directory", str(capture.path)),
            *("--output-file", f"{self.stem(capture)}.%pid%"),
            "--",
            *command,
        ]

    def collect(self, capture: CaptureFolder, boot: Path) -> Collected:  # noqa: ARG002
        """Look for what rocprofv3 wrote, a file or more for each process."""
        stem = self.stem(capture)
        if any(any(capture.path.glob(f"{stem}.*{ending}")) for ending in _ENDINGS):
            return Collected(found=True)
        why = "no window began, or what it printed says why"
        return Collected(notes=(f"rocprofv3 wrote no trace: {why}",))
