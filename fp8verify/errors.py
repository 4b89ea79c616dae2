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
def requires(extra: str, what: str) -> Iterator[None]:
    """Turn a failed import inside into an error that names the packages to install.

    Args:
        extra: of fp8verify.
        what: what needs the package.

    Raises:
        InputError: a package is missing.
    """
    try:
        yield
    except ImportError as error:
        raise InputError(
            f"{what} needs a package that is not installed: {error.name or error}.",
            f"pip install {' '.join(map(repr, _packages(extra))) or error.name}",
        ) from None


def _packages(extra: str) -> list[str]:
    """Return what an extra of fp8verify needs: its own name may be another project's on PyPI."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import requires as needs

    from packaging.requirements import Requirement

    try:
        needed = [Requirement(line) for line in needs("fp8verify") or ()]
    except PackageNotFoundError:  # a checkout that is not installed
        return []
    marked = [(one, one.marker) for one in needed if one.marker is not None]
    return [
        f"{one.name}{one.specifier}"
        for one, marker in marked
        if marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})
    ]
