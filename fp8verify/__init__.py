"""fp8verify tells, with proof, whether an FP8 training run really ran in FP8.

    >>> import fp8verify
    >>> report = fp8verify.inspect("traces/fp8_compiled")
    >>> report.verdict.value
    'ACTIVE'

Importing the package is quick: each name is loaded when it is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module

from fp8verify.version import __version__ as __version__

TYPE_CHECKING = False  # as in typing, whose import every start of ours would feel
if TYPE_CHECKING:  # X as X: what type checkers take for public
    from typing import Any

    from fp8verify.comparison import compare as compare
    from fp8verify.comparison import table as table
    from fp8verify.errors import Fp8VerifyError as Fp8VerifyError
    from fp8verify.integrations.own_loop import Watch, Window
    from fp8verify.kernels import decode
    from fp8verify.model.report import Frames as Frames
    from fp8verify.pipeline.inspection import inspect as inspect
    from fp8verify.preflight import DoctorReport as DoctorReport
    from fp8verify.preflight import doctor as doctor
    from fp8verify.report.results import Comparison as Comparison
    from fp8verify.report.results import Report as Report
    from fp8verify.report.results import RunTable as RunTable
    from fp8verify.terms import KernelName as KernelName
    from fp8verify.terms import Verdict as Verdict
    from fp8verify.verdict.gates import assert_fp8_active as assert_fp8_active
    from fp8verify.verdict.gates import assert_gemm_precision as assert_gemm_precision
    from fp8verify.verdict.gates import assert_no_regression as assert_no_regression
    from fp8verify.verdict.policy import Policy as Policy

    explain = decode
    watch = Watch
    window = Window

_NAMES_OF = {
    "pipeline.inspection": "inspect",
    "comparison": "compare table",
    "errors": "Fp8VerifyError",
    "integrations.own_loop": "watch window",
    "kernels": "explain",
    "preflight": "DoctorReport doctor",
    "model.report": "Frames",
    "report.results": "Comparison Report RunTable",
    "terms": "KernelName Verdict",
    "verdict.gates": "assert_fp8_active assert_gemm_precision assert_no_regression",
    "verdict.policy": "Policy",
}
_HOMES = {name: module for module, names in _NAMES_OF.items() for name in names.split()}
# Names that are others where they live.
_THERE = {"explain": "decode", "watch": "Watch", "window": "Window"}
__all__ = sorted([*_HOMES, "__version__", "step"])


def step(number: int | None = None) -> None:
    """Say that a training step is complete; from then on only these count.

    For loops without a torch.optim optimizer, under `fp8verify run` or a `watch`. Otherwise it does
    nothing.

    Args:
        number: the loop's own number of this step, which continues when a run resumes; used by
            `--steps global:5000-5002`.
    """
    for name in ("_fp8verify_agent", "fp8verify.agent"):
        agent = sys.modules.get(name)
        if agent is not None:
            # The agent may come from a version without numbers.
            agent.step(*(() if number is None else (number,)))


def __dir__() -> list[str]:
    """Return the public names, loaded or not: what a notebook completes."""
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), _THERE.get(name, name))
