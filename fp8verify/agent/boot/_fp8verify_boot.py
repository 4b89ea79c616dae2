"""Arm fp8verify's agent once torch is imported; leave any other process as it is.

Its folder has a `config.json` and the agent, in an archive. `sitecustomize` starts it in every
Python, so launchers, workers and spawned children load it too: everything here must cost nothing
where torch is not imported, and must never raise.
"""

# pathlib takes longer to import than all of this to run.
# ruff: noqa: PTH118, PTH120, PTH123

from __future__ import annotations

import os
import sys

TYPE_CHECKING = (
    False  # as in typing, whose import would be felt by every Python process
)
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

HERE = os.path.dirname(__file__)
AGENT = "_fp8verify_agent"  # the package in the archive
IMPORT_SYSTEM = "<frozen importlib._bootstrap>"


class Finder:
    """Find one module as Python would, and call `then` when its import is complete."""

    def __init__(self, name: str, then: Callable[[], object]) -> None:
        self._name = name
        self._then = then
        self._looks = False

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> ModuleSpec | None:
        """Return None for every other module."""
        if name != self._name or self._looks:
            return None
        self._looks = True  # another finder may ask all others as well, us among them
        try:
            spec = self._find_elsewhere(name, path, target)
        finally:
            self._looks = False
        if spec is not None and hasattr(spec.loader, "exec_module"):
            try:
                self._call_after(spec.loader)
            except Exception:
                _complain()
        return spec

    def _find_elsewhere(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        finders = list(sys.meta_path)
        # Those before this one were asked already.
        later = finders[finders.index(self) + 1 :] if self in finders else finders
        for finder in later:
            find_spec = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = (
                find_spec(name, path, target) if find_spec else None
            )
            if spec is not None:
                return spec
        return None

    def _call_after(self, loader: Any) -> None:
        # Looking for a module is not importing it: libraries call find_spec to see whether torch is
        # there, so the finder stays until a loader really runs.
        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            loader.exec_module(module)
            try:
                self._then()
            except Exception:
                _complain()

        # Python cuts the import system's own frames out of tracebacks, by file name. With that
        # name, an error while torch is imported shows what it would show without us.
        exec_module.__code__ = exec_module.__code__.replace(co_filename=IMPORT_SYSTEM)
        loader.exec_module = exec_module


def after_import(name: str, then: Callable[[], object]) -> None:
    """Have `then` called once, right after a module of that name is imported."""
    sys.meta_path.insert(0, Finder(name, then))


def _arm() -> None:
    import json

    try:
        with open(os.path.join(HERE, "imported"), "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
    except OSError:  # it only helps to say why nothing was observed
        pass
    with open(os.path.join(HERE, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    _load_agent(os.path.join(HERE, "agent.zip")).arm(config, after_import)


def _load_agent(archive: str) -> Any:
    from importlib import import_module

    sys.path.insert(
        0, archive
    )  # the loader of archives has no other way in common to all Pythons
    try:
        return import_module(AGENT)
    finally:
        sys.path.remove(archive)


def _complain() -> None:
    # The user's stderr is not ours to write to: the parent reads this file after the run.
    try:
        import traceback

        with open(os.path.join(HERE, "errors.txt"), "a", encoding="utf-8") as file:
            traceback.print_exc(file=file)
    except Exception:
        return


after_import("torch", _arm)
