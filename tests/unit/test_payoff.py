"""What FP8 can gain: Amdahl's ceiling, small GEMMs, an idle GPU, and the findings they give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8verify import Report, inspect
from fp8verify.analysis.kinds import GemmShape, Kinds
from fp8verify.analysis.rates import TENSORWISE, rates_of
from fp8verify.analysis.timeline import measure, step_bounds
from fp8verify.errors import InputError
from fp8verify.model.costs import PayoffReport
from fp8verify.report.payoff import payoff
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
    module,
    present,
)
from tests.unit.test_fp8_overhead import AMAX, COPY, INSIDE

OTHER = "triton_poi_fused_add_0"
H200 = present(rates_of("NVIDIA H200"))


def bf16_us(m: int, n: int, k: int) -> float:
    """What BF16 takes at a size on the GPU of these traces."""
    return present(H200.time_ns(GemmShape(1, m, n, k))) / 1000


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
    sizes = [GemmShape(1, 8192, 4096, 4096), GemmShape(1, 4096, 4096, 8192)]
    fp8, bf16 = (
        [present(H200.time_ns(size, column)) for size in sizes]
        for column in (TENSORWISE, "bf16")
    )
    # Of the three GEMMs, all of 10 µs, two have the first size.
    left = (2 * fp8[0] / bf16[0] + fp8[1] / bf16[1]) / 3
    assert gain.ceiling == pytest.approx(1 / (0.5 + 0.5 * left), rel=1e-3)
    assert gain.speedup_estimate is None


def test_the_estimate_of_an_fp8_run_counts_its_casts(build: TraceBuilder) -> None:
    fp8_gemm(build, 2048, 12)
    build.launch(COPY, "aten::copy_", types=(FP32, BF16), parents=INSIDE, us=20)
    build.launch(OTHER, OTHER, us=40)
    for _ in range(3):
        build.launch(OTHER, OTHER, us=90)
    gain = payoff_of(build.report())
    in_bf16 = 310 + bf16_us(2048, 2048, 2048)
    assert gain.speedup_estimate == pytest.approx(in_bf16 / 342, rel=1e-3)
    assert gain.ceiling == pytest.approx(in_bf16 / 322, rel=1e-3)


def test_a_gemm_that_takes_longer_than_in_bf16_is_a_loss(build: TraceBuilder) -> None:
    """Ten times the time is no tenfold saving."""
    slow = 4 * bf16_us(2048, 2048, 2048)
    report = fp8_gemm(build, 2048, slow).launch(OTHER, OTHER, us=slow).report()
    assert payoff_of(report).speedup_estimate == pytest.approx(5 / 8, rel=1e-3)
    assert present(payoff(report)).text.startswith("probably slower: ")
    (finding,) = found(report, "fp8-gemm-slow")
    assert FP8_KERNEL.partition("(")[0][:40] in finding.message
    assert "it costs 0.1 ms" in finding.message
    assert finding.gpu_share == pytest.approx(0.375, abs=1e-3)


def accumulate(build: TraceBuilder, *dims: int) -> TraceBuilder:
    """Add the node that gives a parameter its gradient, or an undefined one."""
    return build.launch(
        OTHER, "torch::autograd::AccumulateGrad", types=(BF16,), dims=(dims,), us=1
    )


@pytest.mark.parametrize(
    ("accumulated", "is_in_vain"),
    [
        ([(4096, 16), (16, 4096)], True),
        ([(4096, 16), (4096, 4096)], False),
        ([(4096 * 4096,)], False),  # many parameters in one, as FSDP has them
        ([(8, 4096, 4096)], False),
        ([(4096, 16), ()], False),  # of unknown size
        ([], False),
    ],
)
def test_gradients_of_frozen_weights_are_no_saving(
    build: TraceBuilder, accumulated: list[tuple[int, ...]], is_in_vain: bool
) -> None:
    """torchao computes them, in FP8; BF16 does not."""
    bf16 = bf16_us(4096, 4096, 4096)
    build.linear(4096, 4096, 4096, fp8=True, us=bf16 / 2)
    build.launch(OTHER, OTHER, us=bf16)
    for dims in accumulated:
        accumulate(build, *dims)
    gain = payoff_of(build.report())
    products = 2 if is_in_vain else 3
    assert gain.speedup_estimate == pytest.approx((products + 1) / 2.5, rel=2e-2)


def test_a_kernel_that_is_slow_only_now_and_then_is_not_accused(
    build: TraceBuilder,
) -> None:
    usual = 0.6 * bf16_us(2048, 2048, 2048)
    build.step(1)
    fp8_gemm(build, 2048, usual)
    build.step(2)
    fp8_gemm(build, 2048, 7 * usual)
    assert "fp8-gemm-slow" not in codes(build.report())


def test_bf16_gemms_of_the_same_trace_tell_more_than_the_table(tmp_path: Path) -> None:
    """Here the GPU has no table at all; a transposed product counts, other sizes do not."""
    build = TraceBuilder(tmp_path, gpu="NVIDIA H20", capability=(9, 0))
    fp8_gemm(build, 4096, 50)
    dims = ((4096, 4096), (4096, 4096))
    build.launch(BF16_KERNEL, "aten::mm", types=(BF16, BF16), dims=dims, us=80)
    gain = payoff_of(build.report())
    assert gain.speedup_estimate == pytest.approx((80 + 80) / 130, rel=1e-3)


def test_a_run_in_bf16_tells_what_bf16_takes(tmp_path: Path) -> None:
    """Here the GPU has no table; what the trace itself shows counts more."""
    gpu: dict[str, Any] = {"gpu": "NVIDIA H20", "capability": (9, 0)}
    in_bf16 = TraceBuilder(tmp_path / "bf16", **gpu)
    in_bf16.linear(4096, 4096, 4096, fp8=False, us=80)
    before = in_bf16.linear(2048, 2048, 2048, fp8=False, us=30).write(
        tmp_path / "bf16.json"
    )
    build = TraceBuilder(tmp_path, **gpu).linear(4096, 4096, 4096, fp8=True, us=50)
    trace = build.write(tmp_path / "fp8.json")
    assert payoff_of(inspect(trace)).speedup_estimate is None
    estimate = payoff_of(inspect(trace, bf16=before)).speedup_estimate
    assert estimate == pytest.approx(80 / 50)
    dims = ((4096, 4096), (4096, 4096))
    build.launch(BF16_KERNEL, "aten::mm", types=(BF16, BF16), dims=dims, us=70)
    trace = build.write(tmp_path / "fp8.json")
    estimate = payoff_of(inspect(trace, bf16=before)).speedup_estimate
    assert estimate == pytest.approx((3 * 70 + 70) / (3 * 50 + 70))


@pytest.mark.parametrize(
    ("gpu", "fp8", "fact"),
    [("NVIDIA H20", False, "ran on"), ("NVIDIA H200", True, "no GEMMs in 16 bits")],
)
def test_another_gpu_and_a_run_without_bf16_tell_nothing(
    tmp_path: Path, build: TraceBuilder, gpu: str, fp8: bool, fact: str
) -> None:
    other = TraceBuilder(tmp_path, gpu=gpu, capability=(9, 0))
    before = other.linear(4096, 4096, 4096, fp8=fp8).write(tmp_path / "bf16.json")
    trace = build.linear(4096, 4096, 4096, fp8=True).write(tmp_path / "fp8.json")
    with pytest.raises(InputError, match=fact):
        inspect(trace, bf16=before)


def test_without_sizes_there_is_no_estimate_and_the_line_says_why(
    build: TraceBuilder,
) -> None:
    build.launch(FP8_KERNEL, "aten::_scaled_mm", types=(FP8, FP8), us=90)
    report = build.launch(OTHER, OTHER, us=90).report()
    assert payoff_of(report).speedup_estimate is None
    said = present(payoff(report))
    assert said.text == "no estimate: the sizes of GEMMs were not recorded"
    assert said.speedup is None


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
        (1024, 70, 30, "unfused eager", "where graphs end"),
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
    fp8_gemm(build, 4096, 90)
    build.launch(COPY, "aten::copy_", types=(FP32, BF16), parents=INSIDE, us=20)
    assert not codes(build.report()) & {"fp8-not-paying", "gpu-idle"}


def test_the_line_says_that_no_rates_of_the_gpu_are_known(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path, gpu="NVIDIA H20", capability=(9, 0))
    fp8_gemm(build, 4096, 90).launch(OTHER, OTHER, us=90)
    said = present(payoff(build.report()))
    assert said.text == "no estimate: no rates of BF16 GEMMs are known for NVIDIA H20"


@pytest.mark.parametrize("gpu", ["NVIDIA B200", "NVIDIA L40S", "AMD Instinct MI300X"])
def test_no_rates_of_the_gpu_no_number(gpu: str, tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path, gpu=gpu, capability=(10, 0))
    report = fp8_gemm(build, 8192, 40).report()
    gain = payoff_of(report)
    assert (gain.speedup_estimate, gain.ceiling) == (None, None)


@pytest.mark.parametrize(
    ("step_us", "waits", "word"),
    [(None, None, "probably faster"), (205, False, "probably faster"),
     (330, False, "probably faster"), (215, False, None), (270, True, None),
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
            fp8_gemm(build, 4096, 100)
    ns = (step_us or 0) * 1000
    times = {"count": 9, "total_ns": 9 * ns, "samples_ns": [ns] * 9, "median_ns": ns}
    report = build.capture(window=[], **{"steps_outside": times} if step_us else {})
    assert payoff_of(report).waits is waits
    gains = step_us is not None and word is not None and not waits
    gained = (
        pytest.approx(1 + (2 * bf16_us(4096, 4096, 4096) - 200) / step_us, rel=1e-3)
        if step_us and gains
        else None
    )
    assert payoff_of(report).step_speedup_estimate == gained
    if word is not None:
        assert present(payoff(report)).text.startswith(f"{word}: ")
        assert any("ms step" in f.message for f in report.findings) is bool(waits)


def outside(step_us: int) -> dict[str, Any]:
    """Times of steps that no profiler watched."""
    ns = 1000 * step_us
    times = {"count": 9, "total_ns": 9 * ns, "samples_ns": [ns] * 9, "median_ns": ns}
    return {"steps_outside": times}


def layer_of(source: str) -> dict[str, Any]:
    return module("layer", 4096, 4096, source=source)


@pytest.mark.parametrize(
    ("step_us", "said"),
    [
        (
            500,
            "no gain: the CPU limits the step (GPU busy 0.2 of 0.5 ms per unprofiled step)",
        ),
        (380, "no gain: the GPU is idle for 0.2 of 0.4 ms per unprofiled step"),
    ],
)
def test_the_cpu_limits_a_step_if_the_gpu_waits_for_longer_than_it_works(
    build: TraceBuilder, step_us: int, said: str
) -> None:
    build.step(1)
    for _ in range(2):
        fp8_gemm(build, 4096, 100)
    report = build.capture(window=[], **outside(step_us))
    assert present(payoff(report)).text.startswith(said)


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        ("torchao.float8.float8_linear", "Compile with mode='reduce-overhead'"),
        ("transformer_engine.pytorch.module.linear", "make_graphed_callables"),
        ("megatron.core.extensions.transformer_engine", "--cuda-graph-impl"),
    ],
)
def test_advice_for_a_gpu_that_waits_is_of_the_layers_library(
    build: TraceBuilder, source: str, advice: str
) -> None:
    fp8_gemm(build.step(1), 4096, 100)
    report = build.capture(layer_of(source), window=[], **outside(1190))
    (finding,) = found(report, "fp8-not-paying")
    assert advice in finding.hint
    assert "up to about 12x as fast" in finding.hint
    assert finding.hint.count("CUDA graphs") == 1


def test_slow_gemms_come_before_a_gpu_that_waits_for_less_than_they_lose(
    build: TraceBuilder,
) -> None:
    lost = round(100 * (1 - bf16_us(2048, 2048, 2048) / 95))
    fp8_gemm(build.step(1), 2048, 90)
    build.launch(COPY, "aten::copy_", types=(FP32, BF16), parents=INSIDE, us=5)
    report = build.capture(window=[], **outside(133))
    text = present(payoff(report)).text
    assert f"above all slow FP8 GEMMs lose {lost - 5}% of GPU time; " in text
    assert text.index("slow FP8 GEMMs") < text.index("the GPU is idle for")
    assert "the CPU limits" not in text
    (finding,) = found(report, "fp8-not-paying")
    assert finding.message.startswith("slow GEMMs: ")
    (finding,) = found(report, "fp8-gemm-slow")
    assert finding.hint in report.to_text().replace("\n         ", " ")


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
    small = 0.8 * bf16_us(768, 768, 768)
    large = 0.8 * bf16_us(2048, 2048, 2048)
    for _ in range(5):
        fp8_gemm(build, 768, small)
    fp8_gemm(build, 2048, large)
    (finding,) = found(build.report(), "small-gemms")
    assert finding.severity == "info"
    assert f"{5 * small / (5 * small + large):.0%}" in finding.message
