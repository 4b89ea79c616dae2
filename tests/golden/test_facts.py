"""Every fact of every report and of some comparisons: none changes unseen.

`captures/` has a file for each capture and each comparison. This is the one freeze of all that is
worked out: what must be said of a run, tests state themselves.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fp8verify
from tests.captures import CAPTURES, ROOT, report_of
from tests.golden.facts import (
    assert_facts,
    changed,
    complaint,
    facts,
    facts_of_report,
)

GOLDENS = Path(__file__).parent / "captures"
NUMERICS = ROOT.parent / "examples" / "data" / "cpu_numerics_outlier"
PAIRS = (
    ("bf16_width4096", "fp8_width4096"),
    ("bf16_compiled", "fp8_accelerate"),
    ("fp8_layers_compiled", "fp8_muon"),
    ("ddp_one_rank_bf16", "fsdp_fp8_all_gather"),
    ("fp8_te_modules_delayed", "fp8_te_modules_block"),
)


@pytest.mark.parametrize("name", [*CAPTURES, NUMERICS.name])
def test_the_facts_of_a_capture_are_the_golden_ones(name: str) -> None:
    if name == NUMERICS.name:
        report = fp8verify.inspect(NUMERICS)
    else:
        report = report_of(name)
    found = facts_of_report(json.loads(report.to_json()))
    assert_facts(GOLDENS / f"{name}.txt", found)


@pytest.mark.parametrize("pair", PAIRS, ids="_against_".join)
def test_the_facts_of_a_comparison_are_the_golden_ones(pair: tuple[str, str]) -> None:
    found = fp8verify.compare(*(ROOT / name for name in pair))
    document = json.loads(found.to_json())
    assert_facts(GOLDENS / f"{'_against_'.join(pair)}.txt", facts(document))


# -- what a failing golden says -------------------------------------------------------------------


def test_a_fact_that_changed_is_shown_with_both_values() -> None:
    before = ["verdict = ACTIVE", "exit_code = 0", "gone = 1"]
    after = ["verdict = PARTIAL", "exit_code = 0", "new = 2"]
    assert list(changed(before, after)) == [
        "  - verdict = ACTIVE\n  + verdict = PARTIAL",
        "  - gone = 1",
        "  + new = 2",
    ]


def test_ten_facts_are_shown_and_the_others_counted(tmp_path: Path) -> None:
    before = [f"fact {number} = 1" for number in range(14)]
    after = [f"fact {number} = 2" for number in range(14)]
    said = complaint(tmp_path / "a.txt", "\n".join(before), "\n".join(after))
    assert said.startswith("14 facts of ")
    assert "+ fact 9 = 2\n  … and 4 more\n" in said
    assert "fact 10" not in said


def test_rows_of_lists_are_named_by_what_tells_them_apart() -> None:
    document = {"legs": [{"leg": "wgrad", "kernels": {"fp8": 2, "bf16": 0}}], "x": None}
    assert facts(document) == {"legs.wgrad.kernels.fp8": "2"}
