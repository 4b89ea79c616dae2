"""Placing the launches of a trace is a function: nothing but the trace decides, in any order."""

from __future__ import annotations

import pickle
import random
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8verify.analysis.gemms import classify_kernels
from fp8verify.analysis.kinds import Kinds
from fp8verify.analysis.placing import place
from fp8verify.analysis.placing.known import ANY, LEG_OF, ONLY, narrowed
from fp8verify.terms import Leg
from fp8verify.trace import Trace, read_trace
from tests.captures import ROOT
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
TRACES = "rank[0-9].json*"


def state_of(trace: Trace, kinds: Kinds) -> bytes:
    """Everything that placing may read."""
    return pickle.dumps((trace, list(kinds.ids), kinds.rows, kinds.without_code))


def what(trace: Trace, kinds: Kinds) -> list[object]:
    """Where every launch belongs, comparable."""
    found: list[object] = []
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
