"""The boot folder: how the agent gets into the training process and all its children."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer

from fp8verify.capture.names import AGENT
from fp8verify.errors import InputError
from fp8verify.runner.agent_config import agent_config
from fp8verify.runner.folder import PRIVATE, CaptureFolder, writing_to
from fp8verify.runner.settings import RunSettings

HERE = Path(__file__).parent
COMPILE_AFTER_S = 0.1  # the script itself starts first, torch takes longer
PATIENCE_S, POLL_S = 2.0, 0.01  # for the copy of the agent that another runner makes


@contextmanager
def boot_folder(capture: Path, *, shares_agent: bool = False) -> Iterator[Path]:
    """Make a private folder to put on PYTHONPATH, and remove it afterwards.

    It lies in the capture, which every node of a job can read, and holds all that the agent needs:
    launchers that drop unknown environment variables still pass PYTHONPATH on. It is also where
    the agent leaves what is for this runner only. `shares_agent` leaves the agent itself out of it:
    `share_agent` has put it into the capture.
    """
    boot = make_boot_folder(capture, shares_agent=shares_agent)
    try:
        yield boot
    finally:
        import shutil  # not before the run: it takes as long to import as the folder to make

        shutil.rmtree(boot, ignore_errors=True)


def make_boot_folder(capture: Path, *, shares_agent: bool = False) -> Path:
    """Make a private folder to put on PYTHONPATH.

    Raises:
        InputError: the capture cannot be written to.
    """
    boot = capture / f".boot-{os.urandom(6).hex()}"
    try:
        with writing_to(capture):
            _copy_sources(f"{HERE}/boot", f"{boot}")
            if not shares_agent:
                _copy_sources(f"{HERE}/agent", f"{boot}/agent")
    except InputError:
        import shutil

        shutil.rmtree(boot, ignore_errors=True)
        raise
    return boot


def share_agent(capture: CaptureFolder) -> bool:
    """Have one copy of the agent for all runners of a job; return whether it is there.

    A job of a thousand tasks would else copy sixty files a thousand times onto a shared disk. The
    runner that made the capture copies, the others wait for it.

    Raises:
        InputError: the capture cannot be written to.
    """
    shared = capture.path / AGENT
    if capture.guest is not None:
        deadline = time.monotonic() + PATIENCE_S
        while not shared.is_dir() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return shared.is_dir()
    draft = capture.path / f"{AGENT}-{os.urandom(6).hex()}"
    with writing_to(capture.path):
        _copy_sources(f"{HERE}/agent", f"{draft}")
        draft.rename(shared)
    return True


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
def agent_compiled(boot: Path, capture: CaptureFolder) -> Iterator[None]:
    """Compile the agent while the run imports torch; a process that is faster uses the sources.

    Of a copy that several runners share, the runner that made it does that.
    """
    agent = _agent_of(boot, capture.path)
    if capture.guest is not None and agent.parent != boot:
        yield
        return
    timer = Timer(COMPILE_AFTER_S, compile_agent, (agent,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def compile_agent(agent: Path) -> None:
    """Compile a copy of the agent, as far as it is still there.

    `compileall` would make the folders anew, also after the run has moved or removed the capture.
    """
    import py_compile
    from importlib.util import cache_from_source
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="fp8verify-") as name, suppress(OSError):
        for source in agent.rglob("*.py"):
            compiled = f"{name}/{source.name}c"
            py_compile.compile(str(source), compiled, doraise=True)
            target = Path(cache_from_source(str(source)))
            with suppress(FileExistsError):
                target.parent.mkdir(PRIVATE)
            draft = target.with_name(f".{target.name}")
            draft.write_bytes(Path(compiled).read_bytes())
            draft.replace(target)


def _agent_of(boot: Path, capture: Path) -> Path:
    own = boot / "agent"
    return own if own.is_dir() else capture / AGENT


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
    config = agent_config(
        settings,
        capture.path,
        boot=str(boot),
        agent=str(_agent_of(boot, capture.path)),
        recording=recording,
        guest=capture.guest,
        started=capture.started,
    )
    with writing_to(capture.path):
        (boot / "config.json").write_text(json.dumps(config), encoding="utf-8")


def child_environment(environment: Mapping[str, str], boot: Path) -> dict[str, str]:
    """Return `environment` with the boot folder in front of its PYTHONPATH."""
    inherited = environment.get("PYTHONPATH")
    return {
        **environment,
        "PYTHONPATH": f"{boot}{os.pathsep}{inherited}" if inherited else str(boot),
    }
