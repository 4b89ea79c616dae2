"""Two runs held against each other, on the smallest traces that show each rule."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fp8verify import Report, inspect
from fp8verify.analysis.timeline import step_statistics
from fp8verify.comparison import compare_reports as compare
from fp8verify.comparison.measure import measure_runs
from fp8verify.comparison.speed import measure_speed, reason_of
from fp8verify.logs.losses import LossSeries
from fp8verify.model.comparison import Comparison, Outcome, Side
from fp8verify.model.steps import StepStatistics
from tests.hand_built import BF16, FP32, LEGS, TraceBuilder, present
from tests.unit.test_fp8_overhead import AMAX, COPY, INSIDE


class BusyBuilder(TraceBuilder):
    """Launches so that a kernel starts 10 µs after the one before it ends, if that is long."""

    def launch(self, *args: Any, us: float = 10.0, **more: Any) -> TraceBuilder:
        super().launch(*args, us=us, **more)
        self._clock += max(0.0, us + 10 - 100)
        return self


def run(
    folder: Path, *, fp8: bool, us: float, steps: int = 5, casts: str | None = None,
    cast_us: float = 0.0, n: int = 2048, m: int = 4096, filler: float = 0.0, marked: bool = True,
) -> Report:  # fmt: skip
    """A run of one layer a step; `casts` are eager or fused, `filler` is another kernel."""
    build = BusyBuilder()
    for step in range(steps):
        if marked:
            build.step(10 + step)
        if casts == "eager":
            build.launch(
                COPY, "aten::copy_", types=(FP32, BF16), parents=INSIDE, us=cast_us
            )
        elif casts == "fused":
            build.launch(AMAX, AMAX, us=cast_us)
        build.linear(m, n, 2048, fp8=fp8, us=us)
        if filler:
            build.launch("triton_poi_fused_add_0", "triton_poi_fused_add_0", us=filler)
    return inspect(build.write(folder / f"{len(list(folder.iterdir()))}.json"))


def sides(found: Comparison) -> tuple[Side, Side]:
    return present(found.baseline), present(found.candidate)


def causes(found: Comparison) -> list[str]:
    assert {finding.code for finding in found.findings} <= {"fp8-not-paying"}
    return [finding.message.split(":")[0] for finding in found.findings]


def test_faster_gemms_make_a_faster_step(tmp_path: Path) -> None:
    found = compare(run(tmp_path, fp8=False, us=400), run(tmp_path, fp8=True, us=200))
    assert found.gemm_speedup == pytest.approx(2.0)
    assert found.busy_speedup == pytest.approx(2.0)
    assert found.speedup == pytest.approx(2.0, abs=0.1)
    assert found.outcome is Outcome.FASTER
    assert found.exit_code == 0
    assert not found.findings
    assert not any("FP8 share" in note for note in found.notes)
    assert "GEMMs are 0.60 ms faster, the whole step 0.60 ms" in found.reason


def test_the_budget_of_a_side_adds_up_to_its_mean_step(tmp_path: Path) -> None:
    reports = (
        run(tmp_path, fp8=False, us=80, filler=50),
        run(tmp_path, fp8=True, us=40, casts="fused", cast_us=30, filler=20),
    )
    found = compare(*reports)
    for report, side in zip(reports, ("baseline_us", "candidate_us"), strict=True):
        times = [step.gpu_us or 0.0 for step in report.ranks[0].steps[1:]]
        total = sum(getattr(row, side) for row in found.budget)
        assert total == pytest.approx(sum(times) / len(times), abs=0.01)
    by_name = {row.name: row for row in found.budget}
    assert by_name["GEMM"].change_us == pytest.approx(-120)
    assert by_name["casts and scales"].candidate_us == pytest.approx(30)


def test_gemms_are_paired_by_layer_and_leg(tmp_path: Path) -> None:
    found = compare(run(tmp_path, fp8=False, us=80), run(tmp_path, fp8=True, us=40))
    assert {(p.leg, p.n, p.k, p.baseline_tokens) for p in found.gemms} == {
        (leg, 2048, 2048, 4096) for leg in LEGS
    }
    assert all(pair.speedup == pytest.approx(2.0) for pair in found.gemms)
    assert {(p.baseline_precision, p.candidate_precision) for p in found.gemms} == {
        ("bf16", "fp8")
    }
    assert [leg.speedup for leg in found.legs] == pytest.approx([2.0] * 3)


@pytest.mark.parametrize(
    ("casts", "n", "cause"),
    [
        ("eager", 2048, "unfused eager casts"),
        ("eager", 512, "unfused eager casts"),
        ("fused", 512, "small GEMMs (a side below 1024)"),
        ("fused", 2048, "costly casts"),
    ],
)
def test_casts_that_outweigh_the_gain_are_the_cause(
    tmp_path: Path, casts: str, n: int, cause: str
) -> None:
    before = run(tmp_path, fp8=False, us=20, n=n)
    found = compare(
        before, run(tmp_path, fp8=True, us=10, casts=casts, cast_us=90, n=n)
    )
    assert found.outcome is Outcome.SLOWER
    assert causes(found)[0] == cause
    assert (
        "tensorwise" not in found.findings[0].hint
    )  # its scaling by the kernels' names


def test_a_gpu_that_waits_longer_is_the_cause(tmp_path: Path) -> None:
    before = run(tmp_path, fp8=False, us=90, steps=6)
    found = compare(
        before, run(tmp_path, fp8=True, us=30, steps=6)
    )  # launches stay 100 µs apart
    assert found.outcome is not Outcome.FASTER
    assert causes(found) == ["launch-bound"]


def test_the_reason_names_both_steps(tmp_path: Path) -> None:
    found = compare(run(tmp_path, fp8=False, us=80), run(tmp_path, fp8=True, us=40))
    before, after = (side.step.mean_us / 1000 for side in sides(found))
    assert f"{after:.2f} ms per step, baseline {before:.2f} ms" in found.reason


def test_steps_alike_are_the_same(tmp_path: Path) -> None:
    found = compare(run(tmp_path, fp8=False, us=50), run(tmp_path, fp8=False, us=50))
    assert (found.outcome, found.speedup) == (Outcome.SAME, 1.0)
    assert found.interval == pytest.approx((0.98, 1.02), abs=0.002)
    assert found.steps_needed is None
    assert "the candidate's FP8 share is not above the baseline's" in found.notes
    assert not any("ranks" in note for note in found.notes)


def test_a_single_step_decides_and_accuses_nothing(tmp_path: Path) -> None:
    before = run(tmp_path, fp8=False, us=50, steps=1)
    found = compare(
        before, run(tmp_path, fp8=True, us=90, casts="eager", cast_us=900, steps=9)
    )
    assert (found.outcome, found.interval, found.findings) == (
        Outcome.UNDECIDED,
        None,
        (),
    )
    assert found.steps_needed == 5
    assert found.reason.endswith("undecided: a run has one step")


def test_gemms_that_became_slower_are_the_first_cause(tmp_path: Path) -> None:
    before = run(tmp_path, fp8=True, us=200, casts="fused", cast_us=50)
    found = compare(before, run(tmp_path, fp8=True, us=400, casts="fused", cast_us=50))
    assert (found.outcome, causes(found)) == (Outcome.SLOWER, ["slower GEMMs"])
    assert "2048x2048 wgrad 0.50x" in found.findings[0].message
    assert "they take 0.60 ms a step longer" in found.findings[0].message
    found = compare(
        before, run(tmp_path, fp8=True, us=400, casts="fused", cast_us=2000)
    )
    assert causes(found) == ["slower GEMMs", "costly casts"]


def test_another_batch_is_compared_at_equal_work(tmp_path: Path) -> None:
    found = compare(
        run(tmp_path, fp8=False, us=40, m=4096), run(tmp_path, fp8=True, us=40, m=8192)
    )
    assert found.work_ratio == pytest.approx(2.0)
    assert found.busy_speedup == found.gemm_speedup == pytest.approx(2.0)
    assert found.step_speedup == pytest.approx(1.0)
    assert found.speedup == pytest.approx(2.0)
    assert found.outcome is Outcome.FASTER
    assert "2.00x the GEMM FLOPs" in found.reason
    assert [pair.speedup for pair in found.gemms] == pytest.approx([2.0] * 3)


def test_different_models_cannot_be_compared(tmp_path: Path) -> None:
    found = compare(
        run(tmp_path, fp8=False, us=40, n=2048), run(tmp_path, fp8=True, us=40, n=512)
    )
    assert (found.outcome, found.exit_code) == (Outcome.NOT_COMPARABLE, 3)
    assert "different models" in found.reason


def test_a_run_without_gemms_cannot_be_compared(tmp_path: Path) -> None:
    build = (
        TraceBuilder()
        .step(1)
        .launch("triton_poi_fused_add_0", "triton_poi_fused_add_0")
    )
    empty = inspect(build.write(tmp_path / "empty.json"))
    found = compare(run(tmp_path, fp8=False, us=40), empty)
    assert (found.exit_code, found.reason) == (3, "no GEMM ran in the candidate")


def outside(mean_us: float, count: int = 40) -> StepStatistics:
    return present(
        step_statistics([[mean_us * (1 + 0.001 * (n % 3)) for n in range(count)]])
    )


def with_ranks(report: Report, *changes: dict[str, Any]) -> Report:
    """A report with its one rank under several numbers, each changed."""
    (rank,) = report.ranks
    ranks = tuple(replace(rank, rank=n, **change) for n, change in enumerate(changes))
    return replace(report, ranks=ranks)


def timed(
    count: int, mean_us: float, variation: float, each: float = 1.0
) -> StepStatistics:
    """Steps of this relative deviation, of which `each` is as good as an independent one."""
    spread = {"median_us": mean_us, "min_us": mean_us, "max_us": mean_us}
    return StepStatistics(
        count=count, left_out=0, mean_us=mean_us, deviation_us=variation * mean_us,
        effective=count * each, **spread,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "theirs", "work", "outcome", "needed"),
    [
        # Two recordings differ by 0.7 % each, however little their steps do.
        (timed(40, 100, 0), timed(40, 101, 0), 1.0, "SAME", None),
        (timed(40, 101, 0), timed(40, 100, 0), 1.0, "SAME", None),
        (timed(40, 104, 0), timed(40, 106, 0), 2.0, "FASTER", None),
        # At least 5 % apart is what the steps are to tell.
        (timed(40, 100, 0.1), timed(40, 103, 0.02), 1.0, "UNDECIDED", 105),
        (timed(40, 103, 0.1), timed(40, 100, 0.02), 1.0, "UNDECIDED", 105),
        (timed(6, 100, 0.1, 0.5), timed(6, 100, 0.1), 1.0, "UNDECIDED", 210),
        (timed(40, 100, 0.6), timed(40, 130, 0.6), 1.0, "UNDECIDED", 92),
        (timed(40, 200, 0.6), timed(40, 130, 0.6), 0.5, "UNDECIDED", 92),
        (timed(5, 100, 0.1), timed(5, 100, 0), 1.0, "UNDECIDED", 105),
        # Four steps do not tell how much they vary: 3 % is assumed.
        (timed(4, 100, 0.1), timed(4, 100, 0.1), 1.0, "UNDECIDED", 10),
        (timed(40, 100, 0.9), timed(40, 100, 0.9), 1.0, "UNDECIDED", 1000),
        # Two steps are the least that decide anything.
        (timed(3, 100, 0.001), timed(3, 50, 0.001), 1.0, "FASTER", None),
        (timed(2, 100, 0.001), timed(2, 50, 0.001), 1.0, "FASTER", None),
        (timed(2, 100, 0.03), timed(2, 95, 0.03), 1.0, "UNDECIDED", 9),
        (timed(1, 100, 0.001), timed(3, 50, 0.001), 1.0, "UNDECIDED", 5),
    ],
)
def test_how_many_steps_decide(
    ours: StepStatistics, theirs: StepStatistics, work: float, outcome: str, needed: int | None,
    tmp_path: Path,
) -> None:  # fmt: skip
    report = run(tmp_path, fp8=True, us=40)
    measured = measure_runs(report, report)
    assert not isinstance(measured, str)
    before, after = measured[0]._replace(times=ours), measured[1]._replace(times=theirs)
    found = measure_speed(before, after, work)
    assert (found.outcome, found.steps_needed) == (outcome, needed)
    few = "a run has one step" in reason_of(found, work, before, after)
    assert few is (min(ours.count, theirs.count) < 2)


def test_steps_without_the_profiler_are_preferred_where_both_runs_know_them(
    tmp_path: Path,
) -> None:
    slow, fast = run(tmp_path, fp8=False, us=40), run(tmp_path, fp8=True, us=20)
    before = with_ranks(slow, {"steps_outside": outside(100.0)})
    after = with_ranks(fast, {"steps_outside": outside(110.0)})
    found = compare(before, after)
    assert (found.outcome, found.speedup) == (
        Outcome.SLOWER,
        pytest.approx(0.909, abs=0.002),
    )
    step = sides(found)[1].step
    assert (step.measured, step.steps) == ("outside", 40)
    assert "without the profiler" in found.reason
    assert sides(compare(before, with_ranks(fast, {})))[1].step.measured == "gpu"


def test_step_times_of_the_trainings_own_logs_leave_the_window_out(
    tmp_path: Path,
) -> None:
    slow, fast = run(tmp_path, fp8=False, us=40), run(tmp_path, fp8=True, us=20)

    def log(us: float) -> LossSeries:
        near = dict.fromkeys(range(8, 18), 9 * us)  # the window is steps 10 to 14
        times = {step: us * (1 + 0.001 * (step % 3)) for step in range(1, 60)} | near
        return LossSeries("test", {1: 2.0}, False, {}, times)

    found = compare(slow, fast, (log(100.0), log(80.0)))
    step = sides(found)[1].step
    assert (step.measured, found.outcome) == ("log", Outcome.FASTER)
    assert found.speedup == pytest.approx(1.25, abs=0.01)
    assert step.steps == 47  # of 59, without 7 to 17 and the first


@pytest.mark.parametrize(
    "us", [lambda n: 1000.0 * n, lambda _: math.nan, lambda _: 0.0]
)
def test_a_clock_that_only_grows_and_times_that_are_none_are_no_step_times(
    us: Callable[[int], float], tmp_path: Path
) -> None:
    report = run(tmp_path, fp8=False, us=40)
    log = LossSeries("test", {1: 2.0}, False, {}, {n: us(n) for n in range(1, 60)})
    assert sides(compare(report, report, (log, log)))[0].step.measured == "gpu"


def test_a_rank_that_lost_fp8_is_the_first_cause(tmp_path: Path) -> None:
    low, high = run(tmp_path, fp8=True, us=40), run(tmp_path, fp8=False, us=90)
    before = with_ranks(low, {}, {})
    (bad,) = high.ranks
    after = replace(before, ranks=(before.ranks[0], replace(bad, rank=1)))
    slow = {"steps_outside": outside(130.0)}
    after = replace(after, ranks=tuple(replace(rank, **slow) for rank in after.ranks))
    before = with_ranks(low, *[{"steps_outside": outside(100.0)}] * 2)
    found = compare(before, after)
    assert found.outcome is Outcome.SLOWER
    assert "rank 1 runs 0% of its GEMM time in FP8, 100% in the baseline" in found.notes
    assert causes(found)[0] == "less FP8 than in the baseline"
    shares = {
        p.rank: (p.baseline_fp8_share, p.candidate_fp8_share) for p in found.ranks
    }
    assert shares == {0: (1.0, 1.0), 1: (1.0, 0.0)}
    assert sides(found)[0].ranks == (0, 1)
    for now in (
        compare(after, before),
        compare(replace(before, ranks=before.ranks[:1]), after),
    ):
        assert not any(note.startswith("rank ") for note in now.notes)
    assert "1 and 2 ranks" in now.notes


def test_figures_are_of_a_step_and_rank_however_many_there_are(tmp_path: Path) -> None:
    one = run(tmp_path, fp8=False, us=80, casts="fused", cast_us=30)
    two = with_ranks(one, {}, {})
    alone, both = compare(one, one), compare(two, two)
    assert (alone.budget, alone.gemms, alone.legs) == (
        both.budget,
        both.gemms,
        both.legs,
    )
    assert [pair.baseline_calls for pair in alone.gemms] == [1.0] * 3
    assert sides(alone)[0].flops_per_step == 2 * 4096 * 2048 * 2048


def test_the_gemms_that_lost_most_are_named_first(tmp_path: Path) -> None:
    def two_layers(large_us: float, small_us: float, name: str) -> Report:
        build = BusyBuilder()
        for step in range(5):
            build.step(10 + step)
            for _ in range(4):
                build.linear(4096, 1024, 2048, fp8=True, us=small_us)
            build.linear(4096, 2048, 2048, fp8=True, us=large_us)
        return inspect(build.write(tmp_path / name))

    found = compare(two_layers(200, 30, "a.json"), two_layers(260, 90, "b.json"))
    named = found.findings[0].message.split("(")[1]
    # Four calls of 60 us each, one of the large layer.
    assert named.startswith("1024x2048")
    assert found.findings[0].message.count("1024x2048") == 3


def test_work_that_grew_little_each_is_listed(tmp_path: Path) -> None:
    def timed(us: float, step_us: float) -> Report:
        return with_ranks(
            run(tmp_path, fp8=True, us=us), {"steps_outside": outside(step_us)}
        )

    found = compare(timed(400, 1250), timed(405, 1282))
    (cause,) = causes(found)
    assert cause == "no single kind of work takes much longer"
    assert "GEMMs take +0.01 ms" in found.findings[0].message


def test_a_window_that_ends_within_a_step_does_the_same_work(tmp_path: Path) -> None:
    whole = run(tmp_path, fp8=False, us=80)
    build = BusyBuilder()
    for step in range(5):
        build.step(10 + step)
        build.linear(4096, 2048, 2048, fp8=False, us=80)
    build.gemm("fprop", 4096, 2048, 2048, fp8=False, us=80)
    cut = inspect(build.write(tmp_path / "cut.json"))
    found = compare(whole, cut)
    assert found.work_ratio == 1.0
    assert found.outcome not in (Outcome.FASTER, Outcome.SLOWER)


@pytest.mark.parametrize("seed", range(40))
def test_two_runs_in_the_other_order_are_said_to_be_the_reverse(
    seed: int, tmp_path: Path
) -> None:
    """Runs whose parts take other times."""
    rng = random.Random(seed)
    sizes = {"n": rng.choice((512, 2048)), "marked": rng.random() < 0.8}

    def some(*, fp8: bool) -> Report:
        return run(
            tmp_path, fp8=fp8, us=rng.choice((20, 90, 100, 200)), steps=rng.choice((1, 2, 5, 9)),
            casts=rng.choice((None, "eager", "fused")), cast_us=rng.choice((5, 50, 150)),
            m=rng.choice((4096, 4096, 4096, 8192)), filler=rng.choice((0, 0, 30, 90)), **sizes,
        )  # fmt: skip

    first, second = some(fp8=rng.random() < 0.2), some(fp8=rng.random() < 0.8)
    found, reverse = compare(first, second), compare(second, first)
    opposite = {Outcome.FASTER: Outcome.SLOWER, Outcome.SLOWER: Outcome.FASTER}
    assert reverse.outcome == opposite.get(found.outcome, found.outcome)
    for speedup, inverse in (
        (found.speedup, reverse.speedup),
        (found.busy_speedup, reverse.busy_speedup),
        (found.gemm_speedup, reverse.gemm_speedup),
    ):
        if speedup is None or inverse is None:
            assert speedup == inverse
        else:
            assert speedup * inverse == pytest.approx(1, abs=0.01)
