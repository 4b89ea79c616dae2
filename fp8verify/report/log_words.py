"""What the log said about FP8, in words that do not need the framework's source."""

from __future__ import annotations

from fp8verify.report.escape import printable
from fp8verify.report.model import Claim

# Lines that are no sentences, by how they begin.
_MEANINGS = {
    "PYTORCH_API_USAGE torchao.float8.convert_to_float8_training": (
        "torchao's convert_to_float8_training was called"
    ),
}


def said(claim: Claim) -> str:
    """Return what a log line claims; the framework is the one whose wording it is."""
    meaning = _MEANINGS.get(claim.text)
    if meaning is not None:
        return f"{claim.place}: {meaning}"
    return f"{claim.place}: {printable(claim.text)} ({claim.framework}'s wording)"
