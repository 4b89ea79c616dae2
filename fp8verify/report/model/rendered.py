"""What reports, comparisons and tables of runs have in common: they render themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import pandas as pd


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A result with its forms as methods; each writer is imported when its form is asked for."""

    def _render(self, form: str, *, verbose: bool = False, width: int | None = None) -> str:
        from fp8verify.report.forms import render

        return render(self, form, verbose=verbose, width=width)

    def to_json(self) -> str:
        """Return the JSON document that `--format json` prints."""
        return self._render("json")

    def to_html(self) -> str:
        """Return the page that `--format html` writes."""
        return self._render("html")

    def to_markdown(self) -> str:
        """Return the Markdown that `--format markdown` prints."""
        return self._render("markdown")

    def to_text(self, *, verbose: bool = False, width: int = 80) -> str:
        """Return the text that the command line prints, without colors."""
        return self._render("text", verbose=verbose, width=width)

    def _repr_html_(self) -> str:
        return self._render("notebook")


class OneTable(Rendered, frozen=True, kw_only=True):
    """A result that is one table in pandas."""

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows that `--format csv` prints.

        Raises:
            UsageError: pandas is not installed.
        """
        from fp8verify.report.rows import columns_and_rows, to_frame

        return to_frame(*columns_and_rows(self))
