"""Tables of text: side by side where there is room, row by row where there is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fp8verify.report.text import PlainTable, filled, render

_WORD = st.text("abcdefgh0123456789.%", min_size=1, max_size=12)


def _text(width: int, *rows: tuple[str, ...], uncut: bool = False) -> str:
    table = PlainTable(("share", "kernel"), ("kernel",), stretch=True, uncut=uncut)
    for row in rows:
        table.add_row(*row)
    return render([table], terminal=False, width=width)


def test_a_last_column_of_words_is_cut_with_a_sign() -> None:
    assert _text(30, ("12.5%", "k" * 40)).splitlines()[1] == f"12.5%  {'k' * 22}…"


def test_uncut_it_runs_over_several_lines() -> None:
    text = _text(30, ("12.5%", "k" * 40), uncut=True)
    assert text.count("k") == 40 + len("kernel".replace("ernel", ""))
    assert "…" not in text


def test_where_the_columns_do_not_fit_each_row_is_a_block() -> None:
    assert _text(14, ("12.5%", "k" * 20)) == f"share 12.5%\n  {'k' * 12}\n  {'k' * 8}\n"


@given(st.lists(st.tuples(_WORD, _WORD, _WORD), min_size=1, max_size=5), st.integers(20, 120))
def test_no_cell_is_lost_at_any_width(rows: list[tuple[str, str, str]], width: int) -> None:
    table = PlainTable(("first", "second", "third"))
    for row in rows:
        table.add_row(*row)
    text = render([table], terminal=False, width=width)
    assert max(map(len, text.splitlines())) <= width
    words = text.replace(",", " ").split()
    assert all(cell in words for row in rows for cell in row)


def test_parts_are_never_broken() -> None:
    assert filled(["a 1", "b 2", "c 3"], 9) == ["a 1, b 2", "  c 3"]
