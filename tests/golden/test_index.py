"""The index of captures agrees with the folder and with inspect; test_captures holds the truth."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.captures import CAPTURES, ROOT, report_of

INDEX: dict[str, Any] = json.loads((ROOT / "index.json").read_text(encoding="utf-8"))
ROWS: list[dict[str, Any]] = INDEX["captures"]


def test_the_index_has_every_capture_once() -> None:
    assert [row["name"] for row in ROWS] == CAPTURES
    assert (INDEX["schema"], INDEX["licence"]) == (1, "Apache-2.0")
    assert len({tuple(row) for row in ROWS}) == 1  # the same keys everywhere


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_row_is_true_of_its_folder_and_of_its_report(row: dict[str, Any]) -> None:
    folder, report = ROOT / row["path"], report_of(row["name"])
    found = {
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    }
    assert set(row["files"]) == found - {"expected.json"}
    assert row["command"] is None or (ROOT.parent / row["command"].split()[0]).is_file()
    assert {
        "verdict": report.verdict.value,
        "exit_code": report.exit_code,
        "fp8_share_of_gemm_time": pytest.approx(
            report.gemm.fp8_share_of_time, abs=2e-6
        ),
    } == row["truth"]
    assert (len(report.ranks), report.environment.gpu) == (row["ranks"], row["gpu"])
    meta = folder / "rank0.meta.json"
    recorded = json.loads(meta.read_text())["environment"] if meta.exists() else {}
    for package, version in row["versions"].items():
        assert recorded.get(package, version) == version
        assert re.fullmatch(r"\d+\.\d+\.\d+(\+\w+)?", version)
