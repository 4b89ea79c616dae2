"""Module names laid out as blocks and places in them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fp8verify.report.charts import layer_grid


def test_blocks_are_rows_and_what_stands_alone_comes_first() -> None:
    grid = layer_grid(
        {
            "layers.0.attn.q": "fp8",
            "layers.0.mlp": "fp8",
            "layers.10.attn.q": "high_precision",
            "head": "high_precision",
        }
    )
    assert grid.columns == ["", "attn.q", "mlp"]
    assert [row for row, _ in grid.rows] == ["layers.0", "layers.10", "head"]
    texts = [[cell.text if cell else None for cell in cells] for _, cells in grid.rows]
    assert texts == [[None, "FP8", "FP8"], [None, "high", None], ["high", None, None]]


def test_many_experts_are_folded_into_one_place_that_counts_them() -> None:
    states = {
        f"layers.{layer}.experts.{expert}.w{part}": "fp8" if expert else "high_precision"
        for layer in range(2)
        for expert in range(16)
        for part in (1, 2)
    }
    grid = layer_grid(states)
    assert grid.columns == ["experts.*.w1", "experts.*.w2"]
    cell = grid.rows[0][1][0]
    assert cell is not None
    assert (cell.text, cell.kind) == ("15/16", "mixed")
    assert cell.note == "1 high_precision, 15 fp8"


def test_a_state_of_a_later_version_is_shown_as_it_is() -> None:
    cell = layer_grid({"0.a": "fp6"}).rows[0][1][0]
    assert cell is not None
    assert (cell.text, cell.kind) == ("fp6", "unknown")


@given(
    st.dictionaries(st.text(max_size=20), st.sampled_from(["fp8", "high_precision"]), max_size=60)
)
def test_every_module_is_in_a_cell(states: dict[str, str]) -> None:
    grid = layer_grid(states)
    cells = [cell for _, row in grid.rows for cell in row if cell]
    counted = sum(int(part.split()[0]) for cell in cells for part in cell.note.split(", "))
    assert counted == len(states)
