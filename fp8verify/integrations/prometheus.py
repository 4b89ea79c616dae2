"""Scalars of windows for Prometheus: a text file for node_exporter's textfile collector."""

from __future__ import annotations

from pathlib import Path

from fp8verify.errors import UsageError
from fp8verify.integrations.requires import requires
from fp8verify.record.live.line import Line, scalars_in
from fp8verify.record.live.scalars import SCALARS
from fp8verify.record.live.sinks import prepare_folder

VERDICT = "fp8_verdict"


class PrometheusSink:
    """Replaces a file by the gauges of the latest line.

    A scalar fp8/tax is the gauge `fp8_tax`; `fp8_verdict{verdict="ACTIVE"} 1` is the verdict.
    """

    def __init__(self, path: str) -> None:
        with requires("prometheus"):
            import prometheus_client
        if not path:
            raise UsageError("prometheus: names no file.", "Such as prometheus:fp8.prom.")
        prepare_folder(Path(path).parent)
        self._client = prometheus_client
        self._path = path
        self._says = {scalar.name: scalar.says for scalar in SCALARS}

    def write(self, line: Line) -> None:
        """Write the file, whole at once."""
        registry = self._client.CollectorRegistry()
        for name, value in scalars_in(line).items():
            says = self._says.get(name, name)
            self._client.Gauge(name.replace("/", "_"), says, registry=registry).set(value)
        step = self._client.Gauge("fp8_step", "the window's last step", registry=registry)
        step.set(line["step"] or 0)
        verdict = self._client.Gauge(VERDICT, "1 at the verdict", ["verdict"], registry=registry)
        verdict.labels(line["verdict"]).set(1)
        self._client.write_to_textfile(self._path, registry)

    def close(self) -> None:
        """Nothing is left open; the file stays."""
