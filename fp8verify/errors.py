"""The errors a user can meet: each says the fact, the next step and the exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Fp8VerifyError(Exception):
    """An error shown to the user in two lines: the fact, then the next step.

    `args` are the arguments of the constructor, as pickle asks: worker processes send errors.

    Attributes:
        fact: what is wrong.
        hint: what to do about it; `str` gives both, in two lines.
        exit_code: 2, as click's own usage errors, unless a subclass says otherwise.
    """

    exit_code = 2

    def __init__(self, fact: str, hint: str) -> None:
        super().__init__(fact, hint)
        self.fact = fact
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.fact}\nhint: {self.hint}"


class InputError(Fp8VerifyError):
    """A file or folder that cannot be read as what it was given for."""


class UsageError(Fp8VerifyError):
    """An option or argument with an invalid value."""


@contextmanager
def requires(packages: str, what: str) -> Iterator[None]:
    """Turn a failed import inside into an error that names the packages to install.

    Args:
        packages: as pip takes them; the name of fp8verify itself may be another project's on PyPI.
        what: what needs them.

    Raises:
        InputError: a package is missing.
    """
    try:
        yield
    except ImportError as error:
        raise InputError(
            f"{what} needs a package that is not installed: {error.name or error}.",
            f"pip install {packages}",
        ) from None
