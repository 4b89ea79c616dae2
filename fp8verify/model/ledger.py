"""The ledger of a run: what ran in each call of a layer, and what was expected to.

A call is one time that a layer multiplied: its forward product, and what autograd made of it. The
verdict is read from these entries; runs of equal ones are joined.
"""

from __future__ import annotations

import msgspec

from fp8verify.terms import Leg


class LedgerExecution(msgspec.Struct, frozen=True, kw_only=True):
    """A column: one forward pass through the model, with its backward pass.

    Attributes:
        rank: its rank's number, null where not known.
        step: the profiler's number of its step, null where the trace has no steps.
        micro_batch: its number within the step, from 1.
    """

    rank: int | None
    step: int | None
    micro_batch: int


class LedgerSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A row: which call of an execution, as finely as the evidence tells it.

    Attributes:
        label: what a picture names it: a layer's name, "block 3, 4096x4096", or a size.
        names: the layers that it is or may be; empty where nothing names it.
        named_by: "trace" if the trace names its layer, "order" if its place among the launches
            does; null without names.
        block: its block among those that repeat, from 0; null outside of these, or not known.
        position: its place among the calls of its block, else of the execution; null where calls
            of one size, or all, cannot be told apart.
        n: outputs of its layer, null where not known.
        k: inputs of its layer, null where not known.
    """

    label: str
    names: tuple[str, ...] = ()
    named_by: str | None = None
    block: int | None = None
    position: int | None = None
    n: int | None = None
    k: int | None = None


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What ran for one leg of a slot, in each of some executions that ran it alike.

    Attributes:
        slot: its index in `slots`.
        leg: fprop, dgrad, wgrad, backward (dgrad or wgrad), recompute or unknown (any of these).
        executions: indexes in `executions`, as ranges [first, last].
        launches: GEMMs in each of them.
        low: of the launches those in FP8 or FP4.
        unknown: of the launches those of unknown precision.
        precision: the precision class of most launches: of those in no low precision, if any are.
        least: of the launches those that are expected in FP8 or FP4 at least; null where nothing
            is.
        by: what expects it: names (the module of the call is known), modules (of its size), log
            (the blocks or layers that it leaves out), count (of converted layers in the log),
            executions (others, in this slot), call (its other legs), others (half of what
            executions that made other calls ran), or null.
        lacks: "surely", or "perhaps" where launches of unknown precision or unknown leg may be
            what lacks; null where nothing lacks.
    """

    slot: int
    leg: Leg
    executions: tuple[tuple[int, int], ...]
    launches: int
    low: int
    unknown: int
    precision: str
    least: int | None = None
    by: str | None = None
    lacks: str | None = None


class LedgerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of layers that train: slots by executions by legs.

    Attributes:
        executions: the columns, by rank, step and micro-batch.
        slots: the rows, in the order of the forward pass.
        entries: what ran.
        left_out: entries beyond what a report holds.
    """

    executions: tuple[LedgerExecution, ...]
    slots: tuple[LedgerSlot, ...]
    entries: tuple[LedgerEntry, ...]
    left_out: int = 0
