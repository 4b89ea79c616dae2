"""The axes of the page's pictures."""

from __future__ import annotations

import pytest

from fp8verify.report.charts import ticks


@pytest.mark.parametrize(
    ("total", "labels"),
    [
        (19.79, ["0", "5", "10", "15 ms"]),
        (61.0, ["0", "20", "40", "60 ms"]),
        # "25 ms" ends at the axis' end and would run into the 20.
        (25.05, ["0", "5", "10", "15", "25 ms"]),
        (0.0, []),
    ],
)
def test_one_label_has_the_unit_and_lies_upon_no_other(total: float, labels: list[str]) -> None:
    assert [tick.label for tick in ticks(total, " ms")] == labels
