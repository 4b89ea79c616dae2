"""Which files are called like a zip or tar of traces."""

from __future__ import annotations

from pathlib import Path

ZIP = (".zip",)
TAR = (".tar", ".tar.gz", ".tgz")
# What the private folder is called into which an archive is unpacked.
UNPACKED = "fp8verify-"


def is_archive(path: Path) -> bool:
    """Whether a path is called like an archive that `unpacked` reads."""
    return path.name.lower().endswith((*ZIP, *TAR)) and path.is_file()


def archive_name(path: Path) -> str:
    """Return what a run is called whose traces are in an archive."""
    for ending in sorted((*ZIP, *TAR), key=len, reverse=True):
        if path.name.lower().endswith(ending):
            return path.name[: -len(ending)] or path.name
    return path.name
