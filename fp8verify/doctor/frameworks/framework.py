"""What is known of a training framework's configuration: its keys, their values, its wishes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from fp8verify.doctor.documents import Document
from fp8verify.doctor.training import Training, Values


class Key(NamedTuple):
    """A key that is read.

    Attributes:
        values: the words that it may have; empty for any.
        any_case: whether the framework ignores case.
        otherwise: what happens with another value.
        refuses: whether another value ends the training.
    """

    values: tuple[str, ...] = ()
    any_case: bool = False
    otherwise: str = "raises an error"
    refuses: bool = True


class Unread(NamedTuple):
    """A key that looks right and that nobody reads."""

    instead: str
    effect: str
    source: str


ANY = Key()
FLAG = Key(("true", "false"), any_case=True)


class Framework(NamedTuple):
    """One framework, or one form of its configuration.

    Attributes:
        name: as messages call it.
        recognises: whether a document is this framework's.
        read: what its values say of the training.
        keys: the keys on FP8 by dotted name, with their values.
        sections: sections of which `keys` are all that is known to be read.
        words: parts of a key that speak of FP8, outside of these sections.
        unread: keys that look right and are not read.
        source: where the keys were read, and when.
    """

    name: str
    recognises: Callable[[Document], bool]
    read: Callable[[Values], Training]
    keys: Mapping[str, Key] = {}
    sections: tuple[str, ...] = ()
    words: tuple[str, ...] = ("fp8", "float8")
    unread: Mapping[str, Unread] = {}
    source: str = ""


def keys(section: str, *names: str) -> dict[str, Key]:
    """Return keys of a section that may have any value."""
    return {f"{section}.{name}" if section else name: ANY for name in names}
