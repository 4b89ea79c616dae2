"""rocprofv3's own files, told by how they begin; their readers are imported where one is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fp8verify.trace.formats import Glance, Reading, Source
    from fp8verify.trace.tables import Trace

NAME = "rocprofv3"
CSV_ENDING = "_kernel_trace.csv"
_CSV_SIGNS = (b"kernel_name", b"start_timestamp", b"end_timestamp")
_JSON_KEY = b'"rocprofiler-sdk-tool"'


class RocprofCsvFormat:
    """`rocprofv3 --kernel-trace --output-format csv`."""

    name = NAME
    suffixes = (CSV_ENDING, f"{CSV_ENDING}.gz")

    def probe(self, head: bytes, name: str) -> bool:
        """Whether the header of a kernel trace begins, or a file is called like one."""
        header = head.partition(b"\n")[0].lower()
        return all(sign in header for sign in _CSV_SIGNS) or name.endswith(self.suffixes)

    def glance(self, source: Source) -> Glance:
        """Look for the header."""
        from fp8verify.trace.rocprof import csv_reader

        return csv_reader.glance(source)

    def read(self, source: Source, how: Reading) -> Trace:
        """Read the kernels of one process, and what else was recorded of it."""
        from fp8verify.trace.rocprof import csv_reader

        return csv_reader.read(source, how)


class RocprofJsonFormat:
    """`rocprofv3 --output-format json`."""

    name = NAME
    suffixes = (".json", ".json.gz", ".json.zst")

    def probe(self, head: bytes, name: str) -> bool:  # noqa: ARG002
        """Whether the one key begins under which everything is."""
        return head.lstrip(b"{ \t\r\n").startswith(_JSON_KEY)

    def glance(self, source: Source) -> Glance:
        """Read it for the processes in it."""
        from fp8verify.trace.rocprof import json_reader

        return json_reader.glance(source)

    def read(self, source: Source, how: Reading) -> Trace:
        """Read one process."""
        from fp8verify.trace.rocprof import json_reader

        return json_reader.read(source, how)
