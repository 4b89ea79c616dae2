"""The recipes of torchao that can be measured."""

from __future__ import annotations

# torchao float8/config.py, Float8LinearRecipeName.
RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
