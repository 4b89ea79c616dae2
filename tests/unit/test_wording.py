"""Messages count and list things as people do."""

from __future__ import annotations

from fp8verify.wording import abridged, counted, listed


def test_one_thing_is_not_plural() -> None:
    assert [counted([0] * count, "layer") for count in (0, 1, 2)] == [
        "0 layers", "1 layer", "2 layers",
    ]  # fmt: skip


def test_only_the_first_of_many_are_listed() -> None:
    assert listed(["a", "b"], 2) == "a, b"
    assert listed(["a", "b", "c"], 2, between="; ") == "a; b and 1 more"
    assert listed([], 2) == ""


def test_where_the_rest_is_not_counted_it_is_hinted_at() -> None:
    assert abridged(["a", "b"], 2) == "a, b"
    assert abridged(["a", "b", "c"], 2) == "a, b …"
