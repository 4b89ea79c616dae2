"""What the statements of a log come to: the last one before a window holds.

A program may claim FP8, fall back, be started again with another recipe, or be told to train in
BF16: each statement takes back what contradicts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from fp8verify.report.model.parts import Claim, Mention

if TYPE_CHECKING:  # a report without a log needs none of its patterns
    from fp8verify.logs.promises import LayerPromise, PhasePromise

CONFIGURATION = "configuration"


class Statement(NamedTuple):
    """A claim, where it stands, and what it replaces.

    Attributes:
        claim: what a line says.
        topic: statements on the same topic replace each other, such as two recipes in the same
            words, or two values of a setting.
        rank: whose line it is; None for rank 0 too, which speaks for the run.
        steps: the first and the last step that the log names between this statement and the next.
    """

    claim: Claim
    topic: str
    rank: str | None = None
    steps: tuple[int, int] | None = None


class LogReading(NamedTuple):
    """The statements of logs on low precision.

    Attributes:
        statements: in order, each wording once unless another took it back in between.
        notes: what was not read.
        pins: what is said of single layers, whether or not its section is in use.
        phases: the formats promised to ranges of steps.
        mention: the first line that names FP8 and claims nothing.
    """

    statements: Sequence[Statement] = ()
    notes: Sequence[str] = ()
    pins: Sequence[LayerPromise] = ()
    phases: Sequence[PhasePromise] = ()
    mention: Mention | None = None

    @property
    def claims(self) -> list[Claim]:
        """What the statements come to at the end of the logs."""
        return self.claims_at(None)

    def claims_at(self, step: int | None) -> list[Claim]:
        """Return what the statements of each log come to before a step of the run."""
        sources = dict.fromkeys(statement.claim.source for statement in self.statements)
        found: dict[tuple[str, str, str], Claim] = {}
        for source in sources:
            own = [one for one in self.statements if one.claim.source == source]
            for claim in _resolved(_before(own, step)):
                found.setdefault((claim.framework, claim.text, claim.says), claim)
        return list(found.values())

    @property
    def layers(self) -> tuple[LayerPromise, ...]:
        """What is said of single layers."""
        return self.layers_for(self.claims)

    def layers_for(self, claims: Iterable[Claim]) -> tuple[LayerPromise, ...]:
        """Return what is said of single layers; a list of filters counts with its converter."""
        formats = {claim.format for claim in claims if claim.says == "fp8"}
        return tuple(pin for pin in self.pins if not pin.section or pin.section in formats)


def _before(statements: list[Statement], step: int | None) -> list[Statement]:
    """Return the statements up to the last attempt's arrival at a step; all if it is not told."""
    for index in range(len(statements) - 1, -1, -1):
        steps = statements[index].steps
        if step is not None and steps is not None and steps[0] <= step <= steps[1]:
            return statements[: index + 1]
    return statements


def _resolved(statements: Iterable[Statement]) -> list[Claim]:
    held: list[Statement] = []
    for statement in statements:
        held = [_after(one, statement) for one in held]
        denied = statement.claim.strength == CONFIGURATION and any(
            one.claim.says == "not_fp8" and one.rank is None for one in held
        )
        held.append(_revoked(statement) if denied else statement)
    return [one.claim for one in held if one.claim.says != "off"]


def _after(earlier: Statement, later: Statement) -> Statement:
    """Return a statement as a later one leaves it."""
    says, other = earlier.claim.says, later.claim
    if says not in ("fp8", "not_fp8") or later.rank not in (None, earlier.rank):
        return earlier
    replaced = earlier.topic == later.topic and earlier.claim.text != other.text
    # A request does not take back that a program reports no FP8; that 0 layers were converted is
    # no word on what was asked for.
    contradicted = (
        {says, other.says} == {"fp8", "not_fp8"}
        and other.strength != CONFIGURATION
        and other.converted is None
        and earlier.claim.converted != 0
    )
    return _revoked(earlier) if replaced or contradicted else earlier


def _revoked(statement: Statement) -> Statement:
    return statement._replace(claim=replace(statement.claim, says="revoked"))
