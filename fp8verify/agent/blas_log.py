"""Has cuBLASLt log its products during a window: types and sizes of each, in the order of calls.

The library writes to the file itself: a callback would take the GIL while the library holds its
lock, which a thread that holds the GIL may wait for. (cuBLASLt 13.1; the same API since 11.5.)
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from .instruments import Instrument, InstrumentContext

VARIABLES = ("CUBLASLT_LOG_LEVEL", "CUBLASLT_LOG_MASK", "CUBLASLT_LOG_FILE")
OFF, TRACE = 0, 2  # masks: nothing, and a line for each product
NOWHERE = b"/dev/null"
LIBRARY = "/libcublasLt.so"
MAPS = Path("/proc/self/maps")


class BlasLog(Instrument):
    """Switches the logger of the cuBLASLt that the process has loaded on for each window."""

    def __init__(self, context: InstrumentContext) -> None:
        super().__init__(context)
        self._library: Any = None  # while its logger is on
        self._path: Path | None = None
        self._windows = 0

    def begin(self) -> None:
        """Switch it on, unless the script uses it."""
        if not self.context.config["blas_log"]:
            return
        self._windows += 1
        why = _why_not()
        if why is not None:
            self.context.record().note(f"no log of cuBLASLt: {why}")
            return
        files = self.context.record().files
        self._path = files.folder / f"{files.stem}.w{self._windows}.cublaslt.log"
        os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600))
        library = open_loaded(loaded()[0])
        if library.cublasLtLoggerOpenFile(os.fsencode(self._path)):
            raise OSError("cublasLtLoggerOpenFile refused the file")
        self._library = library
        if library.cublasLtLoggerSetMask(TRACE):
            raise OSError("cublasLtLoggerSetMask refused the mask")

    def end(self) -> dict[str, Any]:
        """Switch it off and return the name of the file, None if nothing was logged."""
        self._switch_off()
        path, self._path = self._path, None
        if path is None or path.stat().st_size:
            return {"blas_log": None if path is None else path.name}
        path.unlink()
        self.context.record().note(
            "cuBLASLt logged no product in the window: what a CUDA graph replays was logged when "
            "it was captured, and other libraries' kernels never are"
        )
        return {"blas_log": None}

    def drop(self) -> None:
        """Switch it off and remove the file."""
        self._switch_off()
        path, self._path = self._path, None
        if path is not None:
            with suppress(OSError):
                path.unlink()

    def _switch_off(self) -> None:
        library, self._library = self._library, None
        if library is not None:
            library.cublasLtLoggerSetMask(OFF)
            library.cublasLtLoggerOpenFile(NOWHERE)


def _why_not() -> str | None:
    """Return why the logger is not to be touched, None if it may be."""
    asked = next((name for name in VARIABLES if os.environ.get(name)), None)
    if asked is not None:
        return f"{asked} is set, so the log is the script's own; give its file to inspect too"
    found = loaded()
    if not found:
        return "this process has not loaded the library (hipBLASLt: set HIPBLASLT_LOG_MASK=2)"
    return f"this process has loaded {len(found)} copies of it" if found[1:] else None


def loaded() -> list[str]:
    """Return the files of cuBLASLt that are mapped into this process."""
    with MAPS.open(encoding="utf-8", errors="surrogateescape") as maps:
        lines = [line.rstrip("\n") for line in maps if LIBRARY in line]
    return sorted({line[line.index("/") :] for line in lines})


def open_loaded(path: str) -> Any:
    """Return a loaded library; it is never loaded for us.

    Raises:
        OSError: it is not loaded.
        AttributeError: while calling, it has no such function.
    """
    return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
