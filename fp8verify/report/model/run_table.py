"""The nouns of a table of runs: one row each."""

from __future__ import annotations

import msgspec

from fp8verify.terms import Verdict


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run at a glance; what is not known is None.

    `lowest_rank_share` is that of the rank with the least FP8. `step_us` is the median step of the
    first rank on the GPU (on the CPU where the GPU's is not known), `speedup_estimate` over BF16
    the least of all ranks', `errors` and `warnings` count findings.

    Attributes:
        name: what the run is called: its folder, or --name.
        verdict: ACTIVE, PARTIAL, INACTIVE, CONTRADICTED, EMULATED or INCONCLUSIVE.
        reason: why, in a sentence.
        exit_code: exit code of the command.
        gpu: name of the GPU; null where not known.
        ranks: how many ranks.
        steps: recorded steps, such as 10-12.
        fp8_share_of_time: FP8 share of GEMM time; null without GEMMs.
        lowest_rank_share: FP8 share of the rank that has the least.
        precisions: precision classes of the GEMMs, the most time first.
        scaling: kinds of scaling of the FP8 GEMMs.
        step_us: median step in microseconds; null where not known.
        gemm_us_per_step: microseconds of GEMMs in a step.
        tflops: 10^12 operations a second of all GEMMs; null where not known.
        casts_share_of_gpu_time: casts and scales as a share of GPU time.
        speedup_estimate: speed-up of GPU time over BF16, by estimate; null where not known.
        errors: findings of severity error.
        warnings: findings of severity warning.
        software: versions by name.
    """

    name: str
    verdict: Verdict
    reason: str
    exit_code: int
    gpu: str | None
    ranks: int
    steps: str
    fp8_share_of_time: float | None
    lowest_rank_share: float | None
    precisions: tuple[str, ...]
    scaling: tuple[str, ...]
    step_us: float | None
    gemm_us_per_step: float | None
    tflops: float | None
    casts_share_of_gpu_time: float | None
    speedup_estimate: float | None
    errors: int
    warnings: int
    software: dict[str, str]


class RunTable(msgspec.Struct, frozen=True, kw_only=True):
    """Runs in the order in which they were given; the exit code is the gravest of theirs.

    Attributes:
        schema_version: version of this document's schema.
        fp8verify_version: version of fp8verify that made the document.
        exit_code: largest exit code of the runs.
        runs: runs in the order in which they were given.
    """

    schema_version: int
    fp8verify_version: str
    exit_code: int
    runs: tuple[RunRow, ...]
