"""Sentences by what holds: the first row of a table that does, and parts that may be missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TypeAlias, TypeVar

T = TypeVar("T")

# A condition, and what is said where it holds.
Row: TypeAlias = tuple[object, str]


def all_that_hold(rows: Iterable[tuple[object, T]]) -> Iterator[T]:
    """Yield what each row has whose condition holds."""
    return (told for holds, told in rows if holds)


def first_that_holds(rows: Iterable[tuple[object, T]], otherwise: T) -> T:
    """Return what the first row has whose condition holds.

    Of rows that a generator makes, none behind that one is made.
    """
    return next(all_that_hold(rows), otherwise)


def first_said(rows: Iterable[Row]) -> str:
    """Return the sentence of the first row whose condition holds, nothing if none does."""
    return first_that_holds(rows, "")


def optional(part: str, *, when: object) -> str:
    """Return a part of a sentence, or nothing."""
    if when:
        return part
    return ""


def by_number(things: Sized, one: str, many: str) -> str:
    """Return the word that goes with one thing, or with none or several."""
    if len(things) == 1:
        return one
    return many
