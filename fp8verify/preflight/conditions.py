"""The conditions of the tables in data/: a test for each key, all of which must hold.

Tests: `true` (given and on), `false` (absent or off), a word or glob in any case ("*" is any given
value), "!" before a test (also holds where the key is absent), "> 1", "% 16" (not a multiple),
"~regex", for a version a specifier of PEP 440, and a list of tests of which one must hold. A list
as value holds where one of its items does. A key may be a glob, or "a|b": the first that has a
value.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from fp8verify.preflight.training import truth, whole

Values = Mapping[str, Any]
Test = bool | str | list[str]
MISSING = object()
_COMPARED = re.compile(r"(<=|>=|<|>|%)\s*(\d+)")
_OPERATORS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "%": lambda value, side: bool(value % side),
}


def value_of(key: str, values: Values) -> Any:
    """Return the value of a key, else `MISSING`."""
    name = name_of(key, values)
    return MISSING if name is None else values[name]


def name_of(key: str, values: Values) -> str | None:
    """Return the name among values that a key means: itself, one of "a|b", or a glob's."""
    parts = key.split("|")
    for part in parts:
        if part in values and (len(parts) == 1 or values[part] not in ("", None)):
            return part
        if "*" in part or "[" in part:
            found = next((name for name in values if fnmatchcase(name, part)), None)
            if found is not None:
                return found
    return None


def all_hold(tests: Mapping[str, Test], values: Values) -> bool:
    """Return whether the tests of all keys hold."""
    return all(holds(test, value_of(key, values)) for key, test in tests.items())


def holds(test: Test, value: Any) -> bool:
    """Return whether a test holds for a value."""
    if isinstance(test, bool):
        return is_on(value) is test
    if isinstance(test, list):
        return any(holds(one, value) for one in test)
    if test.startswith("!"):
        return not holds(test[1:], value)
    if value is MISSING:
        return False
    items = value if isinstance(value, (list, tuple)) else [value]
    return any(_item_holds(test, item) for item in items)


def is_on(value: Any) -> bool:
    """Return whether a key is given and not switched off."""
    given = value is not MISSING and value is not None and value not in ("", "auto", "null")
    return given and value != {} and truth(value) is not False


def _item_holds(test: str, value: Any) -> bool:
    if isinstance(value, Version):  # nightlies count as theirs
        return SpecifierSet(test).contains(value, prereleases=True)
    compared = _COMPARED.fullmatch(test)
    if compared:
        number = 0 if value in (0, "0") and not isinstance(value, bool) else whole(value)
        return number is not None and _OPERATORS[compared[1]](number, int(compared[2]))
    text = "" if value is None else str(value).strip()
    if test.startswith("~"):
        return re.search(test[1:], text) is not None
    return fnmatchcase(text.lower(), test.lower())
