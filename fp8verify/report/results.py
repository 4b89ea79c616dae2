"""The results that the package returns: those of `fp8verify.model`, which write themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fp8verify.model import comparison, report
from fp8verify.report import forms

if TYPE_CHECKING:
    import pandas as pd


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A result with its forms as methods; each writer is imported when its form is asked for."""

    def to_json(self) -> str:
        """Return the JSON document that `--format json` prints."""
        return forms.render(self, "json")

    def to_html(self) -> str:
        """Return the page that `--format html` writes."""
        return forms.render(self, "html")

    def to_markdown(self) -> str:
        """Return the Markdown that `--format markdown` prints."""
        return forms.render(self, "markdown")

    def to_text(self, *, verbose: bool = False, width: int = 80) -> str:
        """Return the text that the command line prints, without colors."""
        return forms.render(self, "text", verbose=verbose, width=width)

    def _repr_html_(self) -> str:
        return forms.render(self, "notebook")

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {forms.brief(self)}".rstrip()


class Report(Rendered, report.Report, frozen=True, kw_only=True):
    """The finished report: the one contract of every output, which can render itself.

    Its attributes are the keys of its JSON document.

    Example:
        >>> import fp8verify
        >>> report = fp8verify.inspect("traces/fp8_one_step_bf16")
        >>> report.verdict.value, report.exit_code, report.cause
        ('PARTIAL', 1, 'step-without-fp8')
        >>> print(report.findings[0].message)
        no FP8 GEMM ran in step 6
    """

    def to_pandas(self) -> report.Frames:
        """Return kernels, GEMMs, steps, layers and ranks as DataFrames: `fp8verify.report.rows`.

        Raises:
            UsageError: pandas is not installed.
        """
        from fp8verify.report import rows

        return rows.to_frames(self)


class Comparison(Rendered, comparison.Comparison, frozen=True, kw_only=True):
    """Two runs compared; `speedup` is at equal work, `step_speedup` of the steps.

    `busy_speedup` is at equal work and without the time in which the GPU waits, which profiling
    lengthens. `work_ratio` is the candidate's forward GEMM FLOPs a step over the baseline's, None
    if unknown.

    Its attributes are the keys of its JSON document.

    Example:
        >>> import fp8verify
        >>> found = fp8verify.compare("traces/bf16_width4096", "traces/fp8_width4096")
        >>> found.outcome.value, found.speedup
        ('FASTER', 1.3443)
    """

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows that `--format csv` prints: a pair each, times in µs a step.

        Raises:
            UsageError: pandas is not installed.
        """
        from fp8verify.report import rows

        return rows.to_frame(*rows.columns_and_rows(self))


class RunTable(Rendered, comparison.RunTable, frozen=True, kw_only=True):
    """Runs in the order in which they were given; the exit code is the worst of theirs.

    Its attributes are the keys of its JSON document.

    Example:
        >>> import fp8verify
        >>> found = fp8verify.table("traces/bf16_compiled", "traces/fp8_compiled")
        >>> [(run.name, run.verdict.value) for run in found.runs]
        [('bf16_compiled', 'INACTIVE'), ('fp8_compiled', 'ACTIVE')]
    """

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows that `--format csv` prints.

        Raises:
            UsageError: pandas is not installed.
        """
        from fp8verify.report import rows

        return rows.to_frame(*rows.columns_and_rows(self))

    def __repr__(self) -> str:
        return self.to_text().rstrip()
