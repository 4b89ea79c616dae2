"""What FP8 costs and can gain, as text: a line each at a glance, tables for --verbose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding

from fp8verify.report.escape import printable
from fp8verify.report.layout import plain_table
from fp8verify.report.model import LEGS, RankReport
from fp8verify.report.model.diagnosis import (
    CommunicationReport,
    LayersReport,
    PayoffReport,
    TaxReport,
    WeightGather,
)
from fp8verify.report.tables import millis, percent, rank_label
from fp8verify.report.worth import worth_of

_LEGS = tuple(leg.value for leg in LEGS)


def glance(rank: RankReport, *, alone: bool, verbose: bool) -> Iterator[tuple[str, str]]:
    """Yield a label and a line for what is worth a look on one screen."""
    of_rank = "" if alone else f"{rank_label(rank)}: "
    found = worth_of(rank)
    if found is not None and verbose and not alone:
        yield "pays", of_rank + found.text
    if rank.payoff is not None and verbose:
        yield "limits", of_rank + _limits(rank.payoff)
    if rank.communication is not None:
        yield "network", of_rank + _network(rank.communication)


def _limits(payoff: PayoffReport) -> str:
    small = payoff.small_gemm_share
    return (
        f"the GPU idles {payoff.idle_share:.0%} of the window; of its busy time "
        f"{payoff.bandwidth_bound_share:.0%} is in kernels that memory bandwidth limits"
        + (f"; {small:.0%} of FP8 GEMM time in small GEMMs" if small is not None else "")
    )


def _network(found: CommunicationReport) -> str:
    line = f"{millis(found.time_us)} ms in collectives, {millis(found.exposed_us)} of them exposed"
    return line if found.weight_gather is None else f"{line}; {_gathered(found.weight_gather)}"


def _gathered(gather: WeightGather) -> str:
    total = (gather.eight_bit_bytes + gather.wider_bytes) / 1e6
    if not gather.fp8:
        doubt = "perhaps " if gather.fp8 is None else "not "
        return f"{total:.0f} MB all-gathered, {doubt}in FP8"
    proof = (
        f" ({gather.bytes_per_parameter:.2f} bytes a parameter)"
        if gather.bytes_per_parameter
        else ""
    )
    return f"{gather.eight_bit_bytes / 1e6:.0f} of {total:.0f} MB all-gathered in FP8{proof}"


def tables(rank: RankReport) -> Iterator[RenderableType]:
    """Yield the tables of one rank: tax, collectives, layers."""
    if rank.tax is not None:
        yield Padding(_tax_table(rank.tax), (1, 0, 0, 0))
    if rank.communication is not None:
        yield Padding(_collective_table(rank.communication), (1, 0, 0, 0))
    if rank.layers is not None:
        yield Padding(_layer_table(rank.layers), (1, 0, 0, 0))
        if rank.layers.note:
            yield Padding(printable(rank.layers.note), (0, 0, 0, 2))


def _tax_table(tax: TaxReport) -> RenderableType:
    table = plain_table("FP8 tax", "leg", "kernels", "ms", "how", words=("FP8 tax", "leg", "how"))
    merged: dict[tuple[str, str, bool], list[float]] = defaultdict(lambda: [0, 0.0])
    for row in tax.rows:
        total = merged[row.purpose, row.leg.value, row.fused]
        total[0] += row.kernels
        total[1] += row.time_us
    for (purpose, leg, fused), (count, time_us) in merged.items():
        how = "fused" if fused else "one step a kernel (eager)"
        table.add_row(purpose, leg, f"{count:.0f}", millis(time_us), how)
    return table


def _collective_table(found: CommunicationReport) -> RenderableType:
    words = ("collective", "dtype")
    table = plain_table("collective", "dtype", "calls", "MB in", "MB out", "ms", words=words)
    for row in found.collectives:
        table.add_row(
            printable(row.name),
            printable(row.dtype or "-"),
            str(row.calls),
            "-" if row.bytes_in is None else f"{row.bytes_in / 1e6:.1f}",
            "-" if row.bytes_out is None else f"{row.bytes_out / 1e6:.1f}",
            millis(row.time_us),
        )
    return table


def _layer_table(found: LayersReport) -> RenderableType:
    """GEMMs of each size and leg: in FP8, of those that ran."""
    names = ("layers (N x K)", "modules", *_LEGS, "FLOPs", "names")
    table = plain_table(*names, words=("layers (N x K)", "names"), stretch=True, uncut=True)
    for row in found.rows:
        table.add_row(
            f"{row.n} x {row.k}",
            str(row.modules or "-"),
            *(f"{row.in_fp8.get(leg, 0)}/{row.observed.get(leg) or '-'}" for leg in _LEGS),
            percent(row.share_of_flops),
            printable(", ".join(row.names) or "-"),
        )
    return table
