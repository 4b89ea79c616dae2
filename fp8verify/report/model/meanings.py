"""What each verdict means, in one sentence: the documentation's tables say it in these words."""

from __future__ import annotations

from collections.abc import Mapping

from fp8verify.terms import Verdict

MEANINGS: Mapping[Verdict, str] = {
    Verdict.ACTIVE: "FP8 GEMMs ran on every rank, in every step and in the backward pass of the "
    "layers that train, cover what was to run in FP8 (not known: `--min-share` of GEMM time, "
    "default 50%), and nothing promised in FP8 ran otherwise",
    Verdict.PARTIAL: "FP8 GEMMs ran, but some rank, step, micro-batch or GEMM leg (fprop, dgrad, "
    "wgrad) that should have, did not, or the share is below the expected one or the minimum",
    Verdict.INACTIVE: "no FP8 GEMM ran, and nothing claimed that it would",
    Verdict.CONTRADICTED: "the log or the model says FP8, the kernels say no",
    Verdict.EMULATED: "tensors were cast as for FP8, but every GEMM ran in high precision",
    Verdict.INCONCLUSIVE: "the evidence cannot decide: no GPU kernels, a damaged trace that shows "
    "no FP8, too much of unknown precision, a window that never opened",
}
