"""The index of captures agrees with the folder, with the expectations and with inspect."""

from __future__ import annotations

import gzip
import json
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.golden.expectations import KINETO, KNOWN, ROOT
from tests.golden.reports import report_of

INDEX: dict[str, Any] = json.loads((ROOT / "index.json").read_text(encoding="utf-8"))
CAPTURES: list[dict[str, Any]] = INDEX["captures"]
each = pytest.mark.parametrize("row", CAPTURES, ids=lambda row: row["name"])


def test_the_index_has_every_capture_once() -> None:
    assert [row["name"] for row in CAPTURES] == sorted(KNOWN)
    assert (INDEX["schema"], INDEX["licence"]) == (1, "Apache-2.0")
    assert len({tuple(row) for row in CAPTURES}) == 1  # the same keys everywhere


@each
def test_the_files_are_those_of_the_folder(row: dict[str, Any]) -> None:
    folder = ROOT / row["path"]
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert set(row["files"]) == found - {"expected.json"}


@each
def test_the_script_that_made_a_capture_exists(row: dict[str, Any]) -> None:
    assert row["command"] is None or (ROOT.parent / row["command"].split()[0]).is_file()


@each
def test_the_truth_is_what_the_workload_says(row: dict[str, Any]) -> None:
    known = json.loads((ROOT / row["path"] / "expected.json").read_text(encoding="utf-8"))
    gemm_us = [rank["gemm_us"] for rank in known["ranks"]]
    fp8 = sum(us.get("fp8", 0.0) for us in gemm_us)
    assert row["truth"] == {
        "verdict": known["verdict"],
        "exit_code": known["exit_code"],
        "fp8_share_of_gemm_time": round(fp8 / sum(sum(us.values()) for us in gemm_us), 6),
    }


@each
def test_inspect_agrees_with_the_index(row: dict[str, Any]) -> None:
    report = report_of(row["name"])
    assert {
        "verdict": report.verdict.value,
        "exit_code": report.exit_code,
        "fp8_share_of_gemm_time": pytest.approx(report.gemm.fp8_share_of_time, abs=2e-6),
    } == row["truth"]
    assert (len(report.ranks), report.environment.gpu) == (row["ranks"], row["gpu"])


@pytest.mark.parametrize("row", [row for row in CAPTURES if row["name"] in KINETO], ids=str)
def test_gpu_and_date_are_those_of_the_trace(row: dict[str, Any]) -> None:
    with gzip.open(ROOT / row["path"] / "rank0.json.gz") as file:
        trace = json.load(file)
    assert {device["name"] for device in trace["deviceProperties"]} == {row["gpu"]}
    first = next(event["ts"] for event in trace["traceEvents"] if event.get("cat") == "kernel")
    began = datetime.fromtimestamp(trace["baseTimeNanoseconds"] / 1e9 + first / 1e6, timezone.utc)
    assert f"{began.date()}" == row["recorded"]


@each
def test_versions_are_those_that_the_run_recorded(row: dict[str, Any]) -> None:
    found = Path(ROOT / row["path"] / "rank0.meta.json")
    recorded = json.loads(found.read_text())["environment"] if found.exists() else {}
    for package, version in row["versions"].items():
        assert recorded.get(package, version) == version
        assert re.fullmatch(r"\d+\.\d+\.\d+(\+\w+)?", version)
