"""Placing the launches of a trace is a function: nothing but the trace decides, in any order."""

from __future__ import annotations

import pickle
import random
from array import array
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from fp8verify.analysis.gemms import classify_kernels
from fp8verify.analysis.kinds import Kinds
from fp8verify.analysis.placing import place
from fp8verify.analysis.placing.known import ANY, LEG_OF, ONLY, narrowed
from fp8verify.terms import Leg
from fp8verify.trace import Trace, read_trace
from fp8verify.trace.tables import Kernels
from tests.captures import ROOT
from tests.hand_built import BF16, BF16_KERNEL, TraceBuilder
from tests.laws import runs

# Functions of whole layers, an optimizer's products, replays, experts, a log without operators.
CAPTURES = (
    "fp8_te_delayed",
    "fp8_muon",
    "fp8_cudagraphs",
    "fp8_experts",
    "fp8_blas_log",
)
SEEDS = range(1, 9)
SPLIT_K = (
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(int)"
)
TRACES = "rank[0-9].json*"


def state_of(trace: Trace, kinds: Kinds) -> bytes:
    """Everything that placing may read."""
    return pickle.dumps((trace, list(kinds.ids), kinds.rows, kinds.without_code))


def what(trace: Trace, kinds: Kinds) -> list[tuple[Any, ...]]:
    """Where every launch belongs, comparable: its index first."""
    found: list[tuple[Any, ...]] = []
    for placed in place(trace, kinds):
        forward = None if placed.forward is None else placed.forward.position
        found.append(
            (
                placed.gemm.index,
                placed.gemm.kind,
                placed.owner,
                placed.legs,
                placed.shape,
                placed.node,
                forward,
                placed.trained,
                placed.micro_batch,
            )
        )
    return found


def assert_is_pure(trace: Trace) -> None:
    kinds = classify_kernels(trace)
    before = state_of(trace, kinds)
    first = what(trace, kinds)
    assert state_of(trace, kinds) == before
    assert what(trace, kinds) == first
    assert what(trace, classify_kernels(trace)) == first


@pytest.mark.parametrize("name", CAPTURES)
def test_placing_a_capture_changes_nothing_and_is_repeatable(name: str) -> None:
    traces = sorted((ROOT / name).glob(TRACES))
    assert traces
    for path in traces:
        assert_is_pure(read_trace(path))


@pytest.mark.parametrize("seed", SEEDS)
def test_placing_a_random_run_changes_nothing_and_is_repeatable(
    seed: int, tmp_path: Path
) -> None:
    run = runs.random_run(random.Random(seed).choice)
    folder = runs.write(run, tmp_path / "run")
    for path in sorted(folder.glob(TRACES)):
        assert_is_pure(read_trace(path))


def test_a_placed_launch_cannot_be_changed(tmp_path: Path) -> None:
    run = runs.random_run(random.Random(1).choice)
    trace = read_trace(runs.write(run, tmp_path / "run") / "rank0.json")
    placed, *_ = place(trace, classify_kernels(trace))
    with pytest.raises(AttributeError):
        placed.trained = False  # type: ignore[misc]
    with pytest.raises(AttributeError):
        placed.gemm.shape = None  # type: ignore[misc]


def test_the_order_of_kernels_in_the_file_decides_nothing(tmp_path: Path) -> None:
    for seed in SEEDS:
        run = runs.random_run(random.Random(seed).choice)
        folder = runs.write(run, tmp_path / f"run {seed}")
        trace = read_trace(folder / "rank0.json")
        order = list(range(len(trace.kernels)))
        random.Random(seed).shuffle(order)
        shuffled = shuffled_kernels(trace, order)
        found = [
            (order[index], *rest)
            for index, *rest in what(shuffled, classify_kernels(shuffled))
        ]
        assert found == what(trace, classify_kernels(trace))


def shuffled_kernels(trace: Trace, order: list[int]) -> Trace:
    """Return a trace whose kernels stand in another order."""
    columns = {}
    for name, values in asdict(trace.kernels).items():
        chosen = [values[index] for index in order] if values else []
        columns[name] = array(values.typecode, chosen)
    return replace(trace, kernels=Kernels(**columns))


def test_the_reduction_of_a_split_product_is_where_its_product_is(
    tmp_path: Path,
) -> None:
    build = TraceBuilder(tmp_path)
    dims = ((8, 64, 32), (8, 32, 64))
    values = ((8, 64, 64), (8, 64, 32))
    build.launch(BF16_KERNEL, "aten::bmm", types=(BF16, BF16), dims=dims)
    build.launch(SPLIT_K, "aten::bmm", types=(BF16, BF16), dims=dims)
    build.launch("softmax_warp_forward", "aten::_softmax")
    build.launch(BF16_KERNEL, "aten::bmm", types=(BF16, BF16), dims=values)
    build.gemm("fprop", 64, 32, 16, fp8=False)
    build.launch(SPLIT_K, "aten::mm", types=(BF16, BF16), dims=((64, 16), (16, 32)))
    trace = build.read()
    found = [placed.leg for placed in place(trace, classify_kernels(trace))]
    assert found == [Leg.ATTENTION] * 3 + [Leg.FPROP] * 2


SETS = st.sets(st.sampled_from(sorted(ANY)), min_size=1).map(frozenset)


@given(st.sampled_from(sorted(ANY)), st.lists(SETS, max_size=4))
def test_evidence_that_agrees_narrows_in_any_order(
    truth: Leg, evidence: list[frozenset[Leg]]
) -> None:
    agreeing = [allowed | {truth} for allowed in evidence]
    found = {narrowed(ANY, *order) for order in permutations(agreeing)}
    assert found == {ANY.intersection(*agreeing)}


@given(SETS, st.lists(SETS, max_size=4))
def test_what_contradicts_stronger_evidence_says_nothing(
    legs: frozenset[Leg], evidence: list[frozenset[Leg]]
) -> None:
    found = narrowed(legs, *evidence)
    assert found <= legs
    assert found in LEG_OF
    assert narrowed(legs, *evidence, ANY - found or ANY) == found


def test_a_single_leg_counts_as_itself() -> None:
    assert {LEG_OF[legs] for legs in ONLY.values()} == ANY
    assert LEG_OF[ANY] is Leg.UNKNOWN
    assert LEG_OF[ONLY[Leg.DGRAD] | ONLY[Leg.WGRAD]] is Leg.BACKWARD
