"""A trap: values of a configuration that do not do what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.rules.keys import place
from fp8verify.doctor.training import Config


class Trap(NamedTuple):
    """Values that do not do what they say.

    Attributes:
        code, status, message, hint, source: of the check that tells it.
        key: the key whose line is shown.
        applies: whether a configuration holds it.
        shows: the key whose value stands for {} in the message.
    """

    code: str
    status: Status
    key: str
    applies: Callable[[Config], bool]
    message: str
    hint: str
    source: str
    shows: str = ""


def told(traps: Iterable[Trap], config: Config) -> Iterator[Check]:
    """Yield a check for each trap that a configuration holds."""
    for trap in traps:
        if trap.applies(config):
            yield Check(
                code=trap.code,
                status=trap.status,
                message=trap.message.replace("{}", str(config.values.get(trap.shows))[:40]),
                hint=trap.hint,
                source=trap.source,
                **place(config, trap.key),
            )
