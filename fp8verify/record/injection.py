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
from io import BytesIO
from pathlib import Path
from types import CodeType
from typing import Any

from fp8verify.errors import UsageError
from fp8verify.frameworks import for_agent
from fp8verify.record.folder import (
    CaptureFolder,
    Job,
    check_name,
    job_of,
    make_capture_folder,
    writing_to,
)
from fp8verify.record.leftovers import hold
from fp8verify.record.settings import RunSettings
from fp8verify.record.trust import make_private
from fp8verify.version import __version__

SOURCES = Path(__file__).parents[1] / "agent"
STARTS = ("sitecustomize.py", "_fp8verify_boot.py")  # in its folder `boot`
PACKAGE = "_fp8verify_agent"  # as `_fp8verify_boot` imports it
ARCHIVE = "agent.zip"
CONFIG = "config.json"
UNCHECKED = (0b01).to_bytes(4, "little") + bytes(
    8
)  # PEP 552: byte code that needs no source
# Puts a folder, quoted, in front of PYTHONPATH. POSIX's `${…:+…}` leaves no empty entry, which
# would be the working directory.
EXPORT = 'export PYTHONPATH={}"${{PYTHONPATH:+:$PYTHONPATH}}"'
NOT_FOR_AGENT = {"trace_dir", "job", "python"}  # of the settings


@contextmanager
def boot_folder(parent: Path, config: Mapping[str, Any]) -> Iterator[Path]:
    """Make a boot folder in a folder, and remove it afterwards.

    Raises:
        InputError: it cannot be written, or by others too.
    """
    boot = _new_path(parent)
    descriptor = None
    try:
        make_boot_folder(boot, config)
        descriptor = hold(str(boot))
        yield boot
    finally:
        import shutil

        if descriptor is not None:
            os.close(descriptor)
        shutil.rmtree(boot, ignore_errors=True)


def _new_path(parent: Path) -> Path:
    return parent / f".boot-{os.urandom(6).hex()}"


def make_boot_folder(boot: Path, config: Mapping[str, Any]) -> None:
    """Make a private folder to put on PYTHONPATH: the Pythons that start with it are observed.

    It is in the capture, which every node of a job can read, and holds all that the agent needs:
    launchers that drop unknown environment variables still pass PYTHONPATH on. It is also where
    the agent leaves what is for this runner only.

    Args:
        boot: the folder.
        config: what the agent reads, without the name of the folder.

    Raises:
        InputError: it cannot be written, or by others too.
    """
    contents = {name: (SOURCES / "boot" / name).read_bytes() for name in STARTS}
    contents[ARCHIVE] = _agent_archive(boot / ARCHIVE)
    contents[CONFIG] = json.dumps({**config, "boot": str(boot)}).encode()
    with writing_to(boot.parent):
        folder = make_private(str(boot))
        try:
            for name, content in contents.items():
                new = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                with os.fdopen(os.open(name, new, 0o600, dir_fd=folder), "wb") as file:
                    file.write(content)
        finally:
            os.close(folder)


def agent_config(settings: RunSettings, capture: CaptureFolder) -> dict[str, Any]:
    """Return where the agent is to write and what it is to observe: its `config.json`.

    It names no boot folder, as where the agent is part of the script's own program. A test
    compares it with `Config` of the agent.
    """
    asked = {
        key: value._asdict() if hasattr(value, "_asdict") else value
        for key, value in settings._asdict().items()
        if key not in NOT_FOR_AGENT
    }
    return {
        **asked,
        "version": __version__,
        "boot": os.devnull,
        "capture": str(capture.path),
        "guest": capture.secondary_node,
        "started": capture.started or time.time(),
        **for_agent(),
    }


def _agent_archive(archive: Path) -> bytes:
    """Return the agent as one archive, from which the Pythons of a run import it."""
    from zipfile import ZipFile, ZipInfo

    content = BytesIO()
    with ZipFile(content, "w") as members:
        boot = SOURCES / "boot"
        for source in sorted(set(SOURCES.rglob("*.py")) - set(boot.iterdir())):
            name = f"{PACKAGE}/{source.relative_to(SOURCES).as_posix()}"
            members.writestr(ZipInfo(name), source.read_bytes())
            # What Python keeps in __pycache__; else it is compiled, and kept if that can be.
            code = SourceFileLoader("_", str(source)).get_code("_")
            assert code is not None  # noqa: S101 - it has a source
            byte_code = marshal.dumps(_renamed(code, f"{archive}/{name}"))
            members.writestr(ZipInfo(f"{name}c"), MAGIC_NUMBER + UNCHECKED + byte_code)
    return content.getvalue()


def _renamed(code: CodeType, name: str) -> CodeType:
    """Return byte code whose tracebacks show a file of another name."""
    inner = tuple(
        _renamed(c, name) if isinstance(c, CodeType) else c for c in code.co_consts
    )
    return code.replace(co_filename=name, co_consts=inner)


def child_environment(environment: Mapping[str, str], boot: Path) -> dict[str, str]:
    """Return `environment` with the boot folder in front of its PYTHONPATH."""
    inherited = environment.get("PYTHONPATH")
    return {
        **environment,
        "PYTHONPATH": f"{boot}{os.pathsep}{inherited}" if inherited else str(boot),
    }


def export_line(settings: RunSettings) -> str:
    """Prepare a capture and return the line that attaches every Python started after it.

    Raises:
        UsageError: no folder is named, or its name cannot stand in PYTHONPATH.
        InputError: the folder cannot be used.
    """
    if settings.trace_dir is None:
        raise UsageError(
            "There is no folder for the capture.", "Name one with --trace-dir."
        )
    check_name(settings.trace_dir)
    name = settings.job or job_of((), os.environ).name
    capture = make_capture_folder(settings.trace_dir, Job(name))
    boot = _new_path(capture.path)
    make_boot_folder(boot, agent_config(settings._replace(capture_log=False), capture))
    import shlex  # not before a run, which waits for what we import

    return EXPORT.format(shlex.quote(str(boot)))
