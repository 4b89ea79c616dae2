"""GPU memory: what a report says FP8 costs or saves, and how two runs differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from fp8verify.analysis.rank import NO_META
from fp8verify.analysis.recorded import memory_report
from fp8verify.capture.schema import MemoryRecord, ModuleRecord, RankMeta, WindowRecord
from fp8verify.comparison import memory_notes
from fp8verify.comparison.measure import pair_memory
from fp8verify.model.costs import MemoryReport
from fp8verify.pipeline.inspection import inspect
from fp8verify.report.results import Report
from tests.hand_built import TraceBuilder, present

GIB = 1 << 30


def module(class_name: str, source: str | None, **more: Any) -> ModuleRecord:
    features = {"in_features": 4096, "out_features": 8192}
    known: dict[str, Any] = {"kind": "linear", "state": "fp8", **features, **more}
    return ModuleRecord(fqn="layers.0", class_name=class_name, source=source, **known)


TORCHAO = module("Float8Linear", "torchao.float8.float8_linear")
ENGINE = module("Linear", "transformer_engine.pytorch.module.linear")


def why(*modules: ModuleRecord, peak: int = GIB) -> tuple[str, ...] | None:
    memory = MemoryRecord(allocated_peak=peak, reserved_peak=2 * GIB, total=80 * GIB)
    window = WindowRecord(first=1, last=2, state="complete", memory=memory)
    meta = RankMeta(schema=1, rank=0, steps_seen=3, windows=(window,), modules=modules)
    found = memory_report(meta)
    return None if found is None else found.why


def test_torchao_saves_nothing_and_the_copies_come_on_top() -> None:
    (said,) = why(TORCHAO, TORCHAO) or ()
    assert said.startswith("the weights of 2 FP8 layers stay in high precision")
    assert "its copies (1 byte a value) come on top" in said


def test_transformer_engine_keeps_copies_and_saves_inputs() -> None:
    copies, inputs = why(*[ENGINE] * 32) or ()
    assert "the weights of 32 FP8 layers stay in high precision" in copies
    assert "1 or 2 bytes a value more" in copies
    assert "inputs for the backward pass in FP8" in inputs


@pytest.mark.parametrize(
    ("more", "saved"),
    [
        ({}, True),
        ({"formats": {"wgrad": "high_precision"}}, False),
        ({"formats": {"wgrad": "high_precision"}, "scaling": "from dequantized operands"}, True),
    ],
)  # fmt: skip
def test_megatrons_subclasses_are_known_by_their_recipe(
    more: dict[str, Any], saved: bool
) -> None:
    below = module(
        "TELayerNormColumnParallelLinear", "megatron.core.extensions.transformer_engine",
        recipe="DelayedScaling", **more,
    )  # fmt: skip
    said = why(below) or ()
    assert any("FP8 saves nothing" in line for line in said) is False
    assert any("inputs for the backward pass in FP8" in line for line in said) is saved


def test_nothing_is_said_of_what_an_unknown_class_saves() -> None:
    assert why(module("MyFP8Linear", "train")) == ()


def test_fp8_parameters_have_no_copy_in_high_precision() -> None:
    said = why(replace(ENGINE, weight_class="Float8Tensor")) or ()
    assert [line for line in said if "stay in high precision" in line] == []
    assert "kept in FP8 alone" in said[0]


def test_a_linear_of_weights_that_torchao_wraps_is_not_transformer_engines() -> None:
    wrapped = module(
        "Linear", "torch.nn.modules.linear", weight_class="Float8TrainingWeight"
    )
    (said,) = why(wrapped) or ()
    assert "Transformer Engine" not in said


def test_layers_in_high_precision_and_runs_without_counters_say_nothing() -> None:
    assert why(replace(TORCHAO, state="high_precision")) == ()
    assert why(TORCHAO, peak=0) is None
    assert memory_report(NO_META) is None


@pytest.fixture
def plain(tmp_path: Any) -> Report:
    return inspect(
        TraceBuilder().step(1).launch("k", "aten::mul").write(tmp_path / "t.json")
    )


def with_memory(
    report: Report, *gib: tuple[float, float], why: Sequence[str] = ()
) -> Report:
    """A report whose ranks used so much: of tensors and held by torch, of 80 GiB."""
    (rank,) = report.ranks
    known = {"total": 80 * GIB, "why": tuple(why)}
    ranks = [
        replace(rank, rank=number, memory=MemoryReport(
            allocated_peak=int(tensors * GIB), reserved_peak=int(held * GIB), **known))
        for number, (tensors, held) in enumerate(gib)
    ]  # fmt: skip
    return replace(report, ranks=tuple(ranks))


@pytest.mark.parametrize(
    ("gib", "said"), [((50, 60), ["memory: copies"]), ((40.1, 60), [])]
)
def test_more_memory_is_told_with_its_reason(
    plain: Report, gib: tuple[float, float], said: list[str]
) -> None:
    before = with_memory(plain, (40, 50))
    after = with_memory(plain, gib, why=["copies"])
    assert memory_notes(pair_memory(before, after)) == said


def test_the_fullest_rank_stands_for_a_run(plain: Report) -> None:
    before, after = with_memory(plain, (40, 50)), with_memory(plain, (40, 50), (60, 78))
    pair = present(pair_memory(before, after))
    assert (pair.rank, pair.candidate_allocated) == (1, 60 * GIB)
