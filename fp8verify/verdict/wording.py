"""How sentences name what cells of a ledger are, and what ran there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from fp8verify.analysis.kinds import EXPERTS
from fp8verify.analysis.rank import RankEvidence
from fp8verify.model.steps import are_whole
from fp8verify.terms import BACKWARD_LEGS, GRADIENT_LEGS, Leg
from fp8verify.text import MEASURES, enumerated, listed, shown_size
from fp8verify.thresholds import SHOWN_NUMBERS
from fp8verify.verdict.apart import Apart
from fp8verify.verdict.coordinates import VALUE_OF
from fp8verify.verdict.ledger import Cell, Layer, Ledger
from fp8verify.verdict.selection import legs_in, ranks_of

_TIME: Final = MEASURES["time"]
_PLURALS: Final = {"step": "steps", "micro-batch": "micro-batches", "rank": "ranks"}
_UNNAMED: Final[dict[Layer, str]] = {EXPERTS: "experts", None: "layers of unknown size"}


def name_value(ranks: Sequence[RankEvidence], cell: Cell, name: str) -> str:
    """Name the value of one coordinate of a cell."""
    if name == "rank":
        return ranks[cell.rank].label
    if name == "step":
        return _name_of_step(ranks[cell.rank], cell)
    if name == "micro-batch":
        return f"micro-batch {cell.micro_batch + 1}"
    if name == "leg":
        return cell.leg.value
    return _name_of_layer(cell.layer)


def _name_of_step(rank: RankEvidence, cell: Cell) -> str:
    if cell.step < 0:
        return "step unknown"
    return f"step {rank.trace.steps[cell.step].number}"


def _name_of_layer(layer: Layer) -> str:
    if isinstance(layer, str):
        return layer
    size = shown_size(layer or ())
    return _UNNAMED.get(layer) or size


def name_of_apart(call: Apart) -> str:
    """Name a call that ran otherwise than that of other blocks: by its module, if that is known.

    Where neighbors of one size cannot be told apart, it is one of them.
    """
    if call.modules:
        return " or ".join(call.modules)
    return (
        f"a {_name_of_layer(call.layer)} layer of block {call.block} (counted from 0)"
    )


def name_values(
    ranks: Sequence[RankEvidence],
    cells: Iterable[Cell],
    name: str,
) -> list[str]:
    """Name the values of one coordinate of cells, each once and in order."""
    names: dict[str, None] = {}
    for cell in sorted(cells, key=partial(_place_in_order, name)):
        names[name_value(ranks, cell, name)] = None
    return list(names)


def _place_in_order(name: str, cell: Cell) -> str:
    """Return a key that sorts numbers by their value."""
    value = VALUE_OF[name](cell)
    return str(value).zfill(9)


def join_values(values: Sequence[str], name: str) -> str:
    """Join values of one coordinate: "steps 5 and 7"."""
    if name in _PLURALS and len(values) > 1:
        numbers = [value.rpartition(" ")[2] for value in values]
        if all(map(str.isdecimal, numbers)):
            return f"{_PLURALS[name]} {enumerated(numbers, SHOWN_NUMBERS)}"
    return listed(values)


def name_legs(legs: Iterable[Leg]) -> str:
    """Name the legs of GEMMs that are counted together."""
    found = set(legs)
    if found == {Leg.RECOMPUTE}:
        return "recomputed forward"
    may_be_either = Leg.BACKWARD in found and len(found) > 1
    if may_be_either and found.issubset(BACKWARD_LEGS):
        return "gradient"
    if Leg.UNKNOWN in found:
        return "linear-layer"
    names = [leg.value for leg in Leg if leg in found]
    return enumerated(names, len(Leg))


def what_ran(
    ranks: Sequence[RankEvidence],
    ledger: Ledger,
    cells: Iterable[Cell],
    of: str = "",
) -> str:
    """Say how many GEMMs of some cells ran in high precision.

    Args:
        ranks: all.
        ledger: what ran.
        cells: where.
        of: whose GEMMs they are, behind a blank.
    """
    cells = list(cells)
    counted = _with_vague_gradients(ledger, cells)
    ran = ledger.total(counted)
    legs = name_legs(legs_in(counted))
    main = ledger.main_high(counted)
    _, high_ns = ledger.times(counted)
    took = of_gemm_time(ranks, ledger, cells, high_ns)
    if ran.launches == ran.high:
        return f"every {legs} GEMM{of} ran in {main} ({took})"
    not_low = round(ran.launches - ran.low)
    total = round(ran.launches)
    return f"{not_low} of {total} {legs} GEMMs{of} ran in {main} ({took})"


def of_gemm_time(
    ranks: Sequence[RankEvidence],
    ledger: Ledger,
    cells: Iterable[Cell],
    part_ns: float,
) -> str:
    """Say how much of the GEMM time of the ranks of some cells a part is."""
    every: list[Cell] = []
    for index in ranks_of(cells):
        every += ledger.of_rank(index)
    every_ns, _ = ledger.times(every)
    whole_ns = float(every_ns)
    measure = ranks[0].measure
    steps = _steps_of(every)
    where = ""
    if steps and _steps_of(cells) < steps:
        where = " in the window"  # a part is of some of its steps
    elif steps and _are_whole(ranks, every):
        where = " per step"
        part_ns /= steps
        whole_ns /= steps
    return f"{measure.amount(part_ns, whole_ns)} of GEMM {measure.name}{where}"


def _steps_of(cells: Iterable[Cell]) -> int:
    """Return how many steps of ranks cells are of; 0 where some are of no step."""
    steps = {(cell.rank, cell.step) for cell in cells}
    if any(step < 0 for _, step in steps):
        return 0
    return len(steps)


def _are_whole(ranks: Sequence[RankEvidence], cells: Iterable[Cell]) -> bool:
    """Whether all kernels were read of the steps of the ranks of cells."""
    of_ranks = [ranks[index].trace.steps for index in ranks_of(cells)]
    return all(map(are_whole, of_ranks))


def ms_of(rank: RankEvidence, time_ns: float) -> str:
    """Return a time of a rank's window as "1.2 ms per step", where it has whole steps only."""
    steps = rank.trace.steps
    if steps and are_whole(steps):
        return f"{_TIME.amount(time_ns / len(steps))} per step"
    return f"{_TIME.amount(time_ns)} in the window"


def _with_vague_gradients(ledger: Ledger, cells: list[Cell]) -> list[Cell]:
    """Return cells with all gradients beside theirs, where some may be dgrad or wgrad."""
    gradients: list[Cell] = []
    for cell in cells:
        if cell.leg in GRADIENT_LEGS:
            for leg in BACKWARD_LEGS:
                gradients.append(cell._replace(leg=leg))
    gradients = list(filter(ledger.cells.__contains__, gradients))
    if Leg.BACKWARD in legs_in(gradients):
        return list(dict.fromkeys([*cells, *gradients]))
    return cells
