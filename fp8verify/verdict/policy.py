"""What a caller asks of a run; imports nothing, for options are read before all else."""

from __future__ import annotations

from typing import NamedTuple

# What --require-format may ask for.
FORMATS = ("fp8", "fp8_block", "mxfp8", "nvfp4", "mxfp4")
USUAL_SHARE = 0.5


class Policy(NamedTuple):
    """The share of GEMM time that ACTIVE takes, and how a verdict becomes an exit code.

    Attributes:
        min_share: share of GEMM time in low precision, from 0 to 1, that every rank must reach;
            where it is given and not met, the run fails. None asks for half, and PARTIAL passes.
        strict: whether PARTIAL fails.
        exit_zero: whether the exit code is 0 whatever failed.
    """

    min_share: float | None = None
    strict: bool = False
    exit_zero: bool = False

    @property
    def share(self) -> float:
        """The share that ACTIVE takes."""
        return USUAL_SHARE if self.min_share is None else self.min_share
