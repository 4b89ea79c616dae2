"""Everything known about one rank, gathered once and then only read."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from fp8verify.evidence.communication import all_gather_elements
from fp8verify.evidence.gemms import GemmRow, Survey, survey
from fp8verify.evidence.summary import gemm_summary
from fp8verify.kernels import Classification
from fp8verify.model import GemmSummary, OpContext, Precision, Role
from fp8verify.runner.capture import RankMeta
from fp8verify.trace import Health, Step, Trace

# FBGEMM's codecs of embeddings and collectives: fbgemm::FloatToHFP8Quantized and the like (1.9).
_CODEC = re.compile(r"fbgemm::\w*Quantized")
_QUANTIZING = (Role.CAST_QUANTIZE, Role.AMAX_REDUCE)


class RankEvidence(NamedTuple):
    """One rank: its kernels by kind and step, and what the runner noted beside its trace.

    It holds sums, not kernels, so that those of a thousand ranks fit. `all_gathers` are elements
    sent by NCCL's type, `copies` (count, nanoseconds, bytes) of memcpy and memset.
    """

    source: str
    rank: int | None
    world_size: int | None
    gpu: str | None
    compute_capability: str | None
    health: Health
    copies: dict[str, tuple[int, int, int]]
    all_gathers: dict[str, int]
    survey: Survey
    gemm: GemmSummary
    steps: tuple[tuple[Step, GemmSummary], ...]
    meta: RankMeta | None
    alone: bool

    @property
    def label(self) -> str:
        """How messages name the rank."""
        return self.source if self.rank is None else f"rank {self.rank}"

    @property
    def prefix(self) -> str:
        """What messages about this rank begin with where there are others."""
        return "" if self.alone else f"{self.label}: "

    @property
    def ran_fp8(self) -> bool:
        """Whether any FP8 GEMM ran."""
        return any(row.precision.is_fp8 for row in self.survey.gemms)

    @property
    def made_fp8_tensors(self) -> bool:
        """Whether kernels of the model read or wrote tensors of an FP8 type.

        Optimizers with FP8 states (torchao's AdamWFp8), codecs of collectives (FBGEMM's HFP8) and
        FP8 attention cast too, and say nothing about GEMMs.
        """
        if any(_is_fp8_attention(total.kind.classification) for total in self.survey.others):
            return False
        return any(
            _has_fp8_type(total.kind.op) or _casts_to_fp8(total.kind.classification)
            for total in self.survey.others
            if _of_the_model(total.kind.op)
        )

    @property
    def quantizes(self) -> bool:
        """Whether kernels ran that compute a scale or cast to one, of whatever 8-bit type."""
        return any(
            total.kind.classification.role in _QUANTIZING and _of_the_model(total.kind.op)
            for total in self.survey.others
        )

    @property
    def has_fp8_units(self) -> bool:
        """Whether the GPU may multiply in FP8: NVIDIA's do from compute capability 8.9 on."""
        try:
            major, minor = (self.compute_capability or "").split(".")
            return (int(major), int(minor)) >= (8, 9)
        except ValueError:
            return True

    def main_precision(self) -> Precision:
        """The precision class with the most GEMM time."""
        return max(Precision, key=lambda p: self.gemm.time_us[p.value])


def gather(trace: Trace, meta: RankMeta | None = None, *, alone: bool = True) -> RankEvidence:
    """Classify the kernels of a trace and add them up; `alone` if it is the run's only rank."""
    found = survey(trace)
    return RankEvidence(
        source=trace.source,
        rank=trace.rank,
        world_size=trace.world_size,
        gpu=trace.gpu,
        compute_capability=trace.compute_capability,
        health=trace.health,
        copies=trace.copies,
        all_gathers=all_gather_elements(trace),
        survey=found,
        gemm=gemm_summary(found.gemms),
        steps=_by_step(trace, found.gemms),
        meta=meta,
        alone=alone,
    )


def _by_step(trace: Trace, rows: Sequence[GemmRow]) -> tuple[tuple[Step, GemmSummary], ...]:
    members: dict[int, list[GemmRow]] = defaultdict(list)
    for row in rows:
        members[row.step].append(row)
    return tuple((step, gemm_summary(members[i])) for i, step in enumerate(trace.steps))


def _has_fp8_type(op: OpContext | None) -> bool:
    return op is not None and any("Float8_e" in name for name in op.types)


def _casts_to_fp8(found: Classification) -> bool:
    return found.role in _QUANTIZING and found.precision.is_fp8


def _is_fp8_attention(found: Classification) -> bool:
    return found.role is Role.ATTENTION and found.precision.is_fp8


def _of_the_model(op: OpContext | None) -> bool:
    """Whether neither the optimizer nor a codec of collectives launched a kernel."""
    if op is None:
        return True
    return not (_CODEC.match(op.name) or any(name.startswith("Optimizer.") for name in op.parents))
