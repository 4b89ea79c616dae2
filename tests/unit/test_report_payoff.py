"""Whether FP8 pays: the word, the rank that it is about, and what the text shows of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from fp8verify import Report, inspect
from fp8verify.report.forms import render
from fp8verify.report.payoff import payoff
from tests.captures import ROOT
from tests.hand_built import BF16, FP32, TraceBuilder, present
from tests.unit.test_communication import GATHER, MB, SCATTER, collective
from tests.unit.test_fp8_overhead import COPY, INSIDE


@pytest.fixture(scope="module")
def report() -> Report:
    return inspect(ROOT / "fp8_compiled")


def _gaining(report: Report, *speedups: float) -> Report:
    rank = report.ranks[0]
    gains = [
        replace(present(rank.payoff), speedup_estimate=speedup) for speedup in speedups
    ]
    ranks = tuple(
        replace(rank, rank=number, payoff=gain) for number, gain in enumerate(gains)
    )
    return replace(report, ranks=ranks)


@pytest.mark.parametrize(
    ("speedup", "word"),
    [(1.18, "probably faster"), (1.02, "about even"), (0.7, "probably slower")],
)
def test_the_word_follows_from_the_estimate(
    report: Report, speedup: float, word: str
) -> None:
    found = present(payoff(_gaining(report, speedup)))
    assert found.speedup == speedup
    assert found.text.startswith(
        f"{word}: GPU kernels about {speedup:.2f}x BF16 (estimate)"
    )


def test_a_run_that_is_not_finite_is_not_called_faster(
    report: Report, tmp_path: Path
) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1 loss 2.5 grad_norm=nan\nstep 2 loss 2.5 grad_norm=nan\n")
    found = present(payoff(inspect(ROOT / "fp8_compiled", log=log)))
    assert found.speedup == present(payoff(report)).speedup
    assert "faster" not in found.text
    assert found.text.endswith(
        "(estimate), but steps that are not finite train nothing"
    )


def test_of_several_ranks_the_one_that_gains_least_counts(report: Report) -> None:
    found = present(payoff(_gaining(report, 1.3, 0.8, 1.2)))
    said = "probably slower: GPU kernels about 0.80x to 1.30x BF16 (estimate, by rank)"
    assert found.text.startswith(said)


def test_without_fp8_it_says_what_fp8_could_do() -> None:
    found = present(payoff(inspect(ROOT / "bf16_compiled")))
    assert found.speedup is None
    assert "FP8 could speed up GPU work by at most" in found.text


@pytest.fixture
def diagnosed(build: TraceBuilder, tmp_path: Path) -> Report:
    build.step(1).linear(64, 48, 16, fp8=True).linear(64, 48, 16, fp8=True)
    build.step(2).linear(64, 32000, 16, fp8=True)
    build.launch(COPY, "aten::copy_", types=(FP32, BF16), parents=INSIDE, us=15)
    collective(build, GATHER, "Byte", MB, 2 * MB)
    collective(build, SCATTER, "Float", 2 * MB, MB)
    return inspect(build.write(tmp_path / "trace.json"))


def test_a_glance_has_a_line_for_the_gain_and_one_for_the_network(
    diagnosed: Report,
) -> None:
    text = " ".join(render(diagnosed, "text", verbose=True).split())
    assert "; the GPU is idle for 89% of the window" in text
    assert "1 of 1 MB all-gathered in FP8 (1.00 bytes a parameter)" in text


def test_tables_are_for_those_who_ask(diagnosed: Report) -> None:
    brief_text, whole = (render(diagnosed, "text", verbose=v) for v in (False, True))
    assert "[no-optimizer-step]" in brief_text
    for part in ("outputs x inputs", "With gradient accumulation"):
        assert part not in brief_text
        assert part in whole
