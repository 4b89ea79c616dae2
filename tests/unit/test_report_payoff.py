"""Whether FP8 pays: the word, and the rank that it is about."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fp8verify import Report, inspect
from fp8verify.report.forms import brief
from fp8verify.report.sentences import payoff, payoff_text
from tests.golden.expectations import ROOT


@pytest.fixture(scope="module")
def report() -> Report:
    return inspect(ROOT / "fp8_compiled")


def _gaining(report: Report, *speedups: float) -> Report:
    rank = report.ranks[0]
    assert rank.payoff is not None
    ranks = tuple(
        replace(rank, rank=number, payoff=replace(rank.payoff, speedup_estimate=speedup))
        for number, speedup in enumerate(speedups)
    )
    return replace(report, ranks=ranks)


@pytest.mark.parametrize(
    ("speedup", "word"), [(1.18, "likely yes"), (1.02, "about even"), (0.7, "likely not")]
)
def test_the_word_follows_from_the_estimate(report: Report, speedup: float, word: str) -> None:
    found = payoff(_gaining(report, speedup))
    assert found is not None
    assert (found.word, found.speedup) == (word, speedup)
    assert found.text.startswith(f"{word}: kernels alone about {speedup:.2f}x as fast")


def test_of_several_ranks_the_one_that_gains_least_counts(report: Report) -> None:
    several = _gaining(report, 1.3, 0.8, 1.2)
    found = payoff(several)
    assert found is not None
    assert payoff_text(several, found).startswith(
        "rank 1, which gains least: likely not: kernels alone about 0.80x"
    )


def test_without_fp8_it_says_what_fp8_could_do() -> None:
    bf16 = inspect(ROOT / "bf16_compiled")
    found = payoff(bf16)
    assert found is not None
    assert found.speedup is None
    assert "FP8 could make GPU time at most" in found.text


def test_in_brief_a_report_is_four_lines_at_most(report: Report) -> None:
    lines = brief(report, "report.html").splitlines()
    assert lines[0].startswith("ACTIVE  ")
    assert [line.split()[0] for line in lines[1:]] == ["pays", "report"]
    assert lines[-1].endswith("report.html")


def test_a_report_prints_as_a_few_lines(report: Report) -> None:
    shown = repr(report)
    assert shown.startswith("Report: ACTIVE  ")
    assert len(shown.splitlines()) <= 4
