"""What `inspect`, `compare` and `table` of fp8verify return: finished figures with their forms."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from fp8verify.report import model
from fp8verify.report.model import comparison, run_table

if TYPE_CHECKING:
    import pandas as pd

    from fp8verify.report.frames import Frames


class _Rendered:
    """A result that can render itself; what renders is imported when a form is asked for."""

    __slots__ = ()
    # The modules of `fp8verify.report` that hold to_text, to_html and to_markdown for the class.
    _text: ClassVar[str]
    _page: ClassVar[str]
    _markdown: ClassVar[str]

    def to_json(self) -> str:
        """Return the JSON document that `--format json` prints."""
        return str(_renderer("json_form").to_json(self))

    def to_html(self) -> str:
        """Return the page that `--format html` writes.

        Raises:
            UsageError: jinja2 is not installed.
        """
        return str(_renderer(self._page).to_html(self))

    def to_markdown(self) -> str:
        """Return the Markdown that `--format markdown` prints."""
        return str(_renderer(self._markdown).to_markdown(self))

    def to_text(self, *, verbose: bool = False, width: int = 80) -> str:
        """Return the text that the command line prints, without colours."""
        return str(_renderer(self._text).to_text(self, verbose=verbose, width=width))

    def _repr_html_(self) -> str:
        return str(_renderer("notebook").to_notebook(self))


class _OneTable(_Rendered):
    """A result that is one table in pandas: `rows` and `COLUMNS` of its Markdown's module."""

    __slots__ = ()

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows that `--format csv` prints.

        Raises:
            UsageError: pandas is not installed.
        """
        from fp8verify.report.frames import import_pandas

        forms = _renderer(self._markdown)
        return import_pandas().DataFrame(list(forms.rows(self)), columns=list(forms.COLUMNS))


class Report(_Rendered, model.Report, frozen=True, kw_only=True):
    """The finished report, which can render itself; each form is imported when it is asked for."""

    _text = "text"
    _page = "html"
    _markdown = "markdown"

    def to_pandas(self) -> Frames:
        """Return kernels, GEMMs, steps, layers and ranks as DataFrames: `fp8verify.report.frames`.

        Raises:
            UsageError: pandas is not installed.
        """
        from fp8verify.report.frames import to_frames

        return to_frames(self)

    def __repr__(self) -> str:
        from fp8verify.report.first_lines import brief

        return f"Report: {brief(self, 'to_text(), to_html(), to_json(), to_pandas()')}".rstrip()


class Comparison(_OneTable, comparison.Comparison, frozen=True, kw_only=True):
    """A finished comparison, which can render itself."""

    _text = "comparison_text"
    _page = "comparison_html"
    _markdown = "comparison_forms"

    def __repr__(self) -> str:
        from fp8verify.report.comparison_text import brief

        return f"Comparison: {brief(self)}".rstrip()


class RunTable(_OneTable, run_table.RunTable, frozen=True, kw_only=True):
    """A table of runs, which can render itself."""

    _text = "run_table_forms"
    _page = "run_table_html"
    _markdown = "run_table_forms"

    def __repr__(self) -> str:
        return self.to_text().rstrip()


_Public = TypeVar("_Public", Report, Comparison, RunTable)


def with_forms(kind: type[_Public], found: msgspec.Struct) -> _Public:
    """Return the same result with its forms as methods."""
    return kind(**msgspec.structs.asdict(found))


def _renderer(name: str) -> Any:
    return import_module(f"fp8verify.report.{name}")
