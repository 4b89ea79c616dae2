"""The boot folder: how the agent gets into the training process and all its children."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import cache_from_source
from pathlib import Path
from threading import Timer
from typing import Any

from fp8verify.capture.names import AGENT
from fp8verify.errors import InputError
from fp8verify.record.agent_archive import reserve, write_agent, write_compiled_agent
from fp8verify.record.agent_config import agent_config
from fp8verify.record.byte_code import byte_code
from fp8verify.record.folder import PRIVATE, CaptureFolder, writing_to
from fp8verify.record.settings import RunSettings

BOOT = f"{Path(__file__).parents[1]}/agent/boot"
STARTS = ("sitecustomize.py", "_fp8verify_boot.py")
ARCHIVE = "agent.zip"
CONFIG = "config.json"
COMPILE_AFTER_S = 0.1  # the script itself starts first, torch takes longer
PATIENCE_S, POLL_S = 2.0, 0.01  # for the agent that another runner writes


@contextmanager
def boot_folder(capture: Path) -> Iterator[Path]:
    """Make a private folder to put on PYTHONPATH, and remove it afterwards.

    It lies in the capture, which every node of a job can read, and will hold all that the agent
    needs: launchers that drop unknown environment variables still pass PYTHONPATH on. It is also
    where the agent leaves what is for this runner only.
    """
    boot = make_boot_folder(capture)
    try:
        yield boot
    finally:
        _remove(boot)


def make_boot_folder(capture: Path) -> Path:
    """Make a private folder to put on PYTHONPATH, with what every Python starts with.

    Raises:
        InputError: the capture cannot be written to.
    """
    boot = capture / f".boot-{os.urandom(6).hex()}"
    try:
        with writing_to(capture):
            _copy_starts(f"{boot}")
    except InputError:
        _remove(boot)
        raise
    return boot


def _copy_starts(boot: str) -> None:
    """Copy the sources, and the byte code for Pythons of our version: each one would compile them.

    Every run waits for this, and pathlib would double the time.
    """
    os.mkdir(boot, PRIVATE)  # noqa: PTH102
    if sys.pycache_prefix is None:
        os.mkdir(f"{boot}/__pycache__", PRIVATE)  # noqa: PTH102
    for name in STARTS:
        with open(f"{BOOT}/{name}", "rb") as source, open(f"{boot}/{name}", "xb") as copy:  # noqa: PTH123
            copy.write(source.read())
        code = byte_code(f"{BOOT}/{name}") if sys.pycache_prefix is None else None
        if code is not None:
            with open(cache_from_source(f"{boot}/{name}"), "xb") as compiled:  # noqa: PTH123
                compiled.write(code)


def _remove(boot: Path) -> None:
    import shutil  # not before the run: it takes as long to import as the folder to make

    shutil.rmtree(boot, ignore_errors=True)


class Agent:
    """The agent of one run: its room is taken before the run starts, it comes while that starts.

    The runners of a job share one, in the capture: a job of a thousand tasks would else copy it a
    thousand times onto a shared disk. The runner that made the capture writes it, the others wait.

    Attributes:
        archive: the file from which the processes of the run import it.
    """

    def __init__(self, boot: Path, capture: CaptureFolder, *, shared: bool = False) -> None:
        self._boot = boot
        self._is_anothers = shared and capture.guest is not None
        self._timer: Timer | None = None
        self.archive = capture.path / AGENT if shared else boot / ARCHIVE

    def reserve(self) -> None:
        """Take its room on the disk.

        Raises:
            OSError: there is not that much.
        """
        if not self._is_anothers:
            reserve(f"{self.archive}")

    def write(self) -> None:
        """Write it, or wait for the runner that does.

        Raises:
            OSError: the capture cannot be written to.
        """
        if self._is_anothers and self._comes():
            return
        if self._is_anothers:
            self.archive = self._boot / ARCHIVE
        if not write_agent(f"{self.archive}"):
            timer = Timer(COMPILE_AFTER_S, write_compiled_agent, (f"{self.archive}",))
            timer.daemon = True
            with suppress(RuntimeError):  # no thread is left: the sources serve as well
                timer.start()
                self._timer = timer

    def finish(self) -> None:
        """Return when nothing is written any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()

    def _comes(self) -> bool:
        deadline = time.monotonic() + PATIENCE_S
        while not self.archive.is_file() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return self.archive.is_file()


@contextmanager
def delivered(agent: Agent, boot: Path, configured: Callable[[], None]) -> Iterator[str | None]:
    """Write agent and configuration, and yield why that cannot be: the run goes on without them.

    Args:
        agent: what to write.
        boot: the boot folder.
        configured: calls `configure`.
    """
    failure = None
    try:
        agent.write()
        configured()
    except Exception as error:  # the run has started, and waits for no error of ours
        failure = f"the agent could not be written: {getattr(error, 'strerror', None) or error}"
        for name in STARTS:  # whose Pythons then no longer wait for it
            (boot / name).unlink(missing_ok=True)
    try:
        yield failure
    finally:
        agent.finish()


def configure(
    boot: Path,
    capture: CaptureFolder,
    settings: RunSettings,
    recording: str | None = None,
    archive: Path | None = None,
) -> None:
    """Tell the agent, by a file in the boot folder, where to write and what to observe.

    The file appears whole: the processes of the run wait for it.

    Args:
        boot: the boot folder.
        capture: where it writes.
        settings: what it observes.
        recording: how the names of the files begin that a profiler around the run writes.
        archive: the agent, which is there; None for that of the boot folder.
    """
    config = agent_config(
        settings,
        capture.path,
        boot=str(boot),
        agent=str(archive or boot / ARCHIVE),
        recording=recording,
        guest=capture.guest,
        started=capture.started,
    )
    with writing_to(capture.path):
        write_config(boot, config)


def write_config(boot: Path, config: dict[str, Any]) -> None:
    """Write what the agent reads, whole at once."""
    import json  # not before the run

    draft = boot / f"{CONFIG}.draft"
    draft.write_text(json.dumps(config), encoding="utf-8")
    draft.replace(boot / CONFIG)


def child_environment(environment: Mapping[str, str], boot: Path) -> dict[str, str]:
    """Return `environment` with the boot folder in front of its PYTHONPATH."""
    inherited = environment.get("PYTHONPATH")
    return {
        **environment,
        "PYTHONPATH": f"{boot}{os.pathsep}{inherited}" if inherited else str(boot),
    }
