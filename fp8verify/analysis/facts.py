"""The facts of one rank: its evidence, and what is worked out from it once for all readers."""

from __future__ import annotations

from typing import NamedTuple

from fp8verify.analysis.gemms import gpu_time
from fp8verify.analysis.layers import Layers, join_by_size
from fp8verify.analysis.payoff import Payoff, payoff
from fp8verify.analysis.promises import Promises, expected_share
from fp8verify.analysis.rank import RankEvidence
from fp8verify.report.model.diagnosis import ExpectedReport


class RankFacts(NamedTuple):
    """The facts of one rank that findings, the verdict and the report use.

    Attributes:
        made_fp8_tensors: whether casts to FP8 feed the GEMMs of layers.
        gpu_time: kernel time in ns by purpose.
        layers: linear layers by size.
        payoff: cost and possible gain of FP8, None if no GEMM ran.
        expected: the share of GEMM FLOPs expected in low precision, None if not known.
    """

    rank: RankEvidence
    made_fp8_tensors: bool
    gpu_time: dict[str, int]
    layers: Layers
    payoff: Payoff | None
    expected: ExpectedReport | None = None

    @property
    def fp8_payoff(self) -> Payoff | None:
        """The payoff of a rank that ran FP8 GEMMs; None for others."""
        return self.payoff if self.rank.ran_low else None


def work_out(rank: RankEvidence, promises: Promises) -> RankFacts:
    """Work out, once, what several readers need of a rank."""
    made_fp8_tensors = rank.made_fp8_tensors()
    casts = rank.ran_low or made_fp8_tensors
    times = gpu_time(rank.survey, casts=casts)
    modules = rank.meta.modules if rank.meta is not None else None
    layers = join_by_size(rank.survey.linear, modules)
    return RankFacts(
        rank=rank,
        made_fp8_tensors=made_fp8_tensors,
        gpu_time=times,
        layers=layers,
        payoff=payoff(rank, times, casts=casts),
        expected=expected_share(rank, layers, promises),
    )
