"""Where the compilers of a script left their kernels: the caches that its environment names."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from getpass import getuser
from pathlib import Path

from fp8verify.kernels.code_files import AFTER_A_RUN, CodeSource
from fp8verify.record.trust import why_not_read


def code_of_run(environment: Mapping[str, str]) -> CodeSource:
    """Return the caches of a run that has ended, as far as other users cannot write them.

    They are read only if the trace has kernels that may be Triton's, and nothing else knows what
    these multiply.
    """
    believed = []
    for folder in cache_folders(environment):
        with suppress(OSError):
            if folder.is_dir() and why_not_read(folder) is None:
                believed.append(folder)
    return CodeSource(folders=tuple(believed), limits=AFTER_A_RUN)


def cache_folders(environment: Mapping[str, str]) -> list[Path]:
    """Return where Triton and TorchInductor keep compiled kernels, in an environment.

    Sources: triton/knobs.py (3.6, `cache.dir`), torch/_inductor/runtime/cache_dir_utils.py (2.11).
    """
    folders = []
    named = environment.get("TRITON_CACHE_DIR", "").strip()
    if named:
        folders.append(Path(named))
    else:
        home = environment.get("TRITON_HOME", "").strip() or str(Path.home())
        folders.append(Path(home, ".triton", "cache"))
    inductors = environment.get("TORCHINDUCTOR_CACHE_DIR", "").strip()
    if not inductors:
        temporary = environment.get("TMPDIR", "").strip() or tempfile.gettempdir()
        inductors = str(Path(temporary, f"torchinductor_{_user()}"))
    folders.append(Path(inductors, "triton"))
    return folders


def _user() -> str:
    """Return the user's name as TorchInductor spells it in a path."""
    try:
        name = getuser()
    except (KeyError, OSError):  # a user without an entry, as in containers
        return ""
    return re.sub(r"[\\/:*?\"<>|]", "_", name)
