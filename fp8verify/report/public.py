"""What `inspect`, `compare` and `table` of fp8verify return: finished figures with their forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from fp8verify.report import model
from fp8verify.report.forms import RenderOptions, brief, render
from fp8verify.report.model import comparison, run_table

if TYPE_CHECKING:
    import pandas as pd

    from fp8verify.report.frames import Frames
    from fp8verify.report.page_of import Result


class _Rendered:
    """A result that can render itself; what renders is imported when a form is asked for."""

    __slots__ = ()

    def to_json(self) -> str:
        """Return the JSON document that `--format json` prints."""
        return render(cast("Result", self), "json")

    def to_html(self) -> str:
        """Return the page that `--format html` writes."""
        return render(cast("Result", self), "html")

    def to_markdown(self) -> str:
        """Return the Markdown that `--format markdown` prints."""
        return render(cast("Result", self), "markdown")

    def to_text(self, *, verbose: bool = False, width: int = 80) -> str:
        """Return the text that the command line prints, without colours."""
        return render(cast("Result", self), "text", RenderOptions(verbose=verbose, width=width))

    def _repr_html_(self) -> str:
        return render(cast("Result", self), "notebook")


class _OneTable(_Rendered):
    """A result that is one table in pandas."""

    __slots__ = ()

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows that `--format csv` prints.

        Raises:
            UsageError: pandas is not installed.
        """
        from fp8verify.report.csv_form import columns_and_rows
        from fp8verify.report.frames import import_pandas

        columns, rows = columns_and_rows(self)
        return import_pandas().DataFrame(list(rows), columns=list(columns))


class Report(_Rendered, model.Report, frozen=True, kw_only=True):
    """The finished report, which can render itself; each form is imported when it is asked for."""

    def to_pandas(self) -> Frames:
        """Return kernels, GEMMs, steps, layers and ranks as DataFrames: `fp8verify.report.frames`.

        Raises:
            UsageError: pandas is not installed.
        """
        from fp8verify.report.frames import to_frames

        return to_frames(self)

    def __repr__(self) -> str:
        return f"Report: {brief(self, 'to_text(), to_html(), to_json(), to_pandas()')}".rstrip()


class Comparison(_OneTable, comparison.Comparison, frozen=True, kw_only=True):
    """A finished comparison, which can render itself."""

    def __repr__(self) -> str:
        return f"Comparison: {brief(self)}".rstrip()


class RunTable(_OneTable, run_table.RunTable, frozen=True, kw_only=True):
    """A table of runs, which can render itself."""

    def __repr__(self) -> str:
        return self.to_text().rstrip()


_Public = TypeVar("_Public", Report, Comparison, RunTable)


def with_forms(kind: type[_Public], found: msgspec.Struct) -> _Public:
    """Return the same result with its forms as methods."""
    return kind(**msgspec.structs.asdict(found))
