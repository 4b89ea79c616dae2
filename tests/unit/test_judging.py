"""One judge: the same run under the same policy gets the same verdict, whoever asks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from fp8verify import Policy, Report, assert_fp8_active, assert_gemm_precision, inspect
from fp8verify.model.verdict import CountedGemms, ExpectedReport, Finding
from fp8verify.report import REPORT_FORMS
from fp8verify.report.forms import render
from fp8verify.terms import Severity, Verdict
from fp8verify.verdict.findings import merge_findings
from fp8verify.verdict.gates import Baseline, gated, regressions
from fp8verify.verdict.judge import judge, judge_rank, with_exit_code
from fp8verify.verdict.rank_summary import RankSummary
from tests.hand_built import BF16, BF16_KERNEL, CLAIM, FP8, FP8_KERNEL, TraceBuilder

UNKNOWN_KERNEL = "triton_tem_fused_mm_3"


def gemms(
    build: TraceBuilder, *, fp8: float = 0, high: float = 0, unknown: float = 0
) -> TraceBuilder:
    """Launch GEMMs of so many µs in each precision."""
    if fp8:
        build.launch(FP8_KERNEL, "aten::_scaled_mm", types=(FP8, FP8), us=fp8)
    if high:
        build.launch(BF16_KERNEL, types=(BF16, BF16), us=high)
    if unknown:
        build.launch(UNKNOWN_KERNEL, None, us=unknown)
    return build


LESS = Policy(min_share=0.25)


def summary(*, short: bool) -> Any:
    """Return a rank that may fall short of a share."""
    return SimpleNamespace(
        falls_short=lambda _: short,
        lacks_most=False,
        counted=CountedGemms(expected=10, lacking=0),
        kernels={"fp8": 1},
    )


@pytest.mark.parametrize(
    ("verdict", "short", "errors", "policy", "expected"),
    [
        ("ACTIVE", False, "", Policy(), (0, False, "")),
        ("PARTIAL", True, "", Policy(), (0, False, "no error found; --strict fails it")),
        ("PARTIAL", False, "", Policy(strict=True), (1, True, "--strict does not accept PARTIAL")),
        ("ACTIVE", False, "", Policy(strict=True), (0, False, "")),
        ("ACTIVE", True, "", Policy(), (0, False, "")),
        ("ACTIVE", False, "", LESS, (0, False, "")),
        ("ACTIVE", True, "", LESS, (1, True, "--min-share 25% is not met")),
        ("PARTIAL", True, "", Policy(expected=True), (1, True, "--min-share expected is not met")),
        ("ACTIVE", False, "a", Policy(), (1, True, "a is an error")),
        ("ACTIVE", True, "baba", LESS, (1, True, "b, a are errors")),
        ("ACTIVE", True, "abc", Policy(), (1, True, "a, b and 1 more are errors")),
        ("INACTIVE", True, "a", LESS, (1, True, "the verdict is INACTIVE")),
        ("INCONCLUSIVE", True, "", LESS, (3, True, "the verdict is INCONCLUSIVE")),
        ("INCONCLUSIVE", False, "", Policy(exit_zero=True),
         (0, True, "--exit-zero; without it 3: the verdict is INCONCLUSIVE")),
        ("PARTIAL", False, "", Policy(exit_zero=True),
         (0, False, "no error found; --strict fails it")),
    ],
)  # fmt: skip
def test_the_exit_code_and_why(
    verdict: str,
    short: bool,
    errors: str,
    policy: Policy,
    expected: tuple[int, bool, str],
    build: TraceBuilder,
) -> None:
    rank: Any = summary(short=short)
    grave = [replace(finding(0), code=code, severity=Severity.ERROR) for code in errors]
    report = replace(
        build.report(), verdict=Verdict(verdict), findings=(*grave, finding(0))
    )
    judged = with_exit_code(report, [rank], policy)
    assert (judged.exit_code, judged.fails, judged.exit_reason) == expected


@pytest.mark.parametrize(
    ("lacking", "words"), [(5, ""), (6, ", though 6 of 10 GEMMs lack FP8")]
)
def test_a_run_that_lacks_most_does_not_pass_without_a_word(
    build: TraceBuilder, lacking: int, words: str
) -> None:
    ran = build.linear(64, 32, 16, fp8=True).report()
    report = replace(ran, verdict=Verdict.PARTIAL, findings=())
    counted = CountedGemms(expected=10, lacking=lacking)
    rank = replace(ran.ranks[0], counted=counted)
    judged = with_exit_code(report, [RankSummary(rank, report.measure)], Policy())
    assert judged.exit_reason == f"no error found{words}; --strict fails it"


@pytest.mark.parametrize(
    ("min_share", "verdict"), [(0.4, "ACTIVE"), (0.5, "INCONCLUSIVE"), (0.6, "PARTIAL")]
)
def test_an_assertion_agrees_with_the_inspection_under_the_same_share(
    build: TraceBuilder, tmp_path: Path, min_share: float, verdict: str
) -> None:
    trace = gemms(build, fp8=45, high=45, unknown=10).write(tmp_path / "trace.json")
    assert inspect(trace, policy=Policy(min_share=min_share)).verdict == verdict
    if verdict == "ACTIVE":
        assert_fp8_active(inspect(trace), min_share=min_share)
    else:
        with pytest.raises(AssertionError, match=f"FP8 is {verdict}"):
            assert_fp8_active(
                inspect(trace, policy=Policy(min_share=0.4)), min_share=min_share
            )


def test_an_assertion_names_the_longest_kernels_and_the_ranks(tmp_path: Path) -> None:
    for rank in range(2):
        build = TraceBuilder(rank=rank, world=2).linear(64, 32, 16, fp8=bool(rank))
        for number in range(7):
            build.launch(
                f"{BF16_KERNEL}{number}", types=(BF16, BF16), us=10 * number + 10
            )
        build.write(tmp_path / f"rank{rank}.json")
    with pytest.raises(AssertionError, match="rank 1: "):
        assert_fp8_active(inspect(tmp_path))
    with pytest.raises(AssertionError) as failed:
        assert_gemm_precision(inspect(tmp_path))
    lines = str(failed.value).splitlines()[1:]
    assert [float(line.split()[0]) for line in lines[::2]] == [0.07, 0.06, 0.05]
    for words in ({"precision": "fp9"}, {"leg": "forward"}):
        with pytest.raises(ValueError, match=r"unknown .* one of"):
            assert_gemm_precision(inspect(tmp_path), **words)  # type: ignore[arg-type]
    for share, meant in (
        (100, r" Did you mean 100%\?"),
        (101, ""),
        (-1, ""),
        ("150%", ""),
    ):
        with pytest.raises(ValueError, match=rf"100%\)\.{meant}$"):
            Policy(min_share=share)


def test_an_assertion_on_one_rank_names_what_costs_the_verdict_alone(
    build: TraceBuilder,
) -> None:
    build.step(1).linear(64, 32, 16, fp8=True).linear(64, 32, 16, fp8=True)
    report = build.step(2).linear(64, 32, 16, fp8=False).report()
    with pytest.raises(AssertionError, match="step-without-fp8") as failed:
        assert_fp8_active(report)
    assert "rank 0" not in str(failed.value)
    (blocking,) = (found for found in report.findings if found.verdict is not None)
    assert (blocking.code, blocking.verdict) == ("step-without-fp8", Verdict.PARTIAL)
    assert (report.ranks[0].shortfall, report.verdict) == (
        blocking.message,
        Verdict.PARTIAL,
    )


@pytest.mark.parametrize(
    "second", [Policy(), Policy(min_share=0.4), Policy(strict=True)], ids=str
)
@pytest.mark.parametrize(
    "first", [Policy(min_share=0.9), Policy(exit_zero=True)], ids=str
)
@pytest.mark.parametrize("log", ["", CLAIM.replace("TENSORWISE", "ROWWISE_WITH_GW_HP")])
def test_judging_again_is_inspecting_again(
    tmp_path: Path, log: str, first: Policy, second: Policy
) -> None:
    (tmp_path / "train.log").write_text(log)
    for name, low, others in (
        ("mixed", 10, {"high": 45}),
        ("open", 10, {"unknown": 10}),
    ):
        for rank, fp8 in enumerate((45, low)):
            build = gemms(TraceBuilder(rank=rank, world=2).step(1), fp8=fp8, **others)
            gemms(build.step(2), fp8=50, high=50).write(
                tmp_path / name / f"rank{rank}.json"
            )

        def look(policy: Policy, run: Path = tmp_path / name) -> Report:
            return inspect(run, log=tmp_path / "train.log", policy=policy)

        assert judge(look(first), second) == look(second)


def test_judging_again_keeps_what_a_baseline_found(build: TraceBuilder) -> None:
    report = gemms(build, fp8=60, high=40).report()
    baseline = Baseline(fp8verify_baseline=1, fp8_share=0.9)
    held = gated(report, regressions(report, baseline, 0.02))
    assert judge(held, Policy(min_share=0.6)) == held
    assert judge(held, Policy(exit_zero=True)).exit_code == 0


# -- ranks and layers as data -----------------------------------------------------------------


def finding(rank: int, *layers: str) -> Finding:
    return Finding(
        code="leg-not-fp8",
        severity=Severity.WARNING,
        message=f"{rank + 1} ms",
        hint="",
        ranks=(rank,),
        layers=layers,
        per_rank=True,
    )


def test_findings_alike_are_one_with_the_ranks_and_layers_of_all() -> None:
    (one,) = merge_findings(
        [[finding(0, "a")], [finding(1, "b", "a")], [], [finding(3)]]
    )
    assert (one.ranks, one.layers) == ((0, 1, 3), ("a", "b"))
    assert one.sentence(alone=False) == "ranks 0-1, 3: 1 ms (rank 0)"
    assert merge_findings([[finding(0)]]) == [finding(0)]
    same = merge_findings([[finding(0)], [replace(finding(0), ranks=(1,))]])
    assert [found.sentence(alone=False) for found in same] == ["ranks 0-1: 1 ms"]


@pytest.mark.parametrize(
    "form", [name for name in REPORT_FORMS if name not in ("csv", "json")]
)
def test_every_form_names_the_rank_of_a_finding(form: str, tmp_path: Path) -> None:
    for rank in (0, 1):
        build = TraceBuilder(rank=rank, world=2).linear(64, 32, 16, fp8=True)
        gemms(build, unknown=rank).write(tmp_path / f"rank{rank}.json")
    report = inspect(tmp_path)
    (found,) = [found for found in report.findings if found.code == "unknown-gemm"]
    assert (found.ranks, found.per_rank) == ((1,), True)
    assert not found.message.startswith("rank")
    assert "rank 1: 3.2%" in " ".join(render(report, form).split())


def test_less_than_was_expected_is_not_active_though_nothing_accounts_for_it(
    build: TraceBuilder,
) -> None:
    report = build.linear(64, 48, 16, fp8=True).report()
    expected = ExpectedReport(
        share_of_flops=0.9, measured_share_of_flops=0.7, left_out=(), stated=True
    )
    rank = replace(report.ranks[0], expected=expected)
    opinion = judge_rank(RankSummary(rank, report.measure), Policy())
    said = "70% of GEMM FLOPs ran in FP8, where 90% was expected"
    assert opinion[:2] == ("INCONCLUSIVE", said)
