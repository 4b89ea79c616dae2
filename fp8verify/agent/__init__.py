"""What runs inside the training process: standard library and torch only, never fp8verify.

An archive of this folder is put next to the injected `sitecustomize`, since the environment of the
training need not have fp8verify installed. Hence the relative imports, here and in every module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

AfterImport = Callable[[str, Callable[[], object]], None]


def arm(config: Any, after_import: AfterImport) -> Any:
    """Hook the freshly imported torch and return the observer; see `boot/_fp8verify_boot.py`.

    Args:
        config: a `Config`; or of a dry start only the folder `dry` and what is known of frameworks.
        after_import: has a function called when a module has been imported.
    """
    if "dry" in config:
        from .census import install_dry
        from .precision import declare

        declare(config["modules"])
        return install_dry(config["dry"])
    import sys

    from .framework_counters import counters
    from .hooks import install
    from .process import CONVERSIONS, watch_api_calls

    observer = install(config)
    for module in counters.modules().difference(sys.modules):
        after_import(module, observer.look_for_frameworks)
    after_import(CONVERSIONS, watch_api_calls)
    return observer


def step(number: int | None = None) -> None:
    """Count a training step that the script announces itself; see `Clock.announce`.

    `number` is what the script calls it.
    """
    from .hooks import installed

    observer = installed()
    if observer is not None:
        observer.announced(number)
