"""Which of the keys that are given a key of a rule means."""

from __future__ import annotations

from typing import Any

import pytest

from fp8verify.preflight.tables import name_of


@pytest.mark.parametrize(
    ("key", "given", "meant"),
    [
        ("recipe", {"recipe": ""}, "recipe"),
        ("recipe", {}, None),
        ("recipe|mode", {"recipe": "", "mode": "mx"}, "mode"),
        ("recipe|mode", {"recipe": None, "mode": ""}, None),
        ("*recipe", {"te.recipe": "", "mx.recipe": "mx"}, "mx.recipe"),
        ("*recipe", {"te.recipe": "", "mx.recipe": None}, "te.recipe"),
        ("*recipe", {"te.recipe": False, "mx.recipe": "mx"}, "te.recipe"),
        ("*recipe|mode", {"te.recipe": "", "mode": "mx"}, "mode"),
        ("*recipe|mode", {"te.recipe": "", "mode": None}, None),
        ("*", {"": "a section without a name", "mode": "mx"}, "mode"),
        ("fp8[-_]mode", {"fp8-mode": 1, "fp8_mode": 2}, "fp8-mode"),
    ],
)
def test_a_key_means_the_first_name_with_a_value(
    key: str, given: dict[str, Any], meant: str | None
) -> None:
    assert name_of(key, given) == meant
