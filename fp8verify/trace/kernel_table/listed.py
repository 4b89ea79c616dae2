"""Kernels that a text lists without headings, one a line, beside their times."""

from __future__ import annotations

from typing import Final

from fp8verify.patterns import lazy_pattern
from fp8verify.trace.kernel_table.cells import IN_CELLS, nanoseconds
from fp8verify.trace.kernel_table.table import GUESSED, Sum, Table, no_cells

# Of a list without headings: a time with its unit, and a name as libraries of products give them.
_LISTED_TIME: Final = lazy_pattern(
    r"(?:^|[\s|,;:(])(\d[\d,.]{0,20} ?(?:[num\u00b5\u03bc]?s))(?=$|[\s|,;)])"
)
_LISTED_NAME: Final = lazy_pattern(
    r"\b(?:void )?(?:nvjet_|cutlass\w*_|cutlass::|sm\d{2,3}_|(?:volta|turing|ampere|hopper)_"
    r"|cublas\w*::|Cijk_|Custom_Cijk_|deep_gemm::|transformer_engine::|triton_|at::native::|_scaled_\w*kernel)[^\s|,;`]{4,}"
)
_MOST_LISTED: Final = 20_000


class Listed:
    """Takes lines with the name of a kernel and times with their units, which need no headings."""

    def __init__(self) -> None:
        self.table = Table(
            tool=GUESSED,
            cells=no_cells,
            width=-1,
            indices={},
            unit=IN_CELLS,
            read_as="name, largest time in each line",
        )
        self._left = _MOST_LISTED

    def take(self, line: str) -> None:
        """Take a line, of which most are none."""
        if "s" not in line or not self._left:
            return
        text = line[:4096]
        texts = _LISTED_TIME.findall(text)
        if not texts:
            return
        found = _LISTED_NAME.search(text)
        if found is None:
            return
        self._left -= 1
        times = []
        for time_text in texts:
            ns = nanoseconds(time_text, IN_CELLS)
            if ns is not None:
                times.append(ns)
        if not times:
            self.table.unread += 1
            return
        name = found[0]
        # A mean or the CPU's part of a total is smaller than the total.
        longest = Sum(max(times), 1)
        before = self.table.sums.get(name, Sum())
        self.table.sums[name] = before.plus(longest)
