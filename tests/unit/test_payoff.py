"""What FP8 can gain: Amdahl's ceiling, small GEMMs, an idle GPU, and the findings they give."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8verify import Report, inspect
from fp8verify.analysis.kinds import Kinds
from fp8verify.analysis.timeline import measure, step_bounds
from fp8verify.report.model.parts import PayoffReport
from fp8verify.report.sentences import payoff
from fp8verify.trace import Step, Trace
from tests.hand_built import (
    BF16,
    BF16_KERNEL,
    FP8,
    FP8_KERNEL,
    FP32,
    TraceBuilder,
    codes,
    found,
    present,
)
from tests.unit.test_fp8_overhead import AMAX, COPY, INSIDE

OTHER = "triton_poi_fused_add_0"


def payoff_of(report: Report) -> PayoffReport:
    return present(report.ranks[0].payoff)


def fp8_gemm(build: TraceBuilder, size: int, us: float) -> TraceBuilder:
    dims = ((size, size), (size, size))
    return build.launch(
        FP8_KERNEL, "aten::_scaled_mm", types=(FP8, FP8), dims=dims, us=us
    )


def test_the_ceiling_of_a_bf16_run_is_amdahls(build: TraceBuilder) -> None:
    build.linear(8192, 4096, 4096, fp8=False).launch(
        OTHER, OTHER, us=30
    )  # half of it GEMMs
    gain = payoff_of(build.report())
    assert gain.sixteen_bit_gemm_share == 0.5
    assert gain.ceiling == pytest.approx(1 / (0.5 + 0.5 / 1.93), rel=1e-3)
    assert gain.speedup_estimate is None


def test_the_estimate_of_an_fp8_run_counts_its_casts(build: TraceBuilder) -> None:
    fp8_gemm(build, 8192, 40)
    build.launch(COPY, "aten::copy_", types=(FP32, BF16), parents=INSIDE, us=20)
    build.launch(OTHER, OTHER, us=40)
    gain = payoff_of(build.report())
    assert gain.speedup_estimate == pytest.approx((40 + 40 * 1.97) / 100, rel=1e-3)
    assert gain.ceiling == pytest.approx((40 + 40 * 1.97) / 80, rel=1e-3)


def test_a_gemm_gains_by_its_own_size_however_often_it_runs(
    build: TraceBuilder,
) -> None:
    for _ in range(4):
        fp8_gemm(build, 2048, 10)
    assert payoff_of(build.report()).speedup_estimate == pytest.approx(1.78)


def test_a_gpu_without_fp8_units_has_nothing_to_gain(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path, gpu="NVIDIA A100-SXM4-80GB", capability=(8, 0))
    assert payoff_of(build.linear(64, 32, 16, fp8=False).report()).ceiling is None


@pytest.mark.parametrize(("size", "small"), [(512, 1.0), (2048, 0.0)])
def test_small_gemms_are_told_by_their_shortest_side(
    build: TraceBuilder, size: int, small: float
) -> None:
    gain = payoff_of(fp8_gemm(build, size, 40).launch(OTHER, OTHER, us=120).report())
    assert (gain.small_gemm_share, gain.fp8_gemm_share) == (small, 0.25)


@pytest.mark.parametrize(
    ("size", "eager", "fused", "cause", "remedy"),
    [
        (768, 0, 60, "small GEMMs", "Leave small layers"),
        (2048, 0, 60, "costly casts", "cast"),
        (1024, 60, 0, "unfused eager", "torch.compile"),
        (1024, 70, 30, "unfused eager", "graph breaks"),
    ],
)
def test_casts_that_cost_more_than_fp8_saves_do_not_pay(
    build: TraceBuilder, size: int, eager: int, fused: int, cause: str, remedy: str
) -> None:
    fp8_gemm(build, size, 40)
    if eager:
        build.launch(COPY, "aten::copy_", types=(FP32, BF16), parents=INSIDE, us=eager)
    if fused:
        build.launch(AMAX, AMAX, us=fused)
    (finding,) = found(build.report(), "fp8-not-paying")
    assert finding.severity == "warning"
    assert cause in finding.message
    assert remedy in finding.hint
    assert "40.0" not in finding.message  # times are in ms
    assert "0.1 ms" in finding.message


def test_fp8_that_pays_is_no_finding(build: TraceBuilder) -> None:
    fp8_gemm(build, 2048, 90)
    build.launch(COPY, "aten::copy_", types=(FP32, BF16), parents=INSIDE, us=20)
    assert not codes(build.report()) & {"fp8-not-paying", "gpu-idle"}


@pytest.mark.parametrize("gpu", ["NVIDIA B200", "NVIDIA L40S", "AMD Instinct MI300X"])
def test_no_rates_of_the_gpu_no_number(gpu: str, tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path, gpu=gpu, capability=(10, 0))
    gain = payoff_of(fp8_gemm(build, 8192, 40).report())
    assert (gain.speedup_estimate, gain.ceiling) == (None, None)


@pytest.mark.parametrize(
    ("step_us", "waits", "word"),
    [(None, None, "probably faster"), (205, False, "probably faster"),
     (390, False, "probably faster"), (215, False, None), (270, True, None),
     (1000, True, "no gain")],
)  # fmt: skip
def test_steps_outside_the_window_tell_whether_the_gpu_waits(
    step_us: int | None, waits: bool | None, word: str | None, build: TraceBuilder
) -> None:
    """It waits if a fifth of a step is not its own, or more than FP8 saves."""
    build.step(1)
    for _ in range(2):
        if word is None:
            build.launch(BF16_KERNEL, us=100)
        else:
            fp8_gemm(build, 8192, 100)
    ns = (step_us or 0) * 1000
    times = {"count": 9, "total_ns": 9 * ns, "samples_ns": [ns] * 9, "median_ns": ns}
    report = build.capture(window=[], **{"steps_outside": times} if step_us else {})
    assert payoff_of(report).waits is waits
    gains = step_us is not None and word is not None and not waits
    gained = (
        pytest.approx(1 + 200 * 0.97 / step_us, rel=1e-3) if step_us and gains else None
    )
    assert payoff_of(report).step_speedup_estimate == gained
    if word is not None:
        assert present(payoff(report)).text.startswith(f"{word}: ")
        assert any("ms step" in f.message for f in report.findings) is bool(waits)


@pytest.mark.parametrize(
    ("us", "code"), [(90, None), (70, "gpu-idle"), (20, "fp8-not-paying")]
)
def test_an_idle_gpu_is_said_by_how_idle_it_is(
    build: TraceBuilder, us: float, code: str | None
) -> None:
    for _ in range(10):  # launches are 100 µs apart
        fp8_gemm(build, 2048, us)
    told = codes(build.report()) & {"fp8-not-paying", "gpu-idle"}
    assert told == ({code} if code else set())


def test_step_times_on_the_gpu_run_from_end_to_end(build: TraceBuilder) -> None:
    build.step(1).linear(64, 32, 16, fp8=True).step(2).linear(64, 32, 16, fp8=True)
    steps = build.report().ranks[0].steps
    # three kernels of 10 µs, 100 µs apart; the second step's time begins with the first's end
    assert [step.gpu_us for step in steps] == [210.0, 300.0]


kernels = st.lists(
    st.tuples(
        st.integers(0, 200), st.integers(0, 60), st.booleans(), st.integers(-1, 1)
    ),
    max_size=12,
)


@given(kernels)
def test_the_timeline_is_what_counting_nanoseconds_gives(
    rows: list[tuple[int, int, bool, int]],
) -> None:
    names = ["k", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"]
    trace = Trace(source="x", names=names, steps=[Step(1, 0, 1), Step(2, 1, 2)])
    for start, duration, talks, step in rows:
        trace.kernels.name.append(talks)
        trace.kernels.op.append(-1)
        trace.kernels.start_ns.append(start)
        trace.kernels.duration_ns.append(duration)
        trace.kernels.step.append(step)
    found = measure(trace, Kinds(trace), step_bounds(trace))
    ticks = [
        (tick, talks)
        for start, time, talks, _ in rows
        for tick in range(start, start + time)
    ]
    computing = {tick for tick, talks in ticks if not talks}
    talking = {tick for tick, talks in ticks if talks}
    assert found.busy == len(computing | talking)
    assert found.communication == len(talking)
    assert found.exposed == len(talking - computing)
    assert found.span >= found.busy
    assert len(found.steps) == 2
    assert all(time is None or time >= 0 for time in found.steps)


def test_pauses_in_a_damaged_trace_are_no_idle_gpu(
    build: TraceBuilder, tmp_path: Path
) -> None:
    for _ in range(10):
        fp8_gemm(build, 2048, 20)
    path = build.write(tmp_path / "trace.json")
    text = path.read_text()
    path.write_text(text[: text.index("Record Window End")])
    told = codes(inspect(path))
    assert "damaged-trace" in told
    assert not told & {"fp8-not-paying", "gpu-idle"}


def test_many_small_gemms_are_said_while_fp8_still_pays(build: TraceBuilder) -> None:
    fp8_gemm(fp8_gemm(build, 512, 40), 2048, 60)
    (finding,) = found(build.report(), "small-gemms")
    assert finding.severity == "info"
    assert "40%" in finding.message
