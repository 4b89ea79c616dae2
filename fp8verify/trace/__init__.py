"""Traces: files to columns, with every kernel followed back to its operator and step."""

from fp8verify.trace.folder import NoTraceError, TraceFile, TraceFiles, find_traces
from fp8verify.trace.readers import read_open_trace, read_trace
from fp8verify.trace.tables import Health, Kernels, Step, Trace

__all__ = [
    "Health",
    "Kernels",
    "NoTraceError",
    "Step",
    "Trace",
    "TraceFile",
    "TraceFiles",
    "find_traces",
    "read_open_trace",
    "read_trace",
]
