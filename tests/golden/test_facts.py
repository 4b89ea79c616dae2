"""Every fact of every report and of some comparisons: none changes unseen.

`captures/` has a file for each capture and each comparison. This is the one freeze of all that is
worked out: what must be said of a run, tests state themselves.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fp8verify
from fp8verify import Policy, Report
from fp8verify.verdict.gates import judge
from tests.captures import CAPTURES, ROOT, report_of
from tests.golden.facts import (
    Facts,
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


# What may be asked of a run: a verdict that only these change has facts too.
ASKED = {
    "--min-share 100%": Policy(min_share=1.0),
    "--min-share 90%": Policy(min_share=0.9),
    "--min-share 20%": Policy(min_share=0.2),
    "--min-share expected": Policy(expected=True),
}
OUTCOME = ("verdict", "exit_code", "reason")


def facts_of_capture(name: str) -> Facts:
    """Return the facts of a capture, among the first those of what may be asked of it."""
    if name == NUMERICS.name:
        report = fp8verify.inspect(NUMERICS)
    else:
        report = report_of(name)
    found = facts_of_report(json.loads(report.to_json()))
    first = {key: found.pop(key) for key in OUTCOME if key in found}
    return first | facts_asked_of(report, first) | found


def facts_asked_of(report: Report, known: Facts) -> Facts:
    """Return the outcome of a report where more or less is asked of it, if it is another one."""
    found: Facts = {}
    for option, policy in ASKED.items():
        judged = json.loads(judge(report, policy).to_json())
        for key, value in facts({key: judged[key] for key in OUTCOME}).items():
            if known.get(key) != value:
                found[f"{option}: {key}"] = value
    return found


@pytest.mark.parametrize("name", [*CAPTURES, NUMERICS.name])
def test_the_facts_of_a_capture_are_the_golden_ones(name: str) -> None:
    assert_facts(GOLDENS / f"{name}.txt", facts_of_capture(name))


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
