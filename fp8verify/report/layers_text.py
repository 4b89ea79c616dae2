"""The GEMMs of each layer by name, as text: groups on one screen, each layer with --verbose."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from fp8verify.report.escape import printable
from fp8verify.report.layers_by_name import (
    LayerGroup,
    groups,
    kernels_of,
    layer_us,
    legs_shown,
    precisions,
)
from fp8verify.report.layout import plain_table
from fp8verify.report.model import Report, low_precision_count
from fp8verify.report.model.diagnosis import NamedLayersReport
from fp8verify.report.tables import millis, rank_label

_ROWS = 12


def named_layers(report: Report, *, verbose: bool) -> Iterator[RenderableType]:
    """Yield a table of the first rank that has names, or with `verbose` of every one."""
    found = [(rank, rank.named_layers) for rank in report.ranks if rank.named_layers is not None]
    for rank, named in found if verbose else found[:1]:
        where = f" of {rank_label(rank)}" if len(report.ranks) > 1 else ""
        yield Padding(Group(*_parts(named, printable(where), verbose)), (1, 0, 0, 0))


def _parts(found: NamedLayersReport, where: str, verbose: bool) -> Iterator[RenderableType]:
    if found.rows:
        joined = [LayerGroup(row.layer, (row,)) for row in found.rows] if verbose else groups(found)
        shown = joined if verbose else joined[:_ROWS]
        yield _table(found, shown, where, verbose)
        if len(shown) < len(joined):
            hidden = sum(len(group.rows) for group in joined[len(shown) :])
            yield Text(f"… and {hidden} more layers with --verbose")
        if found.unjoined:
            yield Text(f"{found.unjoined} of {found.gemms} GEMMs could not be joined to a layer")
    if found.note:
        yield Text(f"layers{where}: {printable(found.note)}")


def _table(
    found: NamedLayersReport, shown: list[LayerGroup], where: str, verbose: bool
) -> RenderableType:
    """FP8 GEMMs of all, by leg; times only where they are the run's."""
    legs = legs_shown(found.rows)
    eager = found.source == "step"
    title = f"layers{where}: FP8 of all GEMMs" + (
        f", step {found.step} run eagerly" if eager else ""
    )
    times = () if eager else ("ms",)
    names = (*legs, "precision", *times, title)
    table = plain_table(*names, words=("precision", title), stretch=True, uncut=verbose)
    for name, rows in shown:
        table.add_row(
            *(_cell(kernels_of(rows[0], leg), len(rows)) for leg in legs),
            precisions(rows[0]),
            *(millis(sum(map(layer_us, rows))) for _ in times),
            printable(name),
        )
    return table


def _cell(kernels: dict[str, int], layers: int) -> str:
    ran = sum(kernels.values()) * layers
    return f"{low_precision_count(kernels) * layers}/{ran}" if ran else "-"
