"""What a caller asks of a run; imports nothing, for options are read before all else."""

from __future__ import annotations

from typing import NamedTuple

from fp8verify.thresholds import USUAL_SHARE

# What --require-format may ask for.
FORMATS = ("fp8", "fp8_block", "mxfp8", "nvfp4", "mxfp4")
# What --min-share asks for by this word: the share that was to run in low precision.
EXPECTED = "expected"


class _Asked(NamedTuple):
    min_share: float | None
    strict: bool
    exit_zero: bool
    expected: bool


class Policy(_Asked):
    """The share of GEMM time that ACTIVE takes, and how a verdict becomes an exit code.

    Attributes:
        min_share: share of GEMM time in low precision, from 0 to 1 or as "80%", that every rank
            must reach; if it is given and not met, the run fails. None asks for what was to run in
            low precision, and if that is not known for half; then PARTIAL passes.
        strict: whether PARTIAL fails.
        exit_zero: whether the exit code is 0 whatever failed.
        expected: whether a run fails that falls short of what was to run in low precision; also
            min_share="expected".

    Raises:
        ValueError: `min_share` is not a share.
    """

    __slots__ = ()

    def __new__(
        cls,
        min_share: float | str | None = None,
        strict: bool = False,
        exit_zero: bool = False,
        expected: bool = False,
    ) -> Policy:
        """Check the share as the command line does."""
        if min_share == EXPECTED:
            min_share = None
            expected = True
        share = None if min_share is None else parse_share(min_share)
        return super().__new__(cls, share, strict, exit_zero, expected)

    @property
    def asked(self) -> str:
        """What --min-share asks for, as it was given; nothing where it was not."""
        if self.expected:
            return EXPECTED
        return "" if self.min_share is None else f"{self.min_share:.0%}"

    @property
    def share(self) -> float:
        """The share that ACTIVE takes where what was to run in low precision is not known."""
        return USUAL_SHARE if self.min_share is None else self.min_share


def parse_share(given: float | str) -> float:
    """Return a share such as 0.5 or "50%", from 0 to 1.

    Raises:
        ValueError: it is not a share; the message says why.
    """
    plain = str(given).strip()
    try:
        share = float(plain[:-1]) / 100 if plain.endswith("%") else float(plain)
    except ValueError:
        raise ValueError(f"{given!r} is not a share: pass 0.5 or 50%.") from None
    if not 0 <= share <= 1:
        if 1 < share <= 100 and "%" not in plain:
            meant = f" Did you mean {share:g}%?"
        else:
            meant = ""
        raise ValueError(f"{given!r} is not between 0 and 1 (0% and 100%).{meant}")
    return share
