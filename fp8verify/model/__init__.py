"""The structs of results: reports, comparisons and tables of runs.

Results render themselves, and their writers import them: `fp8verify.report`, which Python imports
before any module of this folder, says here where the writers are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Writers(Protocol):
    """Writes results in their forms."""

    def render(
        self, result: Any, form: str, *, verbose: bool = False, width: int | None = None
    ) -> str:
        """Render a result whole."""

    def brief(self, result: Any, whole: str = "") -> str:
        """Return a result in at most four lines."""

    def to_pandas(self, result: Any) -> Any:
        """Return the DataFrames of a report, or the one of another result."""


writers: Callable[[], Writers]
