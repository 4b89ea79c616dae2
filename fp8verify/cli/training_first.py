"""A report that cannot be made, once the training is over: how that ended is what counts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fp8verify.errors import Fp8VerifyError
from fp8verify.record.notices import tell

if TYPE_CHECKING:
    from fp8verify.record.settings import RunResult


@contextmanager
def training_comes_first(result: RunResult, *, debug: bool) -> Iterator[None]:
    """Have an error of the report change nothing of the exit code of a training that failed.

    Args:
        result: how the training ended.
        debug: whether to let an error of ours show where it comes from.

    Raises:
        Fp8VerifyError: the training succeeded, but there is no report on it.
    """
    try:
        yield
    except Fp8VerifyError as error:
        if not result.exit_code:
            raise
        tell(error.fact)
    except Exception as error:
        if debug:
            sys.excepthook(*sys.exc_info())
        if not result.exit_code:
            raise Fp8VerifyError(*_told(error)) from None
        tell(_told(error)[0])
    else:
        return
    sys.exit(result.exit_code)


def _told(error: Exception) -> tuple[str, str]:
    return (
        f"there is no report: {type(error).__name__}: {error}",
        "This is an error of fp8verify; run with --debug for the traceback.",
    )
