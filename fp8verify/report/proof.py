"""The table that proves the sentence of a report: along ranks, steps, layers, blocks or legs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from fp8verify.model.kernels import LegRow
from fp8verify.model.ledger import LedgerEntry, LedgerReport
from fp8verify.model.report import RankReport, Report
from fp8verify.model.verdict import Proof, ProofRow
from fp8verify.report.page import Grid
from fp8verify.report.tables import millis
from fp8verify.terms import (
    Leg,
    Verdict,
    low_precision_count,
    low_precision_name,
)
from fp8verify.text import label_of_ranks

_PROOF_ROWS = 8
# As many layers outside of blocks are named.
_FEW = 2
# Not of layers, which the sentence above the table is about.
_NO_LEGS = frozenset({Leg.ATTENTION, Leg.OPTIMIZER})
_NOT_HIGH = frozenset({"fp8", "mxfp8", "mxfp6", "nvfp4", "mxfp4", "fp4", "unknown"})


def proof_grid(report: Report) -> Grid | None:
    """Return the table along the coordinate that decides; else legs, if any has no FP8."""
    proof = report.proof
    if report.verdict not in (Verdict.PARTIAL, Verdict.INCONCLUSIVE):
        return None
    if proof is not None and any(row.short is not False for row in proof.rows):
        return _grid_of_what_is_short(proof, report)
    legs = [_leg_row(leg) for leg in report.legs if leg.leg not in _NO_LEGS]
    differ = {row.short for row in legs} == {True, False}
    if report.verdict is Verdict.PARTIAL and differ:
        return _proof_grid(Proof(coordinate="leg", rows=tuple(legs)), report)
    return None


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
    short = [row for row in rows if row.short is not False]
    return all(row.note and row.note in report.reason for row in short)


def is_named(report: Report) -> bool:
    """Whether layers were recorded by name, so that there is a table of them."""
    return any(map(_has_named_layers, report.ranks))


def _has_named_layers(rank: RankReport) -> bool:
    return rank.named_layers is not None and bool(rank.named_layers.rows)


def _leg_row(leg: LegRow) -> ProofRow:
    low = low_precision_count(leg.kernels)
    unknown = leg.kernels.get("unknown", 0)
    return ProofRow(
        value=leg.leg.value,
        low=low,
        high=sum(leg.kernels.values()) - low - unknown,
        unknown=unknown,
        time_us=sum(leg.time_us.values()),
        flops=None,
        short=not low,
    )


# What begins with a rank and goes on with outputs and inputs: "rank 0, 4096x1024".
_SIZE = re.compile(r", \d+x\d+$")


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
    lines = _proof_lines(proof)
    has_unknown = any(line.row.unknown for line in lines)
    wide = _wide_format(report)
    notes = [_remark(line.row, wide) for line in lines]
    formats = low_precision_name(report.gemm.kernels)
    headings = [f"<{name}", f"{formats} GEMMs"]
    if has_unknown:
        headings.append("unknown")
    headings.append("GEMM ms")
    if any(notes):
        headings.append("<")
    cells = []
    for line, note in zip(lines, notes, strict=True):
        row = line.row
        total = row.low + row.high + row.unknown
        cell = [line.name, f"{row.low}/{total}"]
        if has_unknown:
            cell.append(str(row.unknown))
        cell.append(line.millis)
        if any(notes):
            cell.append(note)
        cells.append(tuple(cell))
    below: tuple[str, ...] = ()
    if proof.left_out:
        below = (f"… and {proof.left_out} more",)
    return Grid(f"GEMMs by {name}", tuple(headings), cells, below=below)


def _remark(row: ProofRow, wide: str) -> str:
    """Say what ran otherwise in a row, and whether it should have been in low precision.

    Args:
        row: the row.
        wide: the format of all that ran in no low precision, empty where there are several.
    """
    if row.lacking is not None and row.lacking < row.high:
        of = f" of {row.note}" if row.note else ""
        others = row.high - row.lacking
        return f"{row.lacking}{of} lack FP8; {others} as expected"
    said = []
    if row.high and not row.low + row.unknown:
        said.append(f"all in {wide}" if wide else "none in FP8")
    elif row.high and row.short is not None:
        said.append(f"{row.high} in {wide or 'high precision'}")
    if said and row.short is False:
        said.append("(no FP8 expected)")
    return " ".join([*said, row.note]).strip()


def _wide_format(report: Report) -> str:
    """Return the format of all GEMMs that ran in no low precision, empty if there are several."""
    kinds = []
    for kind, count in report.layer_gemm.kernels.items():
        is_high = kind not in _NOT_HIGH
        if count and is_high:
            kinds.append(kind.upper())
    return kinds[0] if len(kinds) == 1 else ""


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
            lines.append(_ProofLine(name, [row], millis(row.time_us)))
    if proof.coordinate == "layer":
        lines.sort(key=_is_whole_line)
    if len(lines) <= _PROOF_ROWS:
        return lines
    lines.sort(key=_is_whole_line)
    left: list[ProofRow] = []
    for line in lines[_PROOF_ROWS - 1 :]:
        left += line.rows
    others = _summed(left, f"{len(left)} others")
    return [*lines[: _PROOF_ROWS - 1], _line_of(others)]


def _line_of(row: ProofRow, before: str = "") -> _ProofLine:
    return _ProofLine(f"{before}{row.value}", [row], millis(row.time_us))


def _of_two_coordinates(proof: Proof) -> list[_ProofLine]:
    """Return a line for each row that fell short, and one for others of a value that ran alike.

    What fell short comes first, then others of the same value: those of a faulty rank before
    those of the others.
    """
    _, second = proof.coordinate.split(", ")
    kind = f"{second}es" if second.endswith("ch") else f"{second}s"
    if second == "layer" and all(_SIZE.search(row.value) for row in proof.rows):
        kind = "sizes"
    order: dict[str, int] = {}
    for row in sorted(proof.rows, key=_is_whole):
        order.setdefault(row.value.partition(", ")[0], len(order))
    alike: dict[Hashable, list[ProofRow]] = defaultdict(list)
    for row in proof.rows:
        first, _, _ = row.value.partition(", ")
        ran = (first, bool(row.low), bool(row.high), bool(row.unknown))
        alike[ran if row.short is False else row.value].append(row)
    lines = []
    for rows in alike.values():
        if len(rows) == 1:
            lines.append(_line_of(rows[0]))
        else:
            called = f"{len(rows)} {kind}"
            if second == "leg":  # few enough to be named
                called = ", ".join(row.value.partition(", ")[2] for row in rows)
            first, _, _ = rows[0].value.partition(", ")
            lines.append(_line_of(_summed(rows, called), f"{first}, "))

    def place(line: _ProofLine) -> tuple[int, bool]:
        return order[line.name.partition(", ")[0]], _is_whole(line.row)

    lines.sort(key=place)
    return lines


def _is_whole(row: ProofRow) -> bool:
    return row.short is False


def _is_whole_line(line: _ProofLine) -> bool:
    return _is_whole(line.row)


def _legs_alike(rows: Sequence[ProofRow]) -> list[_ProofLine]:
    """Return a line for all legs that ran alike: "fprop, dgrad, wgrad (each)"."""
    alike: dict[Hashable, list[ProofRow]] = defaultdict(list)
    for row in rows:
        ran = (row.low, row.high, row.unknown, row.note, row.short, row.lacking)
        alike[ran].append(row)
    lines = []
    for same in alike.values():
        name = ", ".join(row.value for row in same)
        if len(same) > 1:
            name = f"{name} (each)"
        times = [row.time_us for row in same]
        lines.append(_ProofLine(name, same, range_of_times(times)))
    return lines


def _ranks_alike(rows: Iterable[ProofRow]) -> list[_ProofLine]:
    """Return a line for all ranks that ran as many GEMMs in each precision: "0-6"."""
    alike: dict[Hashable, list[ProofRow]] = defaultdict(list)
    for row in rows:
        number = row.value.removeprefix("rank ")
        ran = (
            row.low,
            row.high,
            row.unknown,
            row.note,
            row.short,
        )
        # A rank without a number is called by its file.
        alike[ran if number.isdecimal() else row.value].append(row)
    lines = []
    for same in alike.values():
        name = same[0].value.removeprefix("rank ")
        if len(same) > 1:
            numbers = [int(row.value.removeprefix("rank ")) for row in same]
            name = f"{rank_numbers(numbers)} (each)"
        times = [row.time_us for row in same]
        lines.append(_ProofLine(name, same, range_of_times(times)))
    return lines


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
        is_short |= row.short is not False
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
    entries: dict[int | None, list[LedgerEntry]] = defaultdict(list)
    for entry in ledger.entries:
        entries[ledger.slots[entry.slot].block].append(entry)
    blocks = {block: _ran_in(alike) for block, alike in entries.items()}
    outside = blocks.pop(None, None)
    lacking = [block for block, ran in blocks.items() if ran.lacking]
    is_elsewhere = outside is not None and outside.lacking
    if not lacking or is_elsewhere or len(lacking) > len(blocks) // 2:
        return None
    rows = list(_rows_of_blocks(blocks))
    if outside is not None:
        rows.append(_row_of(_names_outside(ledger), outside, 1))
    rows.sort(key=_is_whole)
    wide = _wide_format(report)
    cells = []
    for row in rows:
        total = row.low + row.high + row.unknown
        cells.append((row.value, f"{row.low}/{total}", _remark(row, wide)))
    formats = low_precision_name(report.gemm.kernels)
    headings = ("<block", f"{formats} GEMMs", "<")
    return Grid("GEMMs by block", headings, cells)


def _names_outside(ledger: LedgerReport) -> str:
    """Name what belongs to no block, such as the head."""
    labels = [slot.label for slot in ledger.slots if slot.block is None]
    if len(labels) > _FEW:
        return "others"
    return ", ".join(labels)


def _ran_in(entries: Iterable[LedgerEntry]) -> _OfBlock:
    launches = 0
    low = 0
    unknown = 0
    lacking = 0
    for entry in entries:
        executions = sum(last - first + 1 for first, last in entry.executions)
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
    last = max(number for numbers in alike.values() for number in numbers)
    for ran, numbers in alike.items():
        name = rank_numbers(sorted(numbers))
        if ran.lacking and numbers == [last]:  # a loop may end one too early
            name = f"{name} (the last)"
        yield _row_of(name, ran, len(numbers))


def _row_of(name: str, ran: _OfBlock, times: int) -> ProofRow:
    return ProofRow(
        value=name,
        low=times * ran.low,
        high=times * (ran.launches - ran.low - ran.unknown),
        unknown=times * ran.unknown,
        time_us=0.0,
        flops=None,
        short=ran.lacking > 0,
        lacking=times * ran.lacking or None,
    )
