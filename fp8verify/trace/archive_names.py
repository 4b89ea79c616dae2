"""Which files are called like a zip or tar of traces."""

from __future__ import annotations

from pathlib import Path

ZIP = (".zip",)
TAR = (".tar", ".tar.gz", ".tgz")
_ENDINGS = (*ZIP, *TAR)
# What the private folder is called into which an archive is unpacked.
UNPACKED = "fp8verify-"


def is_archive(path: Path) -> bool:
    """Whether a path is called like an archive that `unpacked` reads."""
    is_called_so = path.name.lower().endswith(_ENDINGS)
    return is_called_so and path.is_file()


def archive_name(path: Path) -> str:
    """Return what a run is called whose traces are in an archive."""
    for ending in sorted(_ENDINGS, key=len, reverse=True):
        if path.name.lower().endswith(ending):
            stem = path.name[: -len(ending)]
            return stem or path.name
    return path.name
