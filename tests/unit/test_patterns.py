import importlib
import pickle
import pkgutil
import re
from collections.abc import Iterator

import pytest

from fp8verify.patterns import _LazyPattern, lazy_pattern


@pytest.mark.parametrize("method", ["search", "match", "fullmatch"])
def test_finds_what_the_compiled_expression_finds(method: str) -> None:
    lazy = lazy_pattern(r"(\d+) OF (\d+)", re.IGNORECASE)
    compiled = re.compile(r"(\d+) OF (\d+)", re.IGNORECASE)
    for text in ("3 of 4", "converted 3 of 4 layers", "none"):
        by_lazy = getattr(lazy, method)(text)
        by_compiled = getattr(compiled, method)(text)
        assert (by_lazy and by_lazy.groups()) == (by_compiled and by_compiled.groups())


def test_replaces_splits_and_finds_all() -> None:
    lazy = lazy_pattern(r",\s*")
    assert lazy.sub(";", "a, b,c") == "a;b;c"
    assert lazy.split("a, b,c") == ["a", "b", "c"]
    assert lazy.findall("a, b,c") == [", ", ","]
    assert [match.start() for match in lazy.finditer("a, b,c")] == [1, 4]


def test_the_text_can_be_built_into_another_expression_without_compiling() -> None:
    broken = lazy_pattern("(")
    assert broken.pattern == "("
    with pytest.raises(re.error):
        broken.search("text")


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        lazy_pattern("a").serach  # type: ignore[attr-defined]  # noqa: B018


def test_survives_pickling_before_its_first_use() -> None:
    copy = pickle.loads(pickle.dumps(lazy_pattern("b+")))
    assert copy.search("abbb").group() == "bbb"


def patterns_in(value: object) -> Iterator[_LazyPattern]:
    if isinstance(value, _LazyPattern):
        yield value
    elif isinstance(value, dict):
        yield from patterns_in(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from patterns_in(part)


@pytest.mark.parametrize(
    "room", ["analysis", "kernels", "logs", "report", "trace", "verdict"]
)
def test_each_expression_of_a_room_compiles(room: str) -> None:
    package = importlib.import_module(f"fp8verify.{room}")
    found: list[_LazyPattern] = []
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        constants = vars(importlib.import_module(module.name))
        found.extend(patterns_in(tuple(constants.values())))
    assert found
    for pattern in found:
        re.compile(pattern.pattern, pattern.flags)


def test_gives_what_else_a_compiled_expression_has() -> None:
    assert lazy_pattern(r"(\d+)(b)?").groups == 2
    assert lazy_pattern(r"(?P<count>\d+)").groupindex == {"count": 1}
