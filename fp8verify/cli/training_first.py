"""A report that cannot be made, once the training is over: how that ended is what counts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fp8verify.errors import Fp8VerifyError
from fp8verify.record.stderr import log as say

if TYPE_CHECKING:
    from fp8verify.record.settings import RunResult

NO_REPORT = 3  # as where the evidence cannot decide


@contextmanager
def training_comes_first(
    result: RunResult, *, debug: bool, exit_zero: bool = False
) -> Iterator[None]:
    """Turn an error of the report into a note and an exit code.

    Args:
        result: how the training ended; if it failed, its exit code stays.
        debug: whether to print the traceback of an error of ours.
        exit_zero: whether to exit with 0 where the training did.
    """
    try:
        yield
    except Fp8VerifyError as error:
        say(f"there is no report: {error.fact}")
        if result.capture.exists():
            say(error.hint)
    except Exception as error:
        if debug:
            sys.excepthook(*sys.exc_info())
        say(
            f"there is no report: {type(error).__name__}: {error}. This is an error of fp8verify; "
            "run with --debug for the traceback."
        )
    else:
        return
    sys.exit(result.exit_code or (0 if exit_zero else NO_REPORT))
