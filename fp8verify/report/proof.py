"""The table that proves the sentence of a report: along ranks, steps, layers, blocks or legs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from fp8verify.model.kernels import LegRow
from fp8verify.model.ledger import LedgerEntry, LedgerReport
from fp8verify.model.report import RankReport, Report
from fp8verify.model.steps import are_whole
from fp8verify.model.verdict import Proof, ProofRow
from fp8verify.patterns import lazy_pattern
from fp8verify.report.page import Grid
from fp8verify.report.tables import millis
from fp8verify.terms import (
    Leg,
    Precision,
    Verdict,
    low_precision_count,
    low_precision_name,
)
from fp8verify.text import label_of_ranks
from fp8verify.thresholds import NEGLIGIBLE, VOCABULARY
from fp8verify.verdict.headline import is_asked_by_weights

_PROOF_ROWS = 8
# As many layers outside of blocks are named.
_FEW = 2
# Not of layers, which the sentence above the table is about.
_NO_LEGS = frozenset({Leg.ATTENTION, Leg.OPTIMIZER})


def proof_grid(report: Report) -> Grid | None:
    """Return the table along the coordinate that decides; else legs, if any has no FP8."""
    proof = report.proof
    if report.verdict not in (Verdict.PARTIAL, Verdict.INCONCLUSIVE):
        return None
    if proof is not None and not all(map(_is_whole, proof.rows)):
        return _grid_of_what_is_short(proof, report)
    legs = []
    for leg in report.legs:
        if leg.leg not in _NO_LEGS:
            legs.append(_leg_row(leg))
    outcomes = {row.short for row in legs}
    differ = len(outcomes) > 1
    if report.verdict is not Verdict.PARTIAL or not differ:
        return None
    by_leg = Proof(coordinate="leg", rows=tuple(legs))
    return _proof_grid(by_leg, report)


def _grid_of_what_is_short(proof: Proof, report: Report) -> Grid | None:
    """Return the table of a coordinate; none where it says no more than the sentence does."""
    if proof.coordinate == "layer" and is_named(report):
        return None  # the table of layers says it
    if proof.coordinate == "rank, layer" and _names_all(report, proof.rows):
        return None
    if proof.coordinate == "leg":
        blocks = _blocks_that_lack(report)
        if blocks is not None:
            return blocks
        if len(_legs_alike(proof.rows)) == 1:
            return None
    return _proof_grid(proof, report)


def _names_all(report: Report, rows: Iterable[ProofRow]) -> bool:
    """Whether the sentence names the layers of each row that fell short, which has a size only."""
    for row in rows:
        is_named = row.note and row.note in report.reason
        if not _is_whole(row) and not is_named:
            return False
    return True


def is_named(report: Report) -> bool:
    """Whether layers were recorded by name, so that there is a table of them."""
    return any(map(_has_named_layers, report.ranks))


def _has_named_layers(rank: RankReport) -> bool:
    return rank.named_layers is not None and bool(rank.named_layers.rows)


def _leg_row(leg: LegRow) -> ProofRow:
    launches = sum(leg.kernels.values())
    low = low_precision_count(leg.kernels)
    unknown = leg.kernels.get("unknown", 0)
    return ProofRow(
        value=leg.leg.value,
        low=low,
        high=launches - low - unknown,
        unknown=unknown,
        time_us=sum(leg.time_us.values()),
        flops=None,
        short=not low,
    )


# What begins with a rank and goes on with outputs and inputs: "rank 0, 4096x1024".
_SIZE = lazy_pattern(r", \d+x\d+$")


# Outputs and inputs of a layer without a name.
_BARE_SIZE = lazy_pattern(r"(\d+)x\d+")


class _ProofLine(NamedTuple):
    """A line of the proof's table: a row, or several that ran alike.

    Attributes:
        name: its value, or their values.
        rows: what it is about.
        millis: the ms of a row, or from the least to the most.
    """

    name: str
    rows: Sequence[ProofRow]
    millis: str

    @property
    def row(self) -> ProofRow:
        """The first of them."""
        return self.rows[0]


def _proof_grid(proof: Proof, report: Report) -> Grid:
    name = proof.coordinate
    lines = _proof_lines(_in_a_step(proof, report))
    has_unknown = any(line.row.unknown for line in lines)
    wide = _wide_format(report)
    lack = _how_it_lacks(report, wide)
    notes = []
    for line in lines:
        notes.append(_remark(line.row, wide, lack))
    has_notes = any(notes)
    formats = low_precision_name(report.gemm.kernels)
    steps = _steps_of(proof, report)
    counted_in = f"{formats} GEMMs"
    if steps > 1:
        counted_in = f"{counted_in}, {steps} steps"
    headings = [f"<{name}", counted_in]
    if has_unknown:
        headings.append("unknown")
    headings.append("GEMM ms/step" if steps else "GEMM ms")
    if has_notes:
        headings.append("<")
    cells = []
    for line, note in zip(lines, notes, strict=True):
        row = line.row
        total = row.low + row.high + row.unknown
        cell = [line.name, f"{row.low}/{total}"]
        if has_unknown:
            cell.append(str(row.unknown))
        cell.append(line.millis)
        if has_notes:
            cell.append(note)
        cells.append(tuple(cell))
    below: tuple[str, ...] = ()
    if proof.left_out:
        below = (f"… and {proof.left_out} more",)
    return Grid(f"GEMMs by {name}", tuple(headings), cells, below=below)


def _in_a_step(proof: Proof, report: Report) -> Proof:
    """Return a table with the times of a step, where its rows are of several alike."""
    steps = _steps_of(proof, report) or 1
    rows = []
    for row in proof.rows:
        time_us = row.time_us / steps
        rows.append(replace(row, time_us=time_us))
    return replace(proof, rows=tuple(rows))


def _steps_of(proof: Proof, report: Report) -> int:
    """Return how many whole steps the rows of a table are of on each rank.

    It is 0 where rows are of one step each, ranks have unlike numbers of steps, or GEMMs ran
    outside of steps.
    """
    if "step" in proof.coordinate.split(", "):
        return 0
    numbers: set[int] = set()
    for rank in report.ranks:
        in_steps_ns = sum(step.gemm.total_ns for step in rank.steps)
        is_all = in_steps_ns >= (1 - NEGLIGIBLE) * rank.gemm.total_ns
        steps = 0
        if is_all and are_whole(rank.steps):
            steps = len(rank.steps)
        numbers.add(steps)
    if len(numbers) == 1:
        return numbers.pop()
    return 0


def _how_it_lacks(report: Report, wide: str) -> str:
    """Name what is in high precision and was expected otherwise.

    That weights are stored in FP8 asks for nothing: it only makes their products likely.
    """
    formats = low_precision_name(report.gemm.kernels)
    if any(map(is_asked_by_weights, report.ranks)):
        return f"{wide} on {formats} weights".strip()
    return f"lack {formats}"


def _remark(row: ProofRow, wide: str, lack: str) -> str:
    """Say what ran otherwise in a row, and whether it should have been in low precision.

    Args:
        row: the row.
        wide: the format of all that ran in no low precision, empty where there are several.
        lack: how it is said that some should have been.
    """
    if row.lacking is not None and row.lacking < row.high:
        of = f" of {row.note}" if row.note else ""
        others = row.high - row.lacking
        return f"{row.lacking}{of} {lack}; {others} as expected"
    others = row.low + row.unknown
    said = ""
    if row.high and others == 0:
        said = f"all in {wide}" if wide else "none in FP8"
    elif row.high and row.short is not None:
        formats = wide or "high precision"
        said = f"{row.high} in {formats}"
    if said and _is_whole(row):
        said = f"{said} (as expected)"
    return f"{said} {row.note}".strip()


def _wide_format(report: Report) -> str:
    """Return the format of all GEMMs that ran in no low precision, empty if there are several."""
    kinds = []
    for kind, count in report.layer_gemm.kernels.items():
        precision = Precision(kind)
        is_known = precision is not Precision.UNKNOWN
        if count and is_known and not precision.is_low:
            kinds.append(kind.upper())
    if len(kinds) == 1:
        return kinds[0]
    return ""


def _proof_lines(proof: Proof) -> list[_ProofLine]:
    """Return the lines of the table: of many, those that fell short come first."""
    if proof.coordinate == "rank":
        lines = _ranks_alike(proof.rows)
    elif ", " in proof.coordinate:
        lines = _of_two_coordinates(proof)
    elif proof.coordinate == "leg":
        lines = _legs_alike(proof.rows)
    else:
        lines = []
        for row in proof.rows:
            name = row.value.removeprefix(f"{proof.coordinate} ")
            name = f"{name}{_kind_of_size(name)}"
            lines.append(_ProofLine(name, [row], millis(row.time_us)))
    if proof.coordinate == "layer":
        lines.sort(key=_is_whole_line)
    if len(lines) <= _PROOF_ROWS:
        return lines
    lines.sort(key=_is_whole_line)
    most = _PROOF_ROWS - 1
    shown = lines[:most]
    left: list[ProofRow] = []
    for line in lines[most:]:
        left += line.rows
    others = _summed(left, f"{len(left)} others")
    shown.append(_line_of(others))
    return shown


def _kind_of_size(name: str) -> str:
    """Say that a layer of so many outputs is probably the head, as none has a name."""
    size = _BARE_SIZE.fullmatch(name)
    if size is not None and int(size[1]) >= VOCABULARY:
        return " (output head?)"
    return ""


def _line_of(row: ProofRow, before: str = "") -> _ProofLine:
    name = f"{before}{row.value}"
    time = millis(row.time_us)
    return _ProofLine(name, [row], time)


def _of_two_coordinates(proof: Proof) -> list[_ProofLine]:
    """Return a line for each row that fell short, and one for others of a value that ran alike.

    What fell short comes first, then others of the same value: those of a faulty rank before
    those of the others.
    """
    alike: dict[Hashable, list[ProofRow]] = defaultdict(list)
    for row in proof.rows:
        alike[_look_of(row)].append(row)
    lines = []
    for rows in alike.values():
        if len(rows) == 1:
            line = _line_of(rows[0])
        else:
            value = _first_value(rows[0].value)
            others = _summed(rows, _called(rows, proof))
            line = _line_of(others, f"{value}, ")
        lines.append(line)
    lines.sort(key=_is_whole_line)
    lines.sort(key=_PlaceOfValue(proof.rows))
    if proof.coordinate.startswith("rank, "):
        return _with_equal_ranks(lines)
    return lines


def _with_equal_ranks(lines: Iterable[_ProofLine]) -> list[_ProofLine]:
    """Join the lines of ranks that ran alike: "ranks 0, 2, fprop, dgrad (each)"."""
    alike: dict[Hashable, list[_ProofLine]] = defaultdict(list)
    for line in lines:
        rank, _, others = line.name.partition(", ")
        number = rank.removeprefix("rank ")
        look: Hashable = line.name
        if number.isdecimal() and _is_whole(line.row):
            look = (others, *_ran(line.row))
        alike[look].append(line)
    joined = []
    for same in alike.values():
        line = same[0]
        if len(same) > 1:
            line = _line_of_ranks(same)
        joined.append(line)
    return joined


def _line_of_ranks(lines: Sequence[_ProofLine]) -> _ProofLine:
    """Return one line for those of several ranks, whose figures are those of each."""
    numbers = []
    rows: list[ProofRow] = []
    for line in lines:
        rank, _, others = line.name.partition(", ")
        numbers.append(int(rank.removeprefix("rank ")))
        rows += line.rows
    name = f"{label_of_ranks(numbers)}: {others}"
    return _line_of_each(name, rows)


class _PlaceOfValue:
    """Where lines of a first value stand: those of which a row fell short come first."""

    def __init__(self, rows: Iterable[ProofRow]) -> None:
        """Number the values in the order of the table."""
        self._places: dict[str, int] = {}
        for row in sorted(rows, key=_is_whole):
            value = _first_value(row.value)
            place = len(self._places)
            self._places.setdefault(value, place)

    def __call__(self, line: _ProofLine) -> int:
        """Return the place of a line."""
        value = _first_value(line.name)
        return self._places[value]


def _first_value(name: str) -> str:
    """Return what stands before the comma: "rank 0" of "rank 0, fprop"."""
    first, _, _ = name.partition(", ")
    return first


def _look_of(row: ProofRow) -> Hashable:
    """Return what rows have in common that share a line; one that fell short is alone."""
    if not _is_whole(row):
        return row.value
    ran_low = row.low > 0
    ran_high = row.high > 0
    is_unknown = row.unknown > 0
    return (_first_value(row.value), ran_low, ran_high, is_unknown)


def _called(rows: Sequence[ProofRow], proof: Proof) -> str:
    """Name the second values of some rows, or count them: "fprop, dgrad", "3 sizes"."""
    _, second = proof.coordinate.split(", ")
    if second == "leg":  # few enough to be named
        legs = []
        for row in rows:
            _, _, leg = row.value.partition(", ")
            legs.append(leg)
        every = {row.value.partition(", ")[2] for row in proof.rows}
        if len(legs) > _FEW and every == set(legs):
            return "all legs"
        return ", ".join(legs)
    are_sizes = all(_SIZE.search(row.value) for row in proof.rows)
    kind = f"{second}s"
    if second == "layer" and are_sizes:
        kind = "sizes"
    elif second.endswith("ch"):
        kind = f"{second}es"
    return f"{len(rows)} {kind}"


def _is_whole(row: ProofRow) -> bool:
    return row.short is False


def _is_whole_line(line: _ProofLine) -> bool:
    return _is_whole(line.row)


def _legs_alike(rows: Sequence[ProofRow]) -> list[_ProofLine]:
    """Return a line for all legs that ran alike: "fprop, dgrad, wgrad (each)"."""
    alike: dict[Hashable, list[ProofRow]] = defaultdict(list)
    for row in rows:
        ran = (_ran(row), row.lacking)
        alike[ran].append(row)
    lines = []
    for same in alike.values():
        legs = [row.value for row in same]
        name = ", ".join(legs)
        line = _line_of_each(name, same)
        lines.append(line)
    return lines


def _ran(row: ProofRow) -> tuple[object, ...]:
    """Return what ran in a row, and whether that fell short."""
    return (
        row.low,
        row.high,
        row.unknown,
        row.note,
        row.short,
    )


def _line_of_each(name: str, rows: Sequence[ProofRow]) -> _ProofLine:
    """Return the line of rows that ran alike, whose figures are those of each."""
    if len(rows) > 1:
        name = f"{name} (each)"
    times = [row.time_us for row in rows]
    span = range_of_times(times)
    return _ProofLine(name, rows, span)


def _ranks_alike(rows: Iterable[ProofRow]) -> list[_ProofLine]:
    """Return a line for all ranks that ran as many GEMMs in each precision: "0-6"."""
    alike: dict[Hashable, list[ProofRow]] = defaultdict(list)
    for row in rows:
        look: Hashable = _ran(row)
        if not _number_of(row).isdecimal():  # a rank without one is called by its file
            look = row.value
        alike[look].append(row)
    lines = []
    for same in alike.values():
        numbers = list(map(_number_of, same))
        name = numbers[0]
        if len(numbers) > 1:
            ranks = list(map(int, numbers))
            name = rank_numbers(ranks)
        lines.append(_line_of_each(name, same))
    return lines


def _number_of(row: ProofRow) -> str:
    return row.value.removeprefix("rank ")


def rank_numbers(ranks: Sequence[int]) -> str:
    """Name ranks in a column of ranks: "0-6"."""
    return label_of_ranks(ranks).partition(" ")[2]


def range_of_times(times_us: Iterable[float]) -> str:
    """Return times as ms, "9.00", or from the least to the most, "9.00-9.21"."""
    known = sorted(times_us)
    least = millis(known[0])
    most = millis(known[-1])
    if least == most:
        return least
    return f"{least}-{most}"


def _summed(rows: Sequence[ProofRow], called: str) -> ProofRow:
    """Return rows as one."""
    low = 0
    high = 0
    unknown = 0
    time_us = 0.0
    is_short = False
    for row in rows:
        low += row.low
        high += row.high
        unknown += row.unknown
        time_us += row.time_us
        is_short |= not _is_whole(row)
    return ProofRow(
        value=called,
        low=low,
        high=high,
        unknown=unknown,
        time_us=time_us,
        flops=None,
        short=is_short,
    )


# ---- along blocks, where the fault is in some of them


class _OfBlock(NamedTuple):
    """What ran in a block: equal ones are joined."""

    launches: int
    low: int
    unknown: int
    lacking: int


def _blocks_that_lack(report: Report) -> Grid | None:
    """Return a table along blocks, where few of them hold all that lacks; None elsewhere."""
    ledger = report.ledger
    if ledger is None or ledger.left_out or len(report.ranks) > 1:
        return None
    blocks = _ran_by_block(ledger)
    outside = blocks.pop(None, None)
    lacking = 0
    for ran in blocks.values():
        if ran.lacking:
            lacking += 1
    is_elsewhere = outside is not None and outside.lacking > 0
    are_many = lacking > len(blocks) // 2
    if not lacking or is_elsewhere or are_many:
        return None
    rows = list(_rows_of_blocks(blocks))
    if outside is not None:
        names = _names_outside(ledger)
        rows.append(_row_of(names, outside, 1))
    rows.sort(key=_is_whole)
    return _grid_of_blocks(rows, report)


def _ran_by_block(ledger: LedgerReport) -> dict[int | None, _OfBlock]:
    """Return what ran in each block; under None what belongs to none."""
    entries: dict[int | None, list[LedgerEntry]] = defaultdict(list)
    for entry in ledger.entries:
        slot = ledger.slots[entry.slot]
        entries[slot.block].append(entry)
    ran = {}
    for block, alike in entries.items():
        ran[block] = _ran_in(alike)
    return ran


def _grid_of_blocks(rows: Iterable[ProofRow], report: Report) -> Grid:
    wide = _wide_format(report)
    lack = _how_it_lacks(report, wide)
    cells = []
    for row in rows:
        total = row.low + row.high + row.unknown
        count = f"{row.low}/{total}"
        remark = _remark(row, wide, lack)
        cells.append((row.value, count, remark))
    formats = low_precision_name(report.gemm.kernels)
    headings = ("<block", f"{formats} GEMMs", "<")
    return Grid("GEMMs by block", headings, cells)


def _names_outside(ledger: LedgerReport) -> str:
    """Name what belongs to no block, such as the head."""
    labels = []
    for slot in ledger.slots:
        if slot.block is None:
            labels.append(f"{slot.label}{_kind_of_size(slot.label)}")
    if len(labels) > _FEW:
        return "others"
    return ", ".join(labels)


def _ran_in(entries: Iterable[LedgerEntry]) -> _OfBlock:
    launches = 0
    low = 0
    unknown = 0
    lacking = 0
    for entry in entries:
        executions = 0
        for first, last in entry.executions:
            executions += last - first + 1
        launches += executions * entry.launches
        low += executions * entry.low
        unknown += executions * entry.unknown
        if entry.lacks == "surely" and entry.least is not None:
            lacking += executions * (entry.least - entry.low)
    return _OfBlock(launches=launches, low=low, unknown=unknown, lacking=lacking)


def _rows_of_blocks(blocks: Mapping[int | None, _OfBlock]) -> Iterator[ProofRow]:
    """Yield a row for all blocks that ran alike."""
    alike: dict[_OfBlock, list[int]] = defaultdict(list)
    for block, ran in blocks.items():
        if block is not None:
            alike[ran].append(block)
    last = max(map(max, alike.values()))
    for ran, numbers in alike.items():
        numbers.sort()
        name = rank_numbers(numbers)
        if ran.lacking and numbers == [last]:  # a loop may end one too early
            name = f"{name} (the last)"
        yield _row_of(name, ran, len(numbers))


def _row_of(name: str, ran: _OfBlock, times: int) -> ProofRow:
    high = ran.launches - ran.low - ran.unknown
    return ProofRow(
        value=name,
        low=times * ran.low,
        high=times * high,
        unknown=times * ran.unknown,
        time_us=0.0,
        flops=None,
        short=ran.lacking > 0,
        lacking=times * ran.lacking or None,
    )
