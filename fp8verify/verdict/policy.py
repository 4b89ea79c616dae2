"""What a caller asks of a run; imports nothing, for options are read before all else."""

from __future__ import annotations

from typing import NamedTuple

# What --require-format may ask for.
FORMATS = ("fp8", "fp8_block", "mxfp8", "nvfp4", "mxfp4")
USUAL_SHARE = 0.5
# What --min-share asks for by this word: the share that was to run in low precision.
EXPECTED = "expected"


class Policy(NamedTuple):
    """The share of GEMM time that ACTIVE takes, and how a verdict becomes an exit code.

    Attributes:
        min_share: share of GEMM time in low precision, from 0 to 1, that every rank must reach;
            if it is given and not met, the run fails. None asks for what was to run in low
            precision, and if that is not known for half; then PARTIAL passes.
        strict: whether PARTIAL fails.
        exit_zero: whether the exit code is 0 whatever failed.
        expected: whether a run fails that falls short of what was to run in low precision.
    """

    min_share: float | None = None
    strict: bool = False
    exit_zero: bool = False
    expected: bool = False

    @property
    def share(self) -> float:
        """The share that ACTIVE takes where what was to run in low precision is not known."""
        return USUAL_SHARE if self.min_share is None else self.min_share


def parse_share(text: str) -> float:
    """Return the share of `text`, such as 0.5 or 50%, from 0 to 1.

    Raises:
        ValueError: it is not a share; the message says why.
    """
    plain = text.strip()
    try:
        share = float(plain[:-1]) / 100 if plain.endswith("%") else float(plain)
    except ValueError:
        raise ValueError(f"{text!r} is not a share: pass 0.5 or 50%.") from None
    if not 0 <= share <= 1:
        raise ValueError(f"{text!r} is not between 0 and 1 (0% and 100%).")
    return share
