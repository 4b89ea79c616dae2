"""The tables of Nsight Systems' SQLite export that are read, and the queries on them.

Schema 3.25 (nsys 2026.2) and older ones, of which 3.11 (nsys 2024.2) was recorded and read: tables
are there only if they have rows, and columns come and go, so that each is looked for.
META_DATA_CAPTURE and TARGET_INFO_SYSTEM_ENV hold the whole environment of the training, tokens
included: they are never opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fp8verify.trace.database import Database

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
STRINGS = "StringIds"
RANGES = "NVTX_EVENTS"
DIAGNOSTICS = "DIAGNOSTIC_EVENT"
GPUS = "TARGET_INFO_GPU"
DEVICES = "TARGET_INFO_CUDA_DEVICE"
COPIES = {"memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY", "memset": "CUPTI_ACTIVITY_KIND_MEMSET"}
WANTED = frozenset(
    {KERNELS, CALLS, GRAPHS, STRINGS, RANGES, DIAGNOSTICS, GPUS, DEVICES, *COPIES.values()}
)
# Any of them, with the strings that they name, tells the export from other databases.
_SIGNS = (KERNELS, CALLS, RANGES, GRAPHS, "ANALYSIS_DETAILS", "TARGET_INFO_SESSION_START_TIME")
_META = "META_DATA_EXPORT"

# Serialized ids hold the process in bits 24 to 47, and the thread below (documentation of nsys,
# "SQLite Schema Reference"). Everything but the thread names a process for certain.
_PROCESS = "({0} & ~0xFFFFFF)"
_THREAD = "({0} & 0xFFFFFF)"
# NVTX_EVENTS.eventType (ENUM_NSYS_EVENT_TYPE).
_PUSH_POP, _START_END = 59, 60


def is_wanted(table: str) -> bool:
    """Whether a table is read at all, or tells what the database is."""
    return table in WANTED or table in _SIGNS or table == _META


def is_export(database: Database) -> bool:
    """Whether this is what `nsys export --type sqlite` writes."""
    return STRINGS in database.tables and any(sign in database.tables for sign in (*_SIGNS, _META))


def processes(database: Database) -> list[tuple[int, int]]:
    """Return the processes that ran kernels or graphs, by their device: id and kernels of each."""
    counts: dict[int, list[int]] = {}
    for table in (KERNELS, GRAPHS):
        if not database.has(table, "globalPid", "deviceId"):
            continue
        query = f"SELECT {_PROCESS.format('globalPid')}, count(*), min(deviceId) FROM {table}"
        for process, count, device in database.rows(f"{query} WHERE globalPid NOT NULL GROUP BY 1"):
            known = counts.setdefault(process, [0, device])
            known[0] += count
    ordered = sorted(counts, key=lambda process: (counts[process][1], process))
    return [(process, counts[process][0]) for process in ordered]


def number_of(process: int) -> int:
    """Return the number that the operating system gave a process."""
    return process >> 24 & 0xFFFFFF


def kernels(database: Database) -> str | None:
    """Return the query for name, start, end, device, stream and correlation id of kernels."""
    if not database.has(KERNELS, "start", "end"):
        return None
    column = {name: _column(database, KERNELS, name) for name in _KERNEL_IDS}
    names = [name for name in _KERNEL_NAMES if database.has(KERNELS, name)]
    joins = " ".join(
        f"LEFT JOIN {STRINGS} s{place} ON s{place}.id = k.{name}"
        for place, name in enumerate(names)
    )
    text = ", ".join(f"nullif(s{place}.value, '')" for place in range(len(names)))
    return (
        f"SELECT coalesce({text}, NULL), k.start, k.end, {', '.join(column.values())} "
        f"FROM {KERNELS} k {joins}{_of_process(database, KERNELS, 'k.globalPid')} ORDER BY k.rowid"
    )


_KERNEL_IDS = ("deviceId", "streamId", "correlationId")
# The demangled name is whole; the mangled one may be cut, the short one has no types.
_KERNEL_NAMES = ("demangledName", "mangledName", "shortName")


def _column(database: Database, table: str, name: str) -> str:
    return f"k.{name}" if database.has(table, name) else "-1"


def _of_process(database: Database, table: str, column: str) -> str:
    """Return the condition that rows are of one process; old exports do not say of which."""
    if not database.has(table, column.partition(".")[2]):
        return ""
    return f" WHERE (:process IS NULL OR {_PROCESS.format(column)} = :process)"


def last_end(database: Database) -> int:
    """Return when the last kernel or call ended."""
    ends = [
        database.one(f"SELECT max(end) FROM {table}")[0]
        for table in (KERNELS, CALLS)
        if database.has(table, "end")
    ]
    return max((end for end in ends if isinstance(end, int)), default=0)


def calls(database: Database) -> str | None:
    """Return the query for correlation id, start, end and thread of calls into CUDA."""
    if not database.has(CALLS, "start", "end", "correlationId", "globalTid"):
        return None
    return (
        f"SELECT k.correlationId, k.start, k.end, k.globalTid FROM {CALLS} k"
        f"{_of_process(database, CALLS, 'k.globalTid')} ORDER BY k.rowid"
    )


def ranges(database: Database, *, loose: bool = False) -> str | None:
    """Return the query for text, start, end and thread of NVTX ranges.

    Those of the default domain are the training's and torch's; libraries have their own. A range
    that was still open has no end, and gets the trace's.

    Args:
        database: the export.
        loose: ranges that one thread may begin and another end, without the thread.
    """
    if not database.has(RANGES, "start", "end", "eventType", "globalTid"):
        return None
    texts = ["k.text"] if database.has(RANGES, "text") else []
    join = ""
    if database.has(RANGES, "textId"):
        texts.append("s.value")
        join = f" LEFT JOIN {STRINGS} s ON s.id = k.textId"
    domain = " AND coalesce(k.domainId, 0) = 0" if database.has(RANGES, "domainId") else ""
    text = f"coalesce({', '.join(texts)}, NULL)" if texts else "NULL"
    return (
        f"SELECT {text}, k.start, coalesce(k.end, :last){'' if loose else ', k.globalTid'} "
        f"FROM {RANGES} k{join} WHERE k.eventType = {_START_END if loose else _PUSH_POP}{domain} "
        f"AND (:process IS NULL OR {_PROCESS.format('k.globalTid')} = :process) "
        f"AND {text} NOT NULL ORDER BY k.rowid"
    )


def copies(database: Database, kind: str) -> str | None:
    """Return the query for how many copies or fills there were, their time and their bytes."""
    table = COPIES[kind]
    if not database.has(table, "start", "end", "bytes"):
        return None
    return (
        f"SELECT count(*), sum(max(k.end - k.start, 0)), sum(k.bytes) FROM {table} k"
        f"{_of_process(database, table, 'k.globalPid')}"
    )


def whole_graphs(database: Database) -> str | None:
    """Return the query for how many CUDA graphs ran that were recorded without their kernels."""
    if not database.has(GRAPHS, "start", "end"):
        return None
    return (
        f"SELECT count(*), sum(max(k.end - k.start, 0)) FROM {GRAPHS} k"
        f"{_of_process(database, GRAPHS, 'k.globalPid')}"
    )


def lone_launches(database: Database) -> str | None:
    """Return the query for when kernels were launched of which there is no record."""
    if not database.has(CALLS, "start", "correlationId", "nameId", "globalTid"):
        return None
    if not database.has(KERNELS, "start", "correlationId", "globalPid"):
        return None
    worked = " AND k.returnValue = 0" if database.has(CALLS, "returnValue") else ""
    return (
        f"SELECT k.start FROM {CALLS} k{_of_process(database, CALLS, 'k.globalTid')}{worked} "
        f"AND k.nameId IN (SELECT id FROM {STRINGS} WHERE value LIKE 'cu%Launch%Kernel%') "
        f"AND k.correlationId NOT IN (SELECT correlationId FROM {KERNELS} k"
        f"{_of_process(database, KERNELS, 'k.globalPid')} AND correlationId NOT NULL) "
        f"LIMIT {_MOST_LONE}"
    )


# More are as bad.
_MOST_LONE = 100_000


def latency() -> str:
    """Return the query for when the last kernel started, and the longest that one waited."""
    calls, kernels = _PROCESS.format("r.globalTid"), _PROCESS.format("k.globalPid")
    return (
        f"SELECT max(k.start), max(k.start - r.start) FROM {KERNELS} k "
        f"JOIN {CALLS} r ON r.correlationId = k.correlationId AND {calls} = {kernels} "
        f"WHERE :process IS NULL OR {kernels} = :process"
    )


def captures() -> str:
    """Return the query for when and where the capture of a CUDA graph began (1) or ended (0)."""
    return (
        f"SELECT k.start, k.globalTid, s.value LIKE '%Begin%' FROM {CALLS} k "
        f"JOIN {STRINGS} s ON s.id = k.nameId WHERE (s.value LIKE 'cu%StreamBeginCapture%' "
        "OR s.value LIKE 'cu%StreamEndCapture%') "
        f"AND (:process IS NULL OR {_PROCESS.format('k.globalTid')} = :process) ORDER BY k.start"
    )


def diagnostics(database: Database) -> str | None:
    """Return the query for what the profiler remarked of a process or of none.

    The texts hold paths and are not kept.
    """
    if not database.has(DIAGNOSTICS, "text"):
        return None
    if not database.has(DIAGNOSTICS, "globalPid"):
        return f"SELECT text FROM {DIAGNOSTICS}"
    return (
        f"SELECT text FROM {DIAGNOSTICS} WHERE :process IS NULL OR globalPid IS NULL "
        f"OR globalPid <= 0 OR {_PROCESS.format('globalPid')} = :process"
    )
