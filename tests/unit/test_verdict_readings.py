"""How many launches may run in high precision, where nobody knows which modules they are of."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fp8verify.capture.schema import ModuleRecord
from fp8verify.terms import Leg
from fp8verify.verdict.expected import Requested
from fp8verify.verdict.readings import High, Launches, high_launches
from fp8verify.verdict.statements import Statements

_NOTHING_SAID = Requested(claims=(), converted=(), emulated=(), formats={})
_STATEMENTS = Statements([], _NOTHING_SAID)


def _module(name: str, *, low: bool, frozen: bool = False) -> ModuleRecord:
    return ModuleRecord(
        fqn=name,
        class_name="Float8Linear" if low else "Linear",
        kind="linear",
        state="fp8" if low else "high_precision",
        frozen=frozen,
    )


def _blocks(count: int, *, first_is_low: bool = True) -> list[ModuleRecord]:
    """Return so many layers in FP8, but perhaps the first, and a head in BF16."""
    layers = []
    for number in range(count):
        layers.append(_module(f"blocks.{number}.up", low=first_is_low or number > 0))
    return [*layers, _module("lm_head", low=False)]


def _gradients(launches: int, modules: Sequence[ModuleRecord]) -> High | None:
    """Read launches of a backward pass whose legs are not known."""
    ran = Launches(launches, Leg.BACKWARD, forward=len(modules), may_repeat=True)
    return high_launches(ran, modules, _STATEMENTS)


def test_two_gradients_of_each_module_are_one_reading() -> None:
    assert _gradients(10, _blocks(4)) == High(2, 2)


def test_recomputed_products_may_be_those_of_the_head() -> None:
    assert _gradients(14, _blocks(4)) == High(2, 3)


def test_the_first_layers_lack_dgrad() -> None:
    assert _gradients(9, _blocks(4)) == High(2, 2)
    assert _gradients(9, _blocks(4, first_is_low=False)) == High(3, 4)


def test_whole_blocks_are_computed_again_rather_than_some_of_their_layers() -> None:
    """Else two of them ran again, and the first layer has a dgrad."""
    modules = _blocks(3)
    modules[2] = _module("blocks.2.up", low=False)
    high = _gradients(2 * 4 + 3 - 1, modules)
    assert high is not None
    assert high.least == 5


def test_frozen_weights_have_no_wgrad() -> None:
    modules = [_module("base", low=True, frozen=True), _module("head", low=False)]
    assert _gradients(3, modules) == High(2, 2)


def test_a_replay_holds_all_legs_of_several_passes() -> None:
    modules = _blocks(2)
    once = Launches(10, Leg.UNKNOWN, forward=None, may_repeat=True)
    assert high_launches(once, modules, _STATEMENTS) == High(3, 4)
    twice = Launches(20, Leg.UNKNOWN, forward=None, may_repeat=True)
    high = high_launches(twice, modules, _STATEMENTS)
    assert high is not None
    assert high.least == 6


@pytest.mark.parametrize(("forward", "high"), [(3, High(1, 1)), (5, High(1, 1))])
def test_any_number_of_experts_runs(forward: int, high: High) -> None:
    modules = _blocks(2)
    for number in range(4):
        modules.append(_module(f"experts.{number}.up", low=True))
    ran = Launches(forward, Leg.FPROP, forward=forward, may_repeat=False)
    assert high_launches(ran, modules, _STATEMENTS) == high


def test_what_is_no_whole_pass_has_no_reading() -> None:
    ran = Launches(7, Leg.FPROP, forward=7, may_repeat=False)
    assert high_launches(ran, _blocks(4), _STATEMENTS) is None
