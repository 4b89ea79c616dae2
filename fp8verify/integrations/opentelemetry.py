"""Scalars of windows for OpenTelemetry."""

from __future__ import annotations

from typing import Any

from fp8verify.integrations.requires import requires
from fp8verify.record.live.line import Line, scalars_in
from fp8verify.record.live.scalars import SCALARS


class OpenTelemetrySink:
    """Sets a gauge for each scalar, with the verdict as an attribute.

    Args:
        target: a meter provider; the endpoint of a collector that speaks OTLP over HTTP; or "" for
            the program's own provider.
    """

    def __init__(self, target: Any = "") -> None:
        with requires("otel"):
            from opentelemetry import metrics
        self._owned = isinstance(target, str) and target != ""
        if isinstance(target, str):
            target = _provider(target) if target else metrics.get_meter_provider()
        self._provider = target
        meter = target.get_meter("fp8verify")
        self._gauges = {
            scalar.name: meter.create_gauge(scalar.name.replace("/", "."), description=scalar.says)
            for scalar in SCALARS
        }

    def write(self, line: Line) -> None:
        """Set the gauges."""
        for name, value in scalars_in(line).items():
            self._gauges[name].set(value, {"verdict": line["verdict"]})

    def close(self) -> None:
        """Send what is left if the provider is ours."""
        if self._owned:
            self._provider.shutdown()


def _provider(endpoint: str) -> Any:
    with requires("otel"):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    return MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(endpoint))])
