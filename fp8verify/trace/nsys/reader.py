"""Read one process of an Nsight Systems export into a `Trace`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fp8verify.trace.build import main_device
from fp8verify.trace.formats import Glance, Part
from fp8verify.trace.nsys import tables
from fp8verify.trace.nsys.gpu import gpu_of
from fp8verify.trace.nsys.losses import note_losses
from fp8verify.trace.rows import RowCollector
from fp8verify.trace.tables import Trace

if TYPE_CHECKING:
    from fp8verify.trace.database import Database
    from fp8verify.trace.formats import Reading

NAME = "Nsight Systems"
# A helper process that ran a kernel or two is no rank.
_LEAST_SHARE = 0.01


def parts(database: Database) -> Glance:
    """Return the processes of an export that are ranks: those that ran more than a few kernels."""
    found = tables.processes(database)
    most = max((count for _, count in found), default=0)
    kept = [process for process, count in found if count >= _LEAST_SHARE * most]
    return Glance(
        is_trace=True,
        parts=tuple(_part(process) for process in kept),
    )


def _part(process: int) -> Part:
    number = tables.number_of(process)
    return Part(process, f"process {number}", number)


def is_export(database: Database) -> bool:
    """Whether this is what `nsys export --type sqlite` writes."""
    return tables.is_export(database)


def read(database: Database, name: str, how: Reading) -> Trace:
    """Read the kernels, launches and ranges of one process, of all if none is named."""
    rows = RowCollector()
    wanted = {"process": how.part, "last": tables.last_end(database)}
    takers = (
        (tables.kernels(database), rows.kernels),
        (tables.calls(database), rows.calls),
        (tables.ranges(database), rows.ranges),
        (tables.ranges(database, loose=True), rows.loose_ranges),
    )
    for query, take in takers:
        if query is not None:
            take(database.rows(query, wanted))
    for kind in tables.COPIES:
        if (query := tables.copies(database, kind)) is not None:
            rows.copies(kind, *database.one(query, wanted))
    trace = Trace(source=name)
    rows.fill(trace, NAME, layers=how.layers)
    note_losses(database, trace.health, wanted)
    trace.gpu, trace.compute_capability = gpu_of(database, how.part, main_device(trace.kernels))
    return trace
