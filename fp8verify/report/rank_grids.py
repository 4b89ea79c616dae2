"""The tables of single ranks: steps, costs of FP8, collectives, layers, HTA's breakdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fp8verify.report.layers_by_name import (
    LayerGroup,
    groups,
    kernels_of,
    layer_us,
    legs_shown,
    precisions,
)
from fp8verify.report.model import (
    LEGS,
    BreakdownReport,
    RankReport,
    Report,
    low_precision_count,
)
from fp8verify.report.model.diagnosis import (
    CommunicationReport,
    LayersReport,
    NamedLayersReport,
    TaxReport,
)
from fp8verify.report.page import Grid
from fp8verify.report.tables import millis, percent, rank_label

_LEGS = tuple(leg.value for leg in LEGS)
_LAYERS = 12


def step_grid(rank: RankReport) -> Grid:
    """Lay out the steps of a rank."""
    names = ("step", "CPU ms", "GPU ms", "FP8 of all GEMMs", "GEMM ms")
    rows = tuple(
        (
            str(step.step),
            millis(step.duration_us),
            "-" if step.gpu_us is None else millis(step.gpu_us),
            percent(step.gemm.fp8_share_of_time),
            millis(sum(step.gemm.time_us.values())),
        )
        for step in rank.steps
    )
    return Grid(f"Steps of {rank_label(rank)}", names, names[:1], rows, folded=True)


def rank_grids(rank: RankReport) -> Iterator[Grid]:
    """Yield what FP8 costs, what the collectives moved, and the layers by size."""
    if rank.tax is not None:
        yield _cost_grid(rank.tax)
    if rank.communication is not None:
        yield _collective_grid(rank.communication)
    if rank.layers is not None:
        yield _layer_grid(rank.layers)


def _cost_grid(tax: TaxReport) -> Grid:
    merged: dict[tuple[str, str, bool], list[float]] = defaultdict(lambda: [0, 0.0])
    for row in tax.rows:
        total = merged[row.purpose, row.leg.value, row.fused]
        total[0] += row.kernels
        total[1] += row.time_us
    rows = tuple(
        (purpose, leg, f"{n:.0f}", millis(us), "fused" if fused else "one step a kernel (eager)")
        for (purpose, leg, fused), (n, us) in merged.items()
    )
    names = ("FP8 overhead", "pass", "kernels", "ms", "how")
    return Grid("What FP8 costs", names, ("FP8 overhead", "pass", "how"), rows, folded=True)


def _collective_grid(found: CommunicationReport) -> Grid:
    names = ("collective", "dtype", "calls", "MB in", "MB out", "ms")
    rows = tuple(
        (
            row.name,
            row.dtype or "-",
            str(row.calls),
            "-" if row.bytes_in is None else f"{row.bytes_in / 1e6:.1f}",
            "-" if row.bytes_out is None else f"{row.bytes_out / 1e6:.1f}",
            millis(row.time_us),
        )
        for row in found.collectives
    )
    return Grid("Collectives", names, names[:2], rows, folded=True)


def _layer_grid(found: LayersReport) -> Grid:
    """GEMMs of each size and pass: in FP8, of those that ran."""
    names = ("layers (N x K)", "modules", *_LEGS, "FLOPs", "names")
    rows = tuple(
        (
            f"{row.n} x {row.k}",
            str(row.modules or "-"),
            *(f"{row.in_fp8.get(leg, 0)}/{row.observed.get(leg) or '-'}" for leg in _LEGS),
            percent(row.share_of_flops),
            ", ".join(row.names) or "-",
        )
        for row in found.rows
    )
    below = (f"  {found.note}",) if found.note else ()
    return Grid("Layers by size", names, (names[0], names[-1]), rows, stretch=True, below=below)


def breakdown_grid(found: BreakdownReport) -> Grid:
    """Lay out what HolisticTraceAnalysis found of each rank."""
    title = f"HTA {found.hta_version} rank"
    names = (title, "GPU ms", "idle", "computing", "other", "comm. hidden")
    rows = tuple(
        (
            str(rank.rank),
            millis(rank.span_us),
            *(
                percent(us / rank.span_us if rank.span_us else None)
                for us in (rank.idle_us, rank.compute_us, rank.non_compute_us)
            ),
            "-"
            if rank.communication_overlap_percent is None
            else percent(rank.communication_overlap_percent / 100),
        )
        for rank in found.ranks
    )
    return Grid("Breakdown by HolisticTraceAnalysis", names, (title,), rows, below=found.notes)


def named_layer_grids(report: Report, *, verbose: bool) -> Iterator[Grid]:
    """Yield the layers by name of the first rank that has names, or with `verbose` of all."""
    found = [(rank, rank.named_layers) for rank in report.ranks if rank.named_layers is not None]
    for rank, named in found if verbose else found[:1]:
        yield _named_grid(named, f" of {rank_label(rank)}" * (len(report.ranks) > 1), verbose)


def _named_grid(found: NamedLayersReport, where: str, verbose: bool) -> Grid:
    """FP8 GEMMs of all, by pass; times only where they are the run's."""
    joined = [LayerGroup(row.layer, (row,)) for row in found.rows] if verbose else groups(found)
    shown = joined if verbose else joined[:_LAYERS]
    legs = legs_shown(found.rows)
    eager = found.source == "step"
    title = f"layers{where}: FP8 of all GEMMs"
    title += f" (step {found.step}, not compiled)" if eager else ""
    names = (*legs, "precision", *(() if eager else ("ms",)), title)
    rows = tuple(
        (
            *(_cell(kernels_of(rows[0], leg), len(rows)) for leg in legs),
            precisions(rows[0]),
            *(() if eager else (millis(sum(map(layer_us, rows))),)),
            name,
        )
        for name, rows in shown
    )
    below = []
    if len(shown) < len(joined):
        hidden = sum(len(group.rows) for group in joined[len(shown) :])
        below.append(f"… and {hidden} more layers with --verbose")
    if found.unjoined and found.rows:
        below.append(f"{found.unjoined} of {found.gemms} GEMMs could not be joined to a layer")
    if found.note:
        below.append(f"layers{where}: {found.note}")
    words = ("precision", title)
    return Grid("Layers by name", names, words, rows, stretch=True, below=tuple(below))


def _cell(kernels: dict[str, int], layers: int) -> str:
    ran = sum(kernels.values()) * layers
    return f"{low_precision_count(kernels) * layers}/{ran}" if ran else "-"
