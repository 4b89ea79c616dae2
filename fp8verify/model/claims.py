"""What the log of a run says of low precision."""

from __future__ import annotations

import msgspec


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A log line that says something about FP8 or FP4, or a call that the run recorded.

    Attributes:
        line: its number, from 1; 0 for a call.
        text: the line.
        framework: whose message it is.
        says: fp8 (a low precision is on), not_fp8 (it is off or fell back), scope (it limits where)
            or revoked (a later line takes it back).
        recipe: the recipe that it names.
        all_gather: whether FP8 weights are gathered, null where it does not say.
        source: name of the log.
        format: the one claimed (fp8, mxfp8, nvfp4, mxfp4, fp4), null where the line names none.
        legs: fprop, dgrad and wgrad with a format or high_precision, where the line tells them
            apart.
        converted: linear layers converted, where the line counts them.
        total: linear layers in all, where the line counts them.
        strength: claim (the program's own sentence) or configuration (a setting requests it).
    """

    line: int
    text: str
    framework: str
    says: str
    recipe: str | None = None
    all_gather: bool | None = None
    source: str = "log"
    format: str | None = None
    legs: dict[str, str] = {}
    converted: int | None = None
    total: int | None = None
    strength: str = "claim"

    @property
    def place(self) -> str:
        """Its place: the line of the log, or the call."""
        if self.line:
            return f"line {self.line}"
        return self.source


class Mention(msgspec.Struct, frozen=True, kw_only=True):
    """A log line that names FP8 or FP4 and claims nothing.

    Attributes:
        line: its number, from 1.
        text: the line.
        source: name of the log.
    """

    line: int
    text: str
    source: str
