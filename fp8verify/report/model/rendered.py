"""What reports, comparisons and tables of runs have in common: they render themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fp8verify.report import model

if TYPE_CHECKING:
    import pandas as pd


class Frames(NamedTuple):
    """One DataFrame for each kind of row; `rank` is the rank's number, None if not known.

    Attributes:
        kernels: a row for each kind of kernel on each rank: the columns are the attributes of
            `fp8verify.report.model.KernelRow`.
        gemms: those of the kernels that are GEMMs; `is_fp8` is whether a row counts into the FP8
            share.
        steps: training steps. step: the profiler's number; fp8_share_of_time: FP8 share of the
            step's GEMM time, None without GEMMs; gemm_us: GEMM time in µs; cpu_us: duration on
            the CPU in µs; gpu_us: on the GPU, None if it launched no kernel.
        layers: linear modules of the model. layer: the name; state: fp8, fp8_emulated,
            fp8_module_off, fp4, fp4_emulated, high_precision or unknown.
        named_layers: GEMMs by layer. layer: the name; leg: fprop, dgrad, wgrad, backward,
            recompute or unknown; precision: class of the operands; kernels: launches; time_us: µs
            of all launches; source: window, or step for an eager step, whose times are not the
            run's.
        numerics: tensors of FP8 layers: the columns are the attributes of
            `fp8verify.report.model.numerics.TensorRow`.
        ranks: the ranks. source: file of the trace; verdict and reason: the rank's own;
            fp8_share_of_time: FP8 share of GEMM time, None without GEMMs; gemm_us: GEMM time in
            µs; gpu_us: time of all kernels in µs; kernels: how many kernels the trace holds.
    """

    kernels: pd.DataFrame
    gemms: pd.DataFrame
    steps: pd.DataFrame
    layers: pd.DataFrame
    named_layers: pd.DataFrame
    numerics: pd.DataFrame
    ranks: pd.DataFrame


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A result with its forms as methods; each writer is imported when its form is asked for."""

    def _render(self, form: str, *, verbose: bool = False, width: int | None = None) -> str:
        return model.writers().render(self, form, verbose=verbose, width=width)

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
        frame: pd.DataFrame = model.writers().to_pandas(self)
        return frame
