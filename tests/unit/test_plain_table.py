"""Tables of text: only a last column of words is cut, and only where there is no room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fp8verify.report.page import GOOD, Grid, Page
from fp8verify.report.text import write_text

_WORD = st.text("abcdefgh0123456789.%", min_size=1, max_size=12)


def _text(grid: Grid, width: int, *, uncut: bool = False) -> str:
    page = Page("", GOOD, ("",), "", fails=False, body=(grid,))
    return write_text(page, verbose=uncut, width=width)


def _kernels(*rows: tuple[str, ...]) -> Grid:
    return Grid("Kernels", ("share", "<kernel"), rows, stretch=True)


def test_a_last_column_of_words_is_cut_with_a_sign() -> None:
    assert (
        _text(_kernels(("12.5%", "k" * 40)), 30).splitlines()[1]
        == f"12.5%  {'k' * 14}…{'k' * 8}"
    )


def test_uncut_it_runs_over_several_lines() -> None:
    text = _text(_kernels(("12.5%", "k" * 40)), 30, uncut=True)
    assert text.count("k") == 40 + "kernel".count("k")
    assert "…" not in text


@given(
    st.lists(st.tuples(_WORD, _WORD, _WORD), min_size=1, max_size=5),
    st.integers(20, 120),
)
def test_no_cell_is_lost_at_any_width(
    rows: list[tuple[str, str, str]], width: int
) -> None:
    text = _text(Grid("Words", ("first", "second", "third"), rows), width)
    assert [tuple(line.split()) for line in text.splitlines()[1:]] == rows
