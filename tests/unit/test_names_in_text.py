"""Names of layers and kernels in text: their ends stay, and nothing is cut with --verbose."""

from __future__ import annotations

import pytest

from fp8verify.report.page import GOOD, Grid, Page
from fp8verify.report.text import write_text

LAYER = "model.language_model.decoder.layers.{0-10,12-23}.self_attention.core.projection_of_the_query"
KERNEL = (
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<"
    "cute::tuple<int, int, int>, Mainloop, Epilogue>>(Params)"
)


def text_of(grid: Grid, *, verbose: bool = False, width: int = 80) -> list[str]:
    page = Page(
        verdict="ACTIVE",
        tone=GOOD,
        run=("run",),
        sentence="it ran",
        fails=False,
        requested=(grid,),
    )
    return write_text(page, verbose=verbose, width=width).splitlines()


def test_a_layer_that_does_not_fit_keeps_its_end() -> None:
    grid = Grid("Layers", ("fprop", "<layer"), [("3/3", LAYER)], stretch=True)
    *_, row = text_of(grid)
    assert len(row) <= 80
    assert row.endswith("projection_of_the_query"[-20:])
    assert "…" in row


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("name", [LAYER, KERNEL, "x" * 200])
def test_with_verbose_a_name_goes_below_its_row_and_on_behind_a_separator(
    name: str, width: int
) -> None:
    grid = Grid("Layers", ("fprop", "<layer"), [("3/3", name)], stretch=True)
    lines = text_of(grid, verbose=True, width=width)
    below = lines[lines.index("  3/3") + 1 :]
    assert all(line.startswith("    ") and len(line) <= width for line in below)
    assert "".join(below).replace(" ", "") == name.replace(" ", "")
    if name != "x" * 200:
        ends = {line.rstrip()[-1] for line in below[:-1]}
        assert ends <= set(",:_<>(){}./-d")  # "void" before a blank
