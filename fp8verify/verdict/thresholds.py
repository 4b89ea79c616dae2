"""Every threshold that decides a verdict: its value, its unit and where it comes from."""

from __future__ import annotations

from typing import Final

# Share of what is expected of a cell of the grid, below which it is short: more than half of its
# GEMMs ran otherwise.
HALF: Final = 0.5
# Share of GEMM work below which what is not known, or falls short, cannot hide a leg or a layer of
# a model: adapters and routers take less.
NEGLIGIBLE: Final = 0.01
# Share of what cells lack from which one value explains them.
NEARLY_ALL: Final = 0.9
