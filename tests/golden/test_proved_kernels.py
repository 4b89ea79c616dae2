"""Every label in the table that scripts/prove_names.py wrote is what the decoder says today."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fp8verify.kernels import decode
from fp8verify.prove import SOURCES, judge
from fp8verify.terms import Precision

COUNTED = sorted({source for row in SOURCES.values() for source in row})


def _rows() -> list[dict[str, str]]:
    with (Path(__file__).parent / "proved_kernels.csv").open(encoding="utf-8") as table:
        return list(csv.DictReader(table))


@pytest.mark.parametrize("row", _rows(), ids=lambda row: row["kernel"][:60])
def test_the_counters_confirm_what_a_name_says(row: dict[str, str]) -> None:
    found = decode(row["kernel"])
    assert (found.role.value, found.precision.value) == (row["role"], row["precision"])
    operations = {source: int(row[source]) for source in COUNTED if row.get(source)}
    proof = judge(row["kernel"], operations, int(row["flops"]))
    assert proof is not None
    assert proof.agreement == row["agreement"]
    assert proof.agreement in ("agrees", "unclaimed", "not counted")


def test_fp8_and_bf16_are_proved() -> None:
    proved = {row["precision"] for row in _rows() if row["agreement"] == "agrees"}
    assert {Precision.FP8.value, Precision.BF16.value} <= proved
