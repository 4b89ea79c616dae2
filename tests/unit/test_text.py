"""Messages count and list things as people do."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8verify import text
from fp8verify.text import MEASURES, abridged, clean, counted, gib, listed


@pytest.mark.parametrize(
    "char",
    ["\x1b", "\x9b", "\u202e", "\u2066", "\u2028", "\ud800", "\n", "\x7f", "\u200f"],
)
def test_characters_that_steer_a_terminal_are_replaced(char: str) -> None:
    assert clean(f"a{char}b") == "a\ufffdb"


@pytest.mark.parametrize(
    "command", ["::error file=x::no", "::Add-Mask::x", "##[error]x", "##vso[x]"]
)
def test_commands_of_ci_are_taken_apart_wherever_a_line_may_break(command: str) -> None:
    assert command[:2] not in clean(f"x{command}")[:4]


@pytest.mark.parametrize(
    "name", ["void at::native::errors<int>", "c10::Error", "größe", "a ## b"]
)
def test_names_stay_as_they_are(name: str) -> None:
    assert clean(name) == name


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


@pytest.mark.parametrize(
    ("work_ns", "of_ns", "shown"),
    [
        (4_040_000, None, "4.0 ms"),
        (50_000, None, "0.1 ms"),
        (49_000, None, "0.049 ms"),
        (0, None, "0.0 ms"),
        (4_000_000, 8_340_000, "4.0 of 8.3 ms"),
        (10_000, 120_000, "0.010 of 0.120 ms"),
    ],
)
def test_a_time_that_is_not_nothing_is_never_shown_as_nothing(
    work_ns: int, of_ns: int | None, shown: str
) -> None:
    assert MEASURES["time"].amount(work_ns, of_ns) == shown


def test_sizes_have_digits_that_tell_something() -> None:
    sizes = (0, 0.0049, 0.75, 0.99, 1, 12.34, 79.6, 139.8)
    assert [gib(size * 2**30) for size in sizes] == [
        "0.00 GiB", "0.00 GiB", "0.75 GiB", "0.99 GiB", "1.0 GiB", "12.3 GiB", "79.6 GiB",
        "139.8 GiB",
    ]  # fmt: skip


def test_all_messages_take_sizes_from_one_place() -> None:
    package = Path(text.__file__).parent
    rooms = [package / name for name in ("report", "comparison", "analysis", "verdict")]
    written = {path: path.read_text() for room in rooms for path in room.rglob("*.py")}
    assert [
        path.name
        for path, found in written.items()
        if "2**30" in found or "GiB" in found
    ] == []
