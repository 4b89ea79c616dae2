"""Assert in pytest that a training ran in FP8: `fp8_report` and `assert_fp8_active`.

    def test_training_ran_in_fp8(fp8_report):
        assert_fp8_active(fp8_report("traces/fp8_compiled"), min_share=0.9)

The plugin imports fp8verify's machinery when a test asks for it, and never torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from fp8verify.model import Report

__all__ = ["assert_fp8_active", "fp8_report"]


class InspectTrace(Protocol):
    """What the fixture `fp8_report` is: `inspect` with the share as a keyword."""

    def __call__(
        self, path: str | Path, *, log: str | Path | None = None, min_share: float = 0.5
    ) -> Report:
        """Inspect a trace, a folder of ranks or a capture."""


def assert_fp8_active(report: Report, *, min_share: float = 0.5) -> None:
    """Assert as `fp8verify.assert_fp8_active` does."""
    __tracebackhide__ = True
    from fp8verify.assertions import assert_fp8_active as check

    check(report, min_share=min_share)


@pytest.fixture(scope="session")
def fp8_report() -> InspectTrace:
    """Inspect a trace, a folder of ranks or a capture of `fp8verify run`, and return its report."""

    def report(
        path: str | Path, *, log: str | Path | None = None, min_share: float = 0.5
    ) -> Report:
        from fp8verify.inspection import inspect
        from fp8verify.verdict import Policy

        return inspect(path, log=log, policy=Policy(min_share=min_share))

    return report
