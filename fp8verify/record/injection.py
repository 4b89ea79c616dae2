"""The boot folder: how the agent gets into the training process and all its children."""

from __future__ import annotations

import json
import marshal
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType
from typing import Any

from fp8verify.capture.names import AGENT
from fp8verify.errors import UsageError
from fp8verify.files import replacing
from fp8verify.frameworks import for_agent
from fp8verify.record.folder import (
    CaptureFolder,
    check_name,
    job_of,
    make_capture_folder,
    writing_to,
)
from fp8verify.record.settings import RunSettings
from fp8verify.record.trust import is_private, make_private
from fp8verify.version import __version__

SOURCES = Path(__file__).parents[1] / "agent"
STARTS = ("sitecustomize.py", "_fp8verify_boot.py")  # in its folder `boot`
PACKAGE = "_fp8verify_agent"  # as `_fp8verify_boot` imports it
ARCHIVE = "agent.zip"
CONFIG = "config.json"
UNCHECKED = (0b01).to_bytes(4, "little") + bytes(8)  # PEP 552: byte code that needs no source
# How a shell puts a folder, quoted, in front of PYTHONPATH. POSIX's `${…:+…}` leaves no empty
# entry, which would be the working directory. fish joins a path variable by ":" in the environment.
SHELLS = {
    "sh": 'export PYTHONPATH={}"${{PYTHONPATH:+:$PYTHONPATH}}"',
    "fish": "set -gx --path --prepend PYTHONPATH {}",
    "none": "PYTHONPATH={}",
}
NOT_FOR_AGENT = {"trace_dir", "job", "python"}  # of the settings
PATIENCE_S, POLL_S = 2.0, 0.01  # for the agent that another runner writes


@contextmanager
def boot_folder(capture: Path) -> Iterator[Path]:
    """Make a private folder to put on PYTHONPATH, and remove it afterwards.

    It is in the capture, which every node of a job can read, and holds all that the agent needs:
    launchers that drop unknown environment variables still pass PYTHONPATH on. It is also where
    the agent leaves what is for this runner only.

    Raises:
        InputError: the capture cannot be written to, or by others too.
    """
    boot = capture / f".boot-{os.urandom(6).hex()}"
    try:
        yield make_boot_folder(boot)
    finally:
        import shutil

        shutil.rmtree(boot, ignore_errors=True)


def make_boot_folder(boot: Path) -> Path:
    """Make a private folder to put on PYTHONPATH, with what every Python starts with.

    Raises:
        InputError: the capture cannot be written to, or by others too.
    """
    with writing_to(boot.parent):
        folder = make_private(str(boot))
        try:
            for name in STARTS:
                new = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                with os.fdopen(os.open(name, new, 0o600, dir_fd=folder), "wb") as file:
                    file.write((SOURCES / "boot" / name).read_bytes())
        finally:
            os.close(folder)
    return boot


def attach(boot: Path, capture: CaptureFolder, settings: RunSettings, *, shared: bool) -> None:
    """Write the agent and its configuration: the Pythons that start with the folder are observed.

    The runners of a job share one agent, in the capture: a job of a thousand tasks would else copy
    it a thousand times onto a shared disk. The runner that made the capture writes it.

    Args:
        boot: the boot folder.
        capture: where the agent writes.
        settings: what it observes.
        shared: whether other runners of the job use this capture.

    Raises:
        InputError: the capture cannot be written to.
    """
    with writing_to(capture.path):
        archive = boot / ARCHIVE
        if shared and is_private(capture.path):
            common = capture.path / AGENT
            if capture.secondary_node is None:
                write_agent(common)
            deadline = time.monotonic() + PATIENCE_S
            while not common.is_file() and time.monotonic() < deadline:
                time.sleep(POLL_S)
            archive = common if common.is_file() else archive
        if archive.parent == boot:
            write_agent(archive)
        write_config(boot, agent_config(settings, capture, str(boot), str(archive)))


def write_config(boot: Path, config: dict[str, Any]) -> None:
    """Write what the agent reads."""
    descriptor = os.open(boot / CONFIG, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(config, file)


def agent_config(
    settings: RunSettings, capture: CaptureFolder, boot: str = os.devnull, agent: str | None = None
) -> dict[str, Any]:
    """Return where the agent is to write and what it is to observe: its `config.json`.

    A test compares it with `Config` of the agent.

    Args:
        settings: what the user asks for.
        capture: where the agent writes.
        boot: the boot folder; none where the agent is part of the script's own program.
        agent: the archive with the agent's code; None for the one in the boot folder.
    """
    asked = {
        key: value._asdict() if hasattr(value, "_asdict") else value
        for key, value in settings._asdict().items()
        if key not in NOT_FOR_AGENT
    }
    return {
        **asked,
        "version": __version__,
        "boot": boot,
        "agent": agent,
        "capture": str(capture.path),
        "guest": capture.secondary_node,
        "started": capture.started or time.time(),
        **for_agent(),
    }


def write_agent(archive: Path) -> None:
    """Write the agent as one file, from which the Pythons of a run import it.

    It appears whole: other runners may wait for it.

    Raises:
        OSError: it cannot be written.
    """
    from zipfile import ZipFile, ZipInfo

    with replacing(archive, f"{archive.name}.draft") as draft:
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w+b") as file, ZipFile(file, "w") as members:
            boot = SOURCES / "boot"
            for source in sorted(set(SOURCES.rglob("*.py")) - set(boot.iterdir())):
                name = f"{PACKAGE}/{source.relative_to(SOURCES).as_posix()}"
                members.writestr(ZipInfo(name), source.read_bytes())
                # What Python keeps in __pycache__; else it is compiled, and kept if that can be.
                code = SourceFileLoader("_", str(source)).get_code("_")
                assert code is not None  # noqa: S101 - it has a source
                byte_code = marshal.dumps(_renamed(code, f"{archive}/{name}"))
                members.writestr(ZipInfo(f"{name}c"), MAGIC_NUMBER + UNCHECKED + byte_code)


def _renamed(code: CodeType, name: str) -> CodeType:
    """Return byte code whose tracebacks show a file of another name."""
    inner = tuple(_renamed(c, name) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=name, co_consts=inner)


def child_environment(environment: Mapping[str, str], boot: Path) -> dict[str, str]:
    """Return `environment` with the boot folder in front of its PYTHONPATH."""
    inherited = environment.get("PYTHONPATH")
    return {
        **environment,
        "PYTHONPATH": f"{boot}{os.pathsep}{inherited}" if inherited else str(boot),
    }


def export_line(settings: RunSettings, shell: str) -> str:
    """Prepare a capture and return the line that attaches every Python started after it.

    Raises:
        UsageError: no folder is named, or its name cannot stand in PYTHONPATH.
        InputError: the folder cannot be used.
    """
    if settings.trace_dir is None:
        raise UsageError("There is no folder for the capture.", "Name one with --trace-dir.")
    check_name(settings.trace_dir)
    capture = make_capture_folder(settings.trace_dir, settings.job or job_of((), os.environ).name)
    boot = make_boot_folder(capture.path / f".boot-{os.urandom(6).hex()}")
    attach(boot, capture, settings._replace(capture_log=False), shared=False)
    import shlex  # not before a run, which waits for what we import

    word = str(boot) if shell == "none" else shlex.quote(str(boot))
    return SHELLS[shell].format(word)
