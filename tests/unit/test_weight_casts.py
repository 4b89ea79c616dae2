"""Weights that are cast in each micro-batch, told from the sizes of the casts' operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fp8verify.analysis.gather import gather
from fp8verify.analysis.rank import RankEvidence, Recorded
from fp8verify.analysis.weight_casts import WeightCasts, weight_casts
from fp8verify.capture.schema import ModuleRecord, RankMeta, StepTimes
from fp8verify.logs.statements import LogReading
from fp8verify.model.verdict import Finding
from fp8verify.verdict.expected import collect_requested
from fp8verify.verdict.findings.speed import weight_recast
from tests.hand_built import BF16, FP8, FP8_KERNEL, TraceBuilder

SECOND = 10**9  # ns
TOKENS, OUT, IN, LAYERS = 4096, 2048, 1024, 3
CAST = (
    "void transformer_engine::cast_transpose_kernel<fp8>(float const*, __nv_fp8_e4m3*)"
)
META = RankMeta(
    schema=1, rank=0, steps_seen=4, windows=(),
    modules=tuple(
        ModuleRecord(
            fqn=f"layers.{n}", class_name="Linear", kind="linear", state="fp8",
            in_features=IN, out_features=OUT,
        )
        for n in range(LAYERS)
    ),
)  # fmt: skip


def forward(built: TraceBuilder, *, engine: bool, cast: bool, cast_us: float) -> None:
    """Add the forward pass of a layer, with a cast of its weight or without."""
    if engine:
        recorded: dict[str, Any] = {
            "types": (BF16, BF16),
            "dims": ((OUT, IN), (TOKENS, IN)),
        }
        for _ in range(1 + cast):  # the input's, and the weight's
            built.launch(CAST, "_Linear", us=cast_us, **recorded)
        built.launch(FP8_KERNEL, "_Linear", us=100, **recorded)
        return
    if cast:
        sizes = ((OUT, IN), (OUT, IN))
        built.launch(CAST, "aten::copy_", us=cast_us, dims=sizes, types=(FP8, BF16))
    built.gemm("fprop", TOKENS, OUT, IN, fp8=True, us=100)


def backward(built: TraceBuilder, *, engine: bool) -> None:
    """Add dgrad and wgrad of a layer."""
    for leg in ("dgrad", "wgrad"):
        if engine:
            dims = ((TOKENS, OUT) if leg == "dgrad" else (OUT, TOKENS),)
            built.launch(
                FP8_KERNEL,
                "_LinearBackward",
                types=(FP8, FP8),
                dims=dims,
                us=100,
                backward=True,
            )
        else:
            built.gemm(leg, TOKENS, OUT, IN, fp8=True, us=100)


def facts(
    built: TraceBuilder,
    passes: int,
    casts_in: str,
    *,
    engine: bool,
    cast_us: float = 30.0,
) -> RankEvidence:
    """Two steps; weights are cast in "each" micro-batch, the "first" one or in "no" pass."""
    for step in (1, 2):
        built.step(step)
        for number in range(passes):
            cast = casts_in == "each" or (casts_in == "first" and not number)
            for _ in range(LAYERS):
                forward(built, engine=engine, cast=cast, cast_us=cast_us)
            for _ in range(LAYERS):
                backward(built, engine=engine)
    return RankEvidence(gather(built.read()), Recorded(META))


def found(of: RankEvidence) -> list[Finding]:
    return list(weight_recast(of, collect_requested(LogReading(), [of])))


@pytest.mark.parametrize("engine", [True, False], ids=["Transformer Engine", "eager"])
@pytest.mark.parametrize(
    ("passes", "casts_in", "casts"),
    [
        (4, "each", 4),
        (2, "each", 2),
        (4, "first", 1),
        (1, "each", None),
        (4, "no", None),
    ],
)
def test_casts_of_weights_are_counted(
    passes: int, casts_in: str, casts: float | None, engine: bool, build: TraceBuilder
) -> None:
    of = facts(build, passes, casts_in, engine=engine)
    counted = weight_casts(of.trace, of.modules)
    assert (counted and (counted.micro_batches, counted.casts, counted.size)) == (
        None if casts is None else (passes, casts, (OUT, IN))
    )
    codes = [finding.code for finding in found(of)]
    assert codes == (["weight-recast"] if casts == passes else [])


def test_where_the_cpu_limits_the_step_fewer_casts_are_information(
    build: TraceBuilder,
) -> None:
    of = facts(build, 4, "each", engine=True)
    (costs,) = found(of)
    times = StepTimes(
        count=9, total_ns=9 * SECOND, samples_ns=(SECOND,), median_ns=SECOND
    )
    slow_steps = replace(META, steps_outside=times)
    (saves_nothing,) = found(RankEvidence(of.trace, Recorded(slow_steps)))
    assert (costs.severity, saves_nothing.severity) == ("warning", "info")
    assert costs.gpu_share == saves_nothing.gpu_share


def test_the_share_is_what_the_later_passes_spend(tmp_path: Path) -> None:
    (finding,) = found(facts(TraceBuilder(tmp_path), 4, "each", engine=False))
    # Of 330 µs a layer and pass, 30 are the weight's cast, three of four times.
    assert "would save 6.8% of GPU time" in finding.message
    assert (
        found(facts(TraceBuilder(tmp_path), 4, "each", engine=False, cast_us=1.0)) == []
    )


def test_a_weight_of_the_size_of_an_input_is_not_counted(build: TraceBuilder) -> None:
    of = facts(build, 4, "each", engine=False)
    modules = [replace(module, out_features=TOKENS) for module in of.modules]
    assert weight_casts(of.trace, modules) is None
    assert isinstance(weight_casts(of.trace, of.modules), WeightCasts)
