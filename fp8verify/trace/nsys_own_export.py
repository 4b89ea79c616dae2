"""Export a report that was made for us, and leave out of it what no one should keep."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from fp8verify.trace.nsys_report import run_export

# Both hold the environment of the training, tokens included.
PRIVATE = ("META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV")
_OWNERS = 0o600


def export_beside(report: Path) -> Path:
    """Export a report of Nsight Systems to a SQLite file beside it, without the environment.

    Raises:
        InputError: nsys cannot read the report.
    """
    target = report.with_suffix(".sqlite")
    draft = report.with_name(f".{target.name}")
    try:
        run_export(report, draft)
        draft.chmod(_OWNERS)
        _remove_private(draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def _remove_private(exported: Path) -> None:
    """Drop the tables and overwrite where they were; a file that is no database stays as it is."""
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(exported)) as database:
        database.execute("PRAGMA secure_delete = ON")
        for table in PRIVATE:
            database.execute(f"DROP TABLE IF EXISTS {table}")
        database.commit()
