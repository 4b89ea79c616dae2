"""The boot folder: how the agent gets into the training process and all its children."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

from fp8verify.errors import InputError
from fp8verify.runner.folder import PRIVATE, CaptureFolder, writing_to
from fp8verify.runner.settings import RunSettings
from fp8verify.version import __version__

HERE = Path(__file__).parent
COMPILE_AFTER_S = 0.1  # the script itself starts first, torch takes longer


@contextmanager
def boot_folder(capture: Path) -> Iterator[Path]:
    """Make a private folder to put on PYTHONPATH, and remove it afterwards.

    It lies in the capture, which every node of a job can read, and holds all that the agent needs:
    launchers that drop unknown environment variables still pass PYTHONPATH on. It is also where
    the agent leaves what is for this runner only.
    """
    boot = make_boot_folder(capture)
    try:
        yield boot
    finally:
        import shutil  # not before the run: it takes as long to import as the folder to make

        shutil.rmtree(boot, ignore_errors=True)


def make_boot_folder(capture: Path) -> Path:
    """Make a private folder to put on PYTHONPATH.

    Raises:
        InputError: the capture cannot be written to.
    """
    boot = capture / f".boot-{os.urandom(6).hex()}"
    try:
        with writing_to(capture):
            _copy_sources(f"{HERE}/boot", f"{boot}")
            _copy_sources(f"{HERE}/agent", f"{boot}/agent")
    except InputError:
        import shutil

        shutil.rmtree(boot, ignore_errors=True)
        raise
    return boot


def _copy_sources(source: str, target: str) -> None:
    # Every run waits for this, and pathlib would double the time.
    os.mkdir(target, PRIVATE)  # noqa: PTH102
    for entry in os.scandir(source):
        if entry.name.endswith(".py"):
            with open(entry.path, "rb") as file, open(f"{target}/{entry.name}", "xb") as copy:  # noqa: PTH123
                copy.write(file.read())
        elif entry.is_dir() and entry.name != "__pycache__":
            _copy_sources(entry.path, f"{target}/{entry.name}")


@contextmanager
def agent_compiled(boot: Path) -> Iterator[None]:
    """Compile the agent while the run imports torch; a process that is faster uses the sources."""
    timer = Timer(COMPILE_AFTER_S, compile_agent, (boot,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def compile_agent(boot: Path) -> None:
    """Compile the agent of a boot folder."""
    import compileall

    compileall.compile_dir(boot / "agent", quiet=2)


def configure(
    boot: Path, capture: CaptureFolder, settings: RunSettings, recording: str | None = None
) -> None:
    """Tell the agent, by a file in the boot folder, where to write and what to observe.

    Args:
        boot: the boot folder.
        capture: where it writes.
        settings: what it observes.
        recording: how the names of the files begin that a profiler around the run writes.
    """
    timed = settings.timed_window
    config = {
        "version": __version__,
        "boot": str(boot),
        "capture": str(capture.path),
        "guest": capture.guest,
        "windows": settings.windows,
        "timed_window": timed._asdict() if timed is not None else None,
        "live": settings.live._asdict() if settings.live is not None else None,
        "started": capture.started or time.time(),
        "ranks": settings.ranks._asdict(),
        "record_shapes": settings.record_shapes,
        "max_trace_mb": settings.max_trace_mb,
        "max_window_seconds": settings.max_window_seconds,
        "profiler": settings.profiler,
        "recording": recording,
        "layers": settings.layers,
        "numerics": settings.numerics,
        "numerics_every": settings.numerics_every,
        "log": settings.capture_log,
        "debug": settings.debug,
    }
    with writing_to(capture.path):
        (boot / "config.json").write_text(json.dumps(config), encoding="utf-8")


def child_environment(environment: Mapping[str, str], boot: Path) -> dict[str, str]:
    """Return `environment` with the boot folder in front of its PYTHONPATH."""
    inherited = environment.get("PYTHONPATH")
    return {
        **environment,
        "PYTHONPATH": f"{boot}{os.pathsep}{inherited}" if inherited else str(boot),
    }
