"""Every capture gives the same report, byte for byte, through a slow and plain reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8verify import inspect
from fp8verify.report.forms import to_json
from fp8verify.trace import find_traces, read_trace
from tests.golden.reports import report_of
from tests.unit.reference_reader import reference_trace

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "traces"


def captures() -> list[Path]:
    """Return every shipped capture of Kineto."""
    return sorted(path for path in SHIPPED.iterdir() if any(path.glob("rank*.json.gz")))


@pytest.mark.parametrize("path", captures(), ids=lambda path: path.name)
def test_report_is_that_of_the_reference_reader(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = to_json(report_of(path.name))
    read = []

    def slow(path: Path, *, name: str | None = None, layers: bool = False, **_: object) -> object:
        if layers:  # the step that names layers, which the reference does not know
            return read_trace(path, name=name, layers=True)
        read.append(path)
        return reference_trace(path, name=name)

    monkeypatch.setattr("fp8verify.analysis.fleet.read_trace", slow)
    assert to_json(inspect(path)) == report
    assert len(read) == len(find_traces(path))
