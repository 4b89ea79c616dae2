"""Weights that are cast in each micro-batch, told from the sizes of the casts' operators."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8verify.analysis.gather import gather
from fp8verify.analysis.payoff import WeightCasts, weight_casts
from fp8verify.analysis.rank import RankEvidence, Recorded
from fp8verify.capture.schema import ModuleRecord, RankMeta
from fp8verify.logs.statements import LogReading
from fp8verify.report.model.parts import Finding
from fp8verify.trace.readers import read_trace
from fp8verify.verdict.expected import collect_promises
from fp8verify.verdict.findings.speed import weight_recast
from tests.hand_built import FP8_KERNEL, TraceBuilder

TOKENS, OUT, IN, LAYERS = 4096, 2048, 1024, 3
CAST = "void transformer_engine::cast_transpose_kernel<fp8>(float const*, __nv_fp8_e4m3*)"
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


LOW = "c10::Float8_e4m3fn"


def forward(built: TraceBuilder, *, engine: bool, cast: bool, cast_us: float) -> None:
    """Add the forward pass of a layer, with a cast of its weight or without."""
    if engine:
        for _ in range(1 + cast):  # the input's, and the weight's
            built.launch(CAST, "_Linear", us=cast_us, types=("c10::BFloat16",) * 2,
                         dims=((OUT, IN), (TOKENS, IN)))  # fmt: skip
        built.launch(FP8_KERNEL, "_Linear", us=100, types=("c10::BFloat16",) * 2,
                     dims=((OUT, IN), (TOKENS, IN)))  # fmt: skip
        return
    if cast:
        types = (LOW, "c10::BFloat16")
        built.launch(CAST, "aten::copy_", us=cast_us, dims=((OUT, IN), (OUT, IN)), types=types)
    dims = ((TOKENS, IN), (IN, OUT))
    built.launch(FP8_KERNEL, "aten::_scaled_mm", types=(LOW, LOW), dims=dims, us=100)


def backward(built: TraceBuilder, *, engine: bool) -> None:
    """Add dgrad and wgrad of a layer."""
    for dims in (((TOKENS, OUT), (OUT, IN)), ((OUT, TOKENS), (TOKENS, IN))):
        op = "_LinearBackward" if engine else "aten::_scaled_mm"
        built.launch(
            FP8_KERNEL, op, types=(LOW, LOW), dims=dims[: 1 if engine else 2], us=100, backward=True
        )


def facts(
    path: Path, passes: int, casts_in: str, *, engine: bool, cast_us: float = 30.0
) -> RankEvidence:
    """Two steps; weights are cast in "each" micro-batch, the "first" one or in "no" pass."""
    built = TraceBuilder()
    for step in (1, 2):
        built.step(step)
        for number in range(passes):
            cast = casts_in == "each" or (casts_in == "first" and not number)
            for _ in range(LAYERS):
                forward(built, engine=engine, cast=cast, cast_us=cast_us)
            for _ in range(LAYERS):
                backward(built, engine=engine)
    return RankEvidence(gather(read_trace(built.write(path / "t.json"))), Recorded(META))


def found(of: RankEvidence) -> list[Finding]:
    return list(weight_recast(of, collect_promises(LogReading(), [of])))


@pytest.mark.parametrize("engine", [True, False], ids=["Transformer Engine", "eager"])
@pytest.mark.parametrize(
    ("passes", "casts_in", "casts"),
    [(4, "each", 4), (2, "each", 2), (4, "first", 1), (1, "each", None), (4, "no", None)],
)
def test_casts_of_weights_are_counted(
    passes: int, casts_in: str, casts: float | None, engine: bool, tmp_path: Path
) -> None:
    of = facts(tmp_path, passes, casts_in, engine=engine)
    counted = weight_casts(of.trace, of.modules)
    assert (counted and (counted.micro_batches, counted.casts, counted.size)) == (
        None if casts is None else (passes, casts, (OUT, IN))
    )
    codes = [finding.code for finding in found(of)]
    assert codes == (["weight-recast"] if casts == passes else [])


def test_the_share_is_what_the_later_passes_spend(tmp_path: Path) -> None:
    (finding,) = found(facts(tmp_path, 4, "each", engine=False))
    # Of 330 µs a layer and pass, 30 are the weight's cast, three of four times.
    assert "would save 6.8% of GPU time" in finding.message
    assert found(facts(tmp_path, 4, "each", engine=False, cast_us=1.0)) == []


def test_a_weight_of_the_size_of_an_input_is_not_counted(tmp_path: Path) -> None:
    of = facts(tmp_path, 4, "each", engine=False)
    modules = tuple(
        ModuleRecord(fqn="a", class_name="Linear", kind="linear", state="fp8",
                     in_features=IN, out_features=TOKENS)
        for _ in range(3)
    )  # fmt: skip
    assert weight_casts(of.trace, modules) is None
    assert isinstance(weight_casts(of.trace, of.modules), WeightCasts)
