"""Nsight Systems' own files (.nsys-rep), which only `nsys export` can read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fp8verify.errors import InputError
from fp8verify.trace.places import is_remote

if TYPE_CHECKING:
    from pathlib import Path

    from fp8verify.trace.formats import Glance, Reading, Source
    from fp8verify.trace.tables import Trace

SUFFIX = ".nsys-rep"


class NsysReportFormat:
    """A report of Nsight Systems, exported by the user's own nsys."""

    name = "Nsight Systems"
    suffixes = (SUFFIX,)

    def probe(self, head: bytes, name: str) -> bool:  # noqa: ARG002
        """Whether the file is called like a report; its bytes are not documented."""
        return name.endswith(SUFFIX)

    def glance(self, source: Source) -> Glance:
        """Export it; the processes in it are only known then."""
        from fp8verify.trace.nsys.report_file import export
        from fp8verify.trace.readers import glance_at

        exported = export(_path(source))
        return glance_at(exported)[1]._replace(instead=exported)

    def read(self, source: Source, how: Reading) -> Trace:
        """Export it and read that."""
        from fp8verify.trace.nsys.report_file import export
        from fp8verify.trace.readers import read_trace

        exported = export(_path(source))
        return read_trace(exported, name=source.name, layers=how.layers, part=how.part)


def _path(source: Source) -> Path:
    if source.path is None or is_remote(source.path):
        raise InputError(
            f"{source.name} is a report of Nsight Systems that is not on this machine's disk.",
            "Download it, or export it where it is: nsys export --type sqlite.",
        )
    return source.path
