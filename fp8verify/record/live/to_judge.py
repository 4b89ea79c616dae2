"""When a capture is to be judged again: a window closed on all ranks, or long ago on some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fp8verify.record.live.closed import STRAGGLERS_S, closed_windows

if TYPE_CHECKING:
    from pathlib import Path

    from fp8verify.record.settings import RankSelection


class ToJudge:
    """Counts the windows of a capture that were judged.

    Attributes:
        judged: how many were.
    """

    def __init__(self, capture: Path, ranks: RankSelection) -> None:
        self.judged = 0
        self._capture, self._ranks = capture, ranks
        self._waited_s = 0.0

    def is_due(self, passed_s: float) -> bool:
        """Whether there is more to judge, which then counts as judged.

        Args:
            passed_s: seconds since this was asked before.
        """
        some, every = closed_windows(self._capture, self._ranks)
        self._waited_s = self._waited_s + passed_s if some > self.judged else 0.0
        is_late = self._waited_s > STRAGGLERS_S
        if every <= self.judged and not is_late:
            return False
        self.judged, self._waited_s = max(every, some if is_late else 0), 0.0
        return True
