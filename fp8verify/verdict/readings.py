"""How many launches may run in high precision, where it is not known which modules they are of.

Launches are read as passes through the modules of a list. Each pass multiplies each module forward,
takes its gradients, of which the first layers of a model lack dgrad, and may compute some forward
products again. Of single experts any number runs. Often several readings fit the same number of
launches: what all of them forbid lacks surely, what only some forbid lacks perhaps. Of these, those
by which whole blocks were computed again are heard first: so do frameworks that save memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fp8verify.capture.schema import ModuleRecord
from fp8verify.terms import Leg
from fp8verify.thresholds import FIRST_LAYERS
from fp8verify.verdict.blocks import block_in
from fp8verify.verdict.ledger import first_layers, legs_of
from fp8verify.verdict.order import is_expert
from fp8verify.verdict.statements import Statements, runs


class High(NamedTuple):
    """Launches that may run in high precision: by the strictest reading, and by any."""

    least: int
    most: int


class Launches(NamedTuple):
    """Launches of some modules.

    Attributes:
        launches: how many there are, or calls where their leg is known.
        leg: what is known of their legs.
        forward: how many forward products the same modules have; None if these are among them.
        may_repeat: whether forward products that were computed again may be among them.
    """

    launches: int
    leg: Leg
    forward: int | None
    may_repeat: bool


class _Pass(NamedTuple):
    """Passes through modules: how many, and the forward products of all of them."""

    passes: int
    calls: int


class _Modules:
    """Modules by what is stated of them, those of single experts apart."""

    def __init__(self, modules: Sequence[ModuleRecord], statements: Statements) -> None:
        self._statements = statements
        self.experts = [module for module in modules if is_expert(module)]
        self.always = [module for module in modules if not is_expert(module)]

    @property
    def outside_of_blocks(self) -> int:
        """How many modules are of no block, as a head."""
        blocks = [block_in(module.fqn) for module in self.always]
        return blocks.count(None)

    def low(self, leg: Leg, modules: Iterable[ModuleRecord]) -> int:
        """Return how many of some modules run a leg in low precision."""
        low = 0
        for module in modules:
            low += self._statements.is_low(module, leg)
        return low

    def high(self, leg: Leg, modules: Iterable[ModuleRecord]) -> int:
        """Return how many of some modules run a leg in high precision."""
        running = [module for module in modules if runs(module, leg)]
        return len(running) - self.low(leg, running)

    def calls(self, leg: Leg, ran: _Pass) -> int:
        """Return how many launches of a leg passes have: frozen weights have no wgrad."""
        running = [module for module in self.always if runs(module, leg)]
        without = len(self.always) - len(running)
        missing = ran.passes * without
        return ran.calls - missing

    def of_leg(self, leg: Leg, ran: _Pass) -> High:
        """Return how many launches of a leg run in high precision in passes."""
        passes = ran.passes
        always = passes * self.high(leg, self.always)
        of_experts = ran.calls - passes * len(self.always)
        low_experts = passes * self.low(leg, self.experts)
        every_expert = passes * len(self.experts)
        high_experts = every_expert - low_experts
        return High(
            least=always + max(0, of_experts - low_experts),
            most=always + min(of_experts, high_experts),
        )


def high_launches(
    ran: Launches,
    modules: Sequence[ModuleRecord],
    statements: Statements,
) -> High | None:
    """Return how many launches may run in high precision, None if they are no passes."""
    readings = list(_readings(ran, _Modules(modules, statements)))
    if not readings:
        return None
    of_whole_blocks = [one for one in readings if one.is_of_whole_blocks]
    strictest = min(one.high.least for one in of_whole_blocks or readings)
    most = max(one.high.most for one in readings)
    return High(strictest, most)


class _Reading(NamedTuple):
    """What may run in high precision, and whether whole blocks or none were computed again."""

    high: High
    is_of_whole_blocks: bool


def _readings(ran: Launches, modules: _Modules) -> Iterator[_Reading]:
    """Yield the readings that fit."""
    legs = () if ran.leg is Leg.RECOMPUTE else legs_of(ran.leg)
    for one in _passes(ran, modules):
        whole = 0
        for leg in legs:
            whole += modules.calls(leg, one)
        each = 1 if modules.experts else one.passes
        first = one.passes * first_layers(legs)
        in_blocks = one.calls - one.passes * modules.outside_of_blocks
        for lacking in range(0, first + 1, each):
            again = ran.launches - whole + lacking
            may_repeat = ran.may_repeat and ran.launches > whole
            most = one.calls * may_repeat
            if again in range(0, most + 1, each):
                high = _high(legs, one, lacking, again, modules)
                yield _Reading(high, again in (0, one.calls, in_blocks))


def _passes(ran: Launches, modules: _Modules) -> Iterator[_Pass]:
    """Yield the passes that launches may be."""
    always = len(modules.always)
    every = always + len(modules.experts)
    if ran.forward is None:
        if modules.experts:
            return  # any number of them may have run
        legs = len(legs_of(ran.leg))
        fewest_launches = max(1, legs * every - FIRST_LAYERS)
        most_passes = ran.launches // fewest_launches
        for passes in range(1, most_passes + 1):
            yield _Pass(passes, passes * every)
        return
    whole_passes = math.ceil(ran.forward / every)
    fewest = max(1, whole_passes)
    most = ran.forward // always if always else fewest
    for passes in range(fewest, most + 1):
        yield _Pass(passes, ran.forward)


def _high(
    legs: Sequence[Leg],
    ran: _Pass,
    lacking: int,
    again: int,
    modules: _Modules,
) -> High:
    """Return what may run in high precision by one reading.

    Args:
        legs: that each module launches.
        ran: the passes.
        lacking: how many dgrads the first layers lack.
        again: how many forward products were computed again.
        modules: of the passes.
    """
    least = 0
    most = 0
    for leg in legs:
        of_leg = modules.of_leg(leg, ran)
        least += of_leg.least
        most += of_leg.most
    # The first layers of a model are mostly the first of its list.
    first = modules.always[: lacking // ran.passes]
    high_in_pass = modules.high(Leg.DGRAD, first)
    least -= ran.passes * high_in_pass
    low_in_pass = modules.low(Leg.DGRAD, modules.always)
    low_dgrads = ran.passes * low_in_pass
    most -= max(0, lacking - low_dgrads)
    forward = modules.of_leg(Leg.FPROP, ran)
    low_forward = ran.calls - forward.least
    least += max(0, again - low_forward)
    most += min(again, forward.most)
    return High(max(0, least), most)
