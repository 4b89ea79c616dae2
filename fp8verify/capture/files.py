"""Find and read the files of a capture folder."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fp8verify.capture.names import LOG, LOGS, META_SUFFIX, METAS
from fp8verify.capture.schema import SCHEMA, RankMeta
from fp8verify.errors import InputError
from fp8verify.text import clean_json

MAX_BYTES = 64 << 20


def find_logs(capture: Path) -> list[Path]:
    """Return the logs of a capture: the run's own, other nodes', and ranks' that went to files."""
    try:
        logs = sorted(path for path in capture.glob(LOGS) if path.is_file())
    except OSError:
        return []
    return sorted(logs, key=lambda path: path.name != LOG)


def find_metas(folder: Path) -> list[Path]:
    """Return the meta files of a capture, those of one rank's first process first."""
    found = folder.glob(METAS) if folder.is_dir() else ()
    return sorted(found, key=lambda path: path.name.removesuffix(META_SUFFIX))


def read_meta(path: Path) -> RankMeta:
    """Return the meta file at `path`; fields that this version does not know are ignored.

    Raises:
        InputError: if it cannot be read, or is not such a file.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"Cannot read {path}: {error.strerror}.", "Check the name and the permissions."
        ) from None
    if len(data) > MAX_BYTES:
        raise InputError(
            f"{path} is larger than the {MAX_BYTES >> 20} MB of any module census.",
            "It was not written by fp8verify run; move it out of the capture folder.",
        )
    return _decode(path, data)


def _decode(path: Path, data: bytes) -> RankMeta:
    try:
        meta = msgspec.json.decode(clean_json(data), type=RankMeta)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not a module census: {str(error)[:200]}.",
            "It is damaged or was not written by fp8verify run; move it out of the capture folder.",
        ) from None
    if meta.schema != SCHEMA:
        raise InputError(
            f"{path} has schema {meta.schema}; this version reads {SCHEMA}.",
            "Inspect it with the version of fp8verify that made it.",
        )
    return meta
