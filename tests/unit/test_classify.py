"""Name and operator together: who decides, who is silent, and what they disagree about."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from fp8verify.kernels import Classification, classify, decode
from fp8verify.terms import OpContext

TYPES = {"bf16": "c10::BFloat16", "fp16": "c10::Half", "fp32": "float", "int8": "signed char",
         "e4m3": "c10::Float8_e4m3fn", "e5m2": "c10::Float8_e5m2",
         "e8m0": "c10::Float8_e8m0fnu"}  # fmt: skip
INPUT = re.compile(r"(\w+)(?:\[([\d,]*)\])?")


def names_and_operators() -> list[dict[str, str]]:
    """Return the rows of names_and_operators.csv: a name, its operator or none, and why."""
    with (
        Path(__file__)
        .with_name("names_and_operators.csv")
        .open(encoding="utf-8") as table
    ):
        return list(csv.DictReader(table))


def classified(row: dict[str, str]) -> Classification:
    inputs = INPUT.findall(row["inputs"])
    dims = tuple(tuple(map(int, filter(None, shape.split(",")))) for _, shape in inputs)
    types = tuple(TYPES[name] for name, _ in inputs)
    op = (
        OpContext(name=row["operator"], types=types, dims=dims)
        if row["operator"]
        else None
    )
    return classify(decode(row["name"]), op)


@pytest.mark.parametrize("row", names_and_operators(), ids=lambda row: row["why"])
def test_name_and_operator_together_say(row: dict[str, str]) -> None:
    found = classified(row)
    notes = ", disputed" * bool(found.conflict) + ", split K" * found.split_k
    scaling = (
        f", {found.scaling.value}" if "[" in row["inputs"] and found.scaling else ""
    )
    said = (
        f"{found.role.value} {found.precision.value} by {found.source}{scaling}{notes}"
    )
    assert said == row["said"]


def test_a_dispute_shows_both_statements() -> None:
    disputed = [
        found.conflict or "" for found in map(classified, names_and_operators())
    ]
    said = "the name says bf16 (nvjet type code tst: A bf16 × B bf16 -> bf16), "  # noqa: RUF001
    assert (
        f"{said}the operator aten::_scaled_mm says fp8 (inputs {TYPES['e4m3']}, {TYPES['e4m3']})"
        in disputed
    )
    assert any(words.endswith("aten::copy_ multiplies nothing") for words in disputed)
