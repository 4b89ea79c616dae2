"""fp8verify tells, with proof, whether an FP8 training run really ran in FP8.

    >>> import fp8verify
    >>> report = fp8verify.inspect("traces/fp8_compiled")
    >>> report.verdict.value
    'ACTIVE'

Importing the package imports nothing heavy: each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fp8verify.assertions import assert_fp8_active
    from fp8verify.errors import Fp8VerifyError
    from fp8verify.inspection import inspect
    from fp8verify.model import Report, Verdict
    from fp8verify.verdict import Policy

__version__ = "0.1.0"
__all__ = [
    "Fp8VerifyError",
    "Policy",
    "Report",
    "Verdict",
    "__version__",
    "assert_fp8_active",
    "inspect",
]
_HOMES = {
    "Fp8VerifyError": "errors",
    "Policy": "verdict",
    "Report": "model",
    "Verdict": "model",
    "assert_fp8_active": "assertions",
    "inspect": "inspection",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
