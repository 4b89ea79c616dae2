"""Everything that the rules read, gathered once by launch.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from fp8verify.preflight.documents import Document
from fp8verify.preflight.gpus import Gpus
from fp8verify.preflight.installed import Installed, Interpreter
from fp8verify.preflight.training import Ask, Config

if TYPE_CHECKING:
    from fp8verify.preflight.dry_start import DryModel


class Missing(NamedTuple):
    """A configuration that a launch names and that is not here: who names it, where, what."""

    path: str
    line: int | None
    framework: str
    file: str


class Facts(NamedTuple):
    """The facts that all rules read.

    Attributes:
        environment: the variables that reach the run.
        configs: the configurations, including those that the command names.
        unread: documents whose framework is not known, among them Python sources.
        missing: configurations that a launch names and that are not on this machine.
        command: what would be run.
        gpus: the GPUs of this machine, or those that were named.
        installed: the packages of the run's Python.
        require_gpu: whether a machine without a GPU fails.
        model: the result of a dry start, None if nothing was started.
    """

    environment: Mapping[str, str]
    configs: tuple[Config, ...] = ()
    unread: tuple[Document, ...] = ()
    missing: tuple[Missing, ...] = ()
    command: tuple[str, ...] = ()
    gpus: Gpus = Gpus()
    installed: Installed = Installed(Interpreter("", "", named=False), {})
    require_gpu: bool = False
    model: DryModel | None = None

    @property
    def asks(self) -> tuple[tuple[Ask, str], ...]:
        """The FP8 requests of the configurations, each with its file."""
        asked = ((config.ask, config.path) for config in self.configs)
        return tuple((ask, path) for ask, path in asked if ask is not None)

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions by distribution."""
        return self.installed.versions
