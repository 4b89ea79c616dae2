"""The picture of the ledger: a row a layer, a panel a leg, a column an execution."""

from __future__ import annotations

import re

from msgspec.structs import replace

from fp8verify.model.ledger import (
    LedgerEntry,
    LedgerExecution,
    LedgerReport,
    LedgerSlot,
)
from fp8verify.report.forms import page_of
from fp8verify.report.html import rank_bars
from fp8verify.report.ledger_picture import LedgerPicture, ledger_picture
from fp8verify.terms import LEGS
from tests.captures import report_of
from tests.hand_built import present

BAD = (1, "wgrad", 2)


def ledger(
    *,
    blocks: int = 4,
    ranks: int = 1,
    steps: int = 3,
    at_fault: tuple[int, str, int] | None = None,
) -> LedgerReport:
    """Make a ledger of two layers a block, all in FP8 but for one call."""
    executions = tuple(
        LedgerExecution(rank=rank, step=step, micro_batch=1)
        for rank in range(ranks)
        for step in range(steps)
    )
    slots = tuple(
        LedgerSlot(
            label=f"layers.{block}.{name}",
            names=(f"layers.{block}.{name}",),
            block=block,
        )
        for block in range(blocks)
        for name in ("up", "down")
    )
    entries = []
    for slot in range(len(slots)):
        for leg in LEGS:
            for at in range(len(executions)):
                bad = (slot, leg.value, at) == at_fault
                entry = LedgerEntry(
                    slot=slot,
                    leg=leg,
                    executions=((at, at),),
                    launches=1,
                    low=0 if bad else 1,
                    unknown=0,
                    precision="bf16" if bad else "fp8",
                    least=1,
                    lacks="surely" if bad else None,
                )
                entries.append(entry)
    return LedgerReport(executions=executions, slots=slots, entries=tuple(entries))


def marked(picture: LedgerPicture) -> list[tuple[str, str, str]]:
    return [
        (row.label, leg, column)
        for row in picture.rows
        for leg, panel in zip(picture.legs, row.panels, strict=True)
        for column, cell in zip(picture.columns, panel, strict=True)
        if cell.mark
    ]


def test_a_call_at_fault_has_a_cell_of_its_own() -> None:
    picture = present(ledger_picture(ledger(at_fault=BAD)))
    assert marked(picture) == [("layers.0.down", "wgrad", "step 2")]
    row = picture.rows[1]
    assert row.panels[2][2].kind == "high"
    assert "1 GEMM in BF16" in row.panels[2][2].tip
    assert row.summary == (
        "all 3 in FP8",
        "all 3 in FP8",
        "2 in FP8, 1 in higher precision",
    )


def test_blocks_that_ran_alike_are_drawn_once() -> None:
    picture = present(ledger_picture(ledger(blocks=40)))
    assert [row.label for row in picture.rows] == [
        "layers.{0-39}.up (40 alike)",
        "layers.{0-39}.down (40 alike)",
    ]


def test_of_many_blocks_the_one_at_fault_stays_apart() -> None:
    picture = present(ledger_picture(ledger(blocks=40, at_fault=(21, "fprop", 0))))
    assert marked(picture) == [("layers.10.down", "fprop", "step 0")]
    assert len(picture.rows) == 6


def test_ranks_that_ran_alike_are_one_column_and_the_one_at_fault_stays_apart() -> None:
    picture = present(
        ledger_picture(ledger(ranks=32, at_fault=(0, "dgrad", 3 * 17 + 1)))
    )
    assert picture.columns[0] == "ranks 0-16, 18-31, steps 0-2"
    assert marked(picture) == [("layers.0.up", "dgrad", "rank 17, step 1")]


def test_what_nothing_expects_in_fp8_is_told_from_what_lacks_it() -> None:
    entry = LedgerEntry(
        slot=0,
        leg=LEGS[0],
        executions=((0, 0),),
        launches=2,
        low=0,
        unknown=0,
        precision="bf16",
        least=0,
    )
    alone = LedgerReport(
        executions=(LedgerExecution(rank=None, step=None, micro_batch=1),),
        slots=(LedgerSlot(label="head"),),
        entries=(entry,),
    )
    ((cell,),) = present(ledger_picture(alone)).rows[0].panels
    assert cell.kind == "plain"
    assert "nothing says that it should run in FP8" in cell.tip


def test_layers_that_order_cannot_tell_apart_share_a_short_name() -> None:
    names = tuple(f"layers.0.attn.{one}_proj" for one in "qkv")
    ambiguous = ledger(blocks=1)
    slots = (LedgerSlot(label=" or ".join(names), names=names), *ambiguous.slots[1:])
    shared = LedgerReport(
        executions=ambiguous.executions, slots=slots, entries=ambiguous.entries
    )
    assert present(ledger_picture(shared)).rows[0].label == "layers.0.attn.{q,k,v}_proj"


def test_no_ledger_no_picture() -> None:
    assert ledger_picture(None) is None


def test_the_rank_at_fault_has_the_first_bar_and_ranks_alike_share_one() -> None:
    report = report_of("ddp_one_rank_bf16")
    good, bad = report.ranks
    many = [*(replace(good, rank=rank) for rank in range(31)), replace(bad, rank=31)]
    bars = rank_bars(replace(report, ranks=tuple(many)))
    assert [bar.label for bar in bars] == ["rank 31", "ranks 0-30"]
    assert [kind for kind, _, _ in bars[0].parts] == ["high"]


def test_the_columns_say_whether_they_are_steps_or_ranks() -> None:
    assert present(ledger_picture(ledger())).axis == "step"
    assert present(ledger_picture(ledger(ranks=2))).axis == "rank"


def test_of_layers_that_order_cannot_tell_apart_the_one_at_fault_is_linked() -> None:
    places = re.findall(
        r"seen in (.*?)</p>", report_of("fp8_layers_compiled").to_html()
    )
    assert places == [
        '<a href="#row-9">layers.1.attn.{q,k,v,o}_proj</a>, <a href="#row-15">head</a>'
    ]
    # All four ran alike, so each of them may be the layer that should not.
    assert "4 rows of the picture" in report_of("fp8_pinned_layer").to_html()


def test_layers_say_in_words_what_they_are_configured_for() -> None:
    page = page_of(report_of("fp8_megatron_first_last"), verbose=True)
    (layers,) = (grid for grid in page.grids if grid.title == "Layers")
    place = layers.names.index("configured")
    assert {row[place] for row in layers.rows} == {
        "FP8",
        "FP8 in its autocast",
        "high precision",
    }


def test_calls_that_may_be_any_layers_are_called_so() -> None:
    picture = present(ledger_picture(report_of("fp8_te_recompute_bf16").ledger))
    assert picture.rows[0].label == "unknown layer"
