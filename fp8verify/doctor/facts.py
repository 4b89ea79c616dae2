"""Everything that the rules read, gathered once by launch.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from fp8verify.doctor.gpus import Gpus
from fp8verify.doctor.installed import Installed, Interpreter
from fp8verify.doctor.scripts import Script
from fp8verify.doctor.training import Ask, Config

if TYPE_CHECKING:
    from fp8verify.doctor.dry_start import DryModel


class Facts(NamedTuple):
    """The facts that all rules read.

    Attributes:
        environment: the variables that reach the training.
        configs: the configurations, including those that the command names.
        scripts: Python sources, as far as they can be read without running them.
        unrecognised: configuration files whose framework is not known.
        command: what would be run.
        gpus: the GPUs of this machine.
        installed: the packages of the training's Python.
        require_gpu: whether a machine without a GPU fails.
        model: the result of a dry start, None if nothing was started.
    """

    environment: Mapping[str, str]
    configs: tuple[Config, ...] = ()
    scripts: tuple[Script, ...] = ()
    unrecognised: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    gpus: Gpus = Gpus()
    installed: Installed = Installed(Interpreter("", "", named=False), {})
    require_gpu: bool = False
    model: DryModel | None = None

    @property
    def wishes(self) -> tuple[tuple[Ask, str], ...]:
        """The FP8 requests of the configurations, each with its file."""
        asked = ((config.ask, config.path) for config in self.configs)
        return tuple((ask, path) for ask, path in asked if ask is not None)

    @property
    def asks(self) -> tuple[tuple[Ask, str], ...]:
        """The requests, and those that a script makes in only one branch."""
        branches = ((ask, script.path) for script in self.scripts for ask in script.asks)
        return (*self.wishes, *branches)

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions by distribution."""
        return self.installed.versions
