"""What the statements of a log come to: the last one before a window holds.

A program may claim FP8, fall back, be started again with another recipe, or be told to train in
BF16: each statement takes back what contradicts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from fp8verify.model.claims import Claim, Mention
from fp8verify.patterns import lazy_pattern

CONFIGURATION = "configuration"
HIGH_PRECISION = "high_precision"
_BLOCK = lazy_pattern(r"(?:^|\.)(?:layers|blocks|h|layer)\.(\d+)(?:\.|$)")


class LayerClaim(NamedTuple):
    """The format in which a log line says that certain layers run.

    Attributes:
        select: how `names` select a module by its qualified name: "name" (the same, apart from
            leading parts that only one side has), "part" (contained in it, as torchtitan's
            filter_fqns), or "blocks" (transformer blocks, names are their numbers from 0).
        names: the names, parts or numbers; any of them selects.
        format: fp8, mxfp8, nvfp4, mxfp4, fp4, or high_precision (a pin).
        framework: whose line it is.
        line: its number, from 1.
        text: the line.
        section: the format whose converter a list of filters belongs to, empty if not known.
    """

    select: str
    names: tuple[str, ...]
    format: str
    framework: str
    line: int
    text: str
    section: str = ""

    @property
    def is_pin(self) -> bool:
        """Whether the layers are to stay in high precision."""
        return self.format == HIGH_PRECISION

    def covers(self, module: str) -> bool:
        """Whether the line is about a module, given by its qualified name."""
        if self.select == "blocks":
            block = _BLOCK.search(module)
            return block is not None and block[1] in self.names
        if self.select == "part":
            return any(name in module for name in self.names)
        return any(_is_end_of_other(module, name) for name in self.names)


def _is_end_of_other(module: str, name: str) -> bool:
    """Whether of two names one ends with all parts of the other."""
    ours = f".{module}"
    theirs = f".{name}"
    return ours.endswith(theirs) or theirs.endswith(ours)


class PhaseClaim(NamedTuple):
    """The format in which a log line says that a range of steps runs.

    Attributes:
        format: fp8, mxfp8, nvfp4, mxfp4, fp4, or high_precision (a warm-up).
        first_step: first step of the range; None if it begins with the run.
        last_step: last step of the range; None if it lasts to the end.
    """

    format: str
    first_step: int | None
    last_step: int | None

    def covers(self, step: int) -> bool:
        """Whether a step, by the run's own number, is in the range."""
        first = self.first_step
        last = self.last_step
        return (first is None or step >= first) and (last is None or step <= last)


class Statement(NamedTuple):
    """A claim, where it stands, and what it replaces.

    Attributes:
        claim: what a line says.
        topic: statements on the same topic replace each other, such as two recipes in the same
            words, or two values of a setting.
        rank: whose line it is; None for rank 0 too, which speaks for the run.
        steps: the first and the last step that the log names between this statement and the next.
        phase: the steps for which it holds, None for all.
        stretch: greater than that of an earlier statement if the run trained, failed or was started
            again between the two.
    """

    claim: Claim
    topic: str
    rank: str | None = None
    steps: tuple[int, int] | None = None
    phase: PhaseClaim | None = None
    stretch: int = 0


class LogReading(NamedTuple):
    """The statements of logs on low precision.

    Attributes:
        statements: in order, each wording once unless another took it back in between.
        notes: what was not read.
        layers: what is said of single layers, whether or not its section is in use.
        mention: the first line that names FP8 and claims nothing.
    """

    statements: Sequence[Statement] = ()
    notes: Sequence[str] = ()
    layers: Sequence[LayerClaim] = ()
    mention: Mention | None = None

    def held_at(self, step: int | None = None) -> list[Statement]:
        """Return what each log states before a step of the run, or None for its end."""
        of_logs: dict[str, list[Statement]] = {}
        for statement in self.statements:
            of_logs.setdefault(statement.claim.source, []).append(statement)
        held: list[Statement] = []
        for statements in of_logs.values():
            held += _resolved(_before(statements, step))
        return held

    def claims_at(
        self, step: int | None = None, counted: Sequence[int] = ()
    ) -> list[Claim]:
        """Return what the statements of each log come to before a step of the run, or its end.

        Args:
            step: the first step of a window; None for the end of the run.
            counted: its steps as the log's own lines count them: what holds for a range of steps
                counts if one of these is in it; if all are in high precision, nothing claims more.
        """
        found: dict[tuple[str, str, str], Claim] = {}
        held = self.held_at(step)
        formats = {phase_at(held, number, (0,)) for number in counted}
        is_high = formats == {HIGH_PRECISION}
        for one in held:
            if one.phase is not None and not any(map(one.phase.covers, counted)):
                continue
            if is_high and one.claim.says == "fp8":
                one = _revoked(one)
            claim = one.claim
            found.setdefault((claim.framework, claim.text, claim.says), claim)
        return list(found.values())

    def layers_for(self, claims: Iterable[Claim]) -> tuple[LayerClaim, ...]:
        """Return what is said of single layers; a list of filters counts with its converter."""
        formats = {claim.format for claim in claims if claim.says == "fp8"}
        return tuple(
            one for one in self.layers if not one.section or one.section in formats
        )


def phase_at(
    statements: Iterable[Statement],
    step: int,
    ranks: Sequence[int] = (),
) -> str | None:
    """Return the format that is stated for a step on some ranks, None if nothing is."""
    numbers = (None, *map(str, ranks))
    current = None
    is_later = False
    for one in statements:
        if one.phase is None or one.claim.says == "revoked":
            continue
        if ranks and one.rank not in numbers:
            continue
        if one.phase.covers(step):
            current = one.phase.format
        if (one.phase.first_step or 0) > step:
            is_later = True
    if current is None and is_later:
        return HIGH_PRECISION
    return current


def _before(
    statements: list[Statement],
    step: int | None,
) -> list[Statement]:
    """Return the statements up to the last attempt's arrival at a step; all if it is not told.

    Before the first statement, which says nothing, a run may have come by a step that is not named.
    """
    if step is None:
        return statements
    arrived = len(statements)
    for place, one in enumerate(statements, 1):
        if one.steps is None:
            continue
        first, last = one.steps
        if place == 1:
            first = 0
        if first <= step <= last:
            arrived = place
    return statements[:arrived]


def _resolved(statements: Iterable[Statement]) -> list[Statement]:
    held: list[Statement] = []
    for statement in statements:
        held = [_after(one, statement) for one in held]
        is_request = statement.claim.strength == CONFIGURATION
        if is_request and any(map(_denies_all, held)):
            statement = _revoked(statement)
        held.append(statement)
    return [one for one in held if one.claim.says != "off"]


def _denies_all(statement: Statement) -> bool:
    """Whether a statement says of the whole run that it has no FP8."""
    is_of_all = statement.rank is None and statement.phase is None
    return is_of_all and statement.claim.says == "not_fp8"


def _after(earlier: Statement, later: Statement) -> Statement:
    """Return a statement as a later one leaves it."""
    says = earlier.claim.says
    other = later.claim
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
    if earlier.phase is not None and other.says == "fp8":
        # A program that is started again states its phases again.
        contradicted = later.stretch > earlier.stretch
    elif later.phase is not None:
        contradicted = contradicted and other.says == "fp8"
    if replaced or contradicted:
        return _revoked(earlier)
    return earlier


def _revoked(statement: Statement) -> Statement:
    return statement._replace(claim=replace(statement.claim, says="revoked"))
