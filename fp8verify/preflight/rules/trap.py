"""A trap: values of a configuration that do not do what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from fp8verify.preflight.checks import Check, Status
from fp8verify.preflight.rules.keys import place
from fp8verify.preflight.training import Config


class Trap(NamedTuple):
    """Values that do not do what they say; `key` is the one whose line is shown."""

    code: str
    status: Status
    key: str
    applies: Callable[[Config], bool]
    message: str
    hint: str
    source: str


def told(traps: Iterable[Trap], config: Config) -> Iterator[Check]:
    """Yield a check for each trap that a configuration holds."""
    for trap in traps:
        if trap.applies(config):
            yield Check(
                code=trap.code,
                status=trap.status,
                message=trap.message,
                hint=trap.hint,
                source=trap.source,
                **place(config, trap.key),
            )
