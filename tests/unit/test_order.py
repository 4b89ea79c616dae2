"""Which module a call is of by the order of the list, by hand-built executions."""

from __future__ import annotations

import pytest

from fp8verify.analysis.calls import Call
from fp8verify.terms import LEGS, Leg
from fp8verify.thresholds import FIRST_LAYERS
from fp8verify.verdict.ledger import Place
from fp8verify.verdict.order import (
    in_order_of_sizes,
    in_order_without_sizes,
    order_of_replay,
)
from tests.unit.test_ledger import DOWN, HIGH, LOW, UP, Module, call
from tests.unit.test_peers import ledger_of

F, D, W, U = Leg.FPROP, Leg.DGRAD, Leg.WGRAD, Leg.UNKNOWN
EXPERT = (32, 8)
Sizes = list[tuple[tuple[int, int], str]]
Found = list[tuple[list[int], list[str]]]


def by_sizes(calls: list[tuple[int, int]], sizes: Sizes) -> Found:
    """Return the places of calls and which modules they are, by calls' and modules' sizes."""
    ran = [call({F: LOW}, size) for size in calls]
    program = ledger_of([ran]).program_of[Place(0, 0, 0)]
    listed = [(size, Module(name)) for size, name in sizes]
    found = in_order_of_sizes(program, listed)  # type: ignore[arg-type]
    return sorted((places, [one.fqn for one in modules]) for places, modules in found)


def without_sizes(calls: list[Call], sizes: Sizes) -> Found:
    """Return the same of calls without sizes; the module "high" is in high precision."""
    program = ledger_of([calls]).program_of[Place(0, 0, 0)]
    listed = [(size, Module(name)) for size, name in sizes]
    found = in_order_without_sizes(program, listed, lambda one, _: one.fqn != "high")  # type: ignore[arg-type]
    return [(places, [one.fqn for one in modules]) for places, modules in found]


def replayed(sizes: Sizes, launches: int) -> list[list[tuple[str, Leg]]]:
    """Return the module and leg of each launch of a replay, by parts that cannot be told apart."""
    listed = [(size, Module(name)) for size, name in sizes]
    parts = order_of_replay(listed, launches)  # type: ignore[arg-type]
    return [[(module.fqn, leg) for module, leg in part.legs] for part in parts]


UP_UP_DOWN: Sizes = [(UP, "up.0"), (UP, "up.1"), (DOWN, "down")]


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ([UP, UP, DOWN], [([0, 1], ["up.0", "up.1"]), ([2], ["down"])]),
        ([UP, DOWN, UP], []),
        ([UP, DOWN], []),
    ],
)
def test_calls_with_the_sizes_of_the_list_are_its_modules(
    calls: list[tuple[int, int]], found: Found
) -> None:
    assert by_sizes(calls, UP_UP_DOWN) == found


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ([UP, EXPERT, DOWN], [([0], ["up"]), ([1], ["experts.0", "experts.1"]), ([2], ["down"])]),
        ([UP, EXPERT, EXPERT, DOWN],
         [([0], ["up"]), ([1, 2], ["experts.0", "experts.1"]), ([3], ["down"])]),
        ([UP, DOWN], [([0], ["up"]), ([1], ["down"])]),
        ([UP, EXPERT, EXPERT, EXPERT, DOWN], []),  # more than the block has
        ([UP, DOWN, EXPERT], []),  # where the list has none
        ([DOWN, EXPERT, UP], []),
    ],
)  # fmt: skip
def test_some_experts_of_a_block_run_among_the_others_in_order(
    calls: list[tuple[int, int]], found: Found
) -> None:
    experts = [(EXPERT, "experts.0"), (EXPERT, "experts.1")]
    assert by_sizes(calls, [(UP, "up"), *experts, (DOWN, "down")]) == found


def test_all_experts_of_one_block_may_run_and_some_of_another() -> None:
    first: Sizes = [(UP, "0.up"), (EXPERT, "0.experts.0"), (EXPERT, "0.experts.1")]
    second: Sizes = [(UP, "1.up"), (EXPERT, "1.experts.0"), (EXPERT, "1.experts.1")]
    found = by_sizes([UP, EXPERT, EXPERT, UP, EXPERT], [*first, *second])
    of_experts = [one for one in found if "experts" in one[1][0]]
    assert of_experts == [
        ([1, 2], ["0.experts.0", "0.experts.1"]),
        ([4], ["1.experts.0", "1.experts.1"]),
    ]


UP_HIGH: Sizes = [(UP, "up"), (DOWN, "high")]
FIRST_LOW = [call({F: LOW}, None), call({F: HIGH}, None)]


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        (FIRST_LOW, [([0], ["up"]), ([1], ["high"])]),
        ([call({F: HIGH}, None)] * 2, [([0], ["up"]), ([1], ["high"])]),
        (FIRST_LOW[::-1], []),  # what the list keeps high runs low
        (FIRST_LOW[:1], []),
        ([*FIRST_LOW, call({U: HIGH}, None)], []),  # may be the model's
        ([FIRST_LOW[0], call({F: HIGH}, DOWN)], []),
    ],
)
def test_as_many_calls_without_sizes_as_the_list_has_are_in_its_order(
    calls: list[Call], found: Found
) -> None:
    assert without_sizes(calls, UP_HIGH) == found


def test_passes_without_sizes_are_each_in_the_order_of_the_list() -> None:
    found = without_sizes(FIRST_LOW * 2, UP_HIGH)
    assert found == [([0], ["up"]), ([1], ["high"]), ([2], ["up"]), ([3], ["high"])]


def test_only_the_forward_product_tells_whether_a_call_is_in_the_order() -> None:
    calls = [call({F: LOW}, None), call({F: HIGH, D: LOW, W: LOW}, None)]
    assert without_sizes(calls, UP_HIGH) == [([0], ["up"]), ([1], ["high"])]


def test_experts_without_sizes_are_in_no_order() -> None:
    assert without_sizes(FIRST_LOW, [(UP, "experts.0"), (DOWN, "high")]) == []


def test_a_replay_goes_through_the_list_and_back() -> None:
    there = [[("up.0", F), ("up.1", F)], [("down", F)]]
    ups = [("up.0", D), ("up.0", W), ("up.1", D), ("up.1", W)]
    back = [[("down", D), ("down", W)], ups]
    assert replayed(UP_UP_DOWN, 9) == [*there, *back]
    assert replayed(UP_UP_DOWN, 18) == [*there, *back] * 2


@pytest.mark.parametrize("missing", [0, 1, FIRST_LAYERS, FIRST_LAYERS + 1])
def test_the_first_layers_of_a_replay_may_have_no_dgrad(missing: int) -> None:
    sizes: Sizes = [((16, 8 * n), f"blocks.{n}") for n in range(1, FIRST_LAYERS + 3)]
    found = replayed(sizes, len(LEGS) * len(sizes) - missing)
    if missing > FIRST_LAYERS:
        assert found == []
        return
    gradients = [leg for part in found[::-1] for _, leg in part if leg is not F]
    assert gradients == [W] * missing + [D, W] * (len(sizes) - missing)


def test_passes_that_lack_unlike_numbers_of_dgrads_are_no_replay_in_order() -> None:
    assert replayed(UP_UP_DOWN, 17) == []
    assert len(replayed(UP_UP_DOWN, 16)) == 8


def test_a_replay_with_experts_is_in_no_order() -> None:
    assert replayed([(UP, "experts.0"), (DOWN, "down")], 6) == []
