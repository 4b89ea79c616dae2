"""Arm fp8verify's agent once torch is imported; leave any other process as it is.

`fp8verify run` puts this folder on PYTHONPATH, beside a `config.json` and a copy of the agent.
Python imports `sitecustomize` at start-up, so launchers, workers and spawned children load it too:
everything here must cost nothing where torch is not imported, and must never raise.
"""

# pathlib takes longer to import than all of this to run.
# ruff: noqa: PTH118, PTH120, PTH123

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as in typing, whose import would be felt by every Python process
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

HERE = os.path.dirname(__file__)
API_USAGE = "PYTORCH_API_USAGE_STDERR"
IMPORT_SYSTEM = "<frozen importlib._bootstrap>"


class TorchFinder:
    """Find `torch` as Python would, and call the agent when its import is complete."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return None for every module but torch."""
        if name != "torch":
            return None
        spec = self._find_elsewhere(name, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            try:
                _arm_after_import(spec.loader, self)
            except Exception:
                _complain()
        return spec

    def _find_elsewhere(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find_spec = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find_spec(name, path, target) if find_spec else None
            if spec is not None:
                return spec
        return None


def _arm_after_import(loader: Any, finder: TorchFinder) -> None:
    config = _read_config()

    # Looking for torch is not importing it: libraries call find_spec to see whether it is there,
    # so the finder stays until a loader really runs.
    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        ours = _request_api_usage(config)
        try:
            loader.exec_module(module)
        finally:
            if ours:
                os.environ.pop(API_USAGE, None)
        try:
            _load_agent().arm(config)
        except Exception:
            _complain()

    # Python cuts the import system's own frames out of tracebacks, by file name. With that name,
    # an error while torch is imported shows what it would show without us.
    exec_module.__code__ = exec_module.__code__.replace(co_filename=IMPORT_SYSTEM)
    loader.exec_module = exec_module


def _read_config() -> dict[str, Any]:
    import json

    with open(os.path.join(HERE, "config.json"), encoding="utf-8") as file:
        config: dict[str, Any] = json.load(file)
    return config


def _request_api_usage(config: dict[str, Any]) -> bool:
    # torch then names the APIs that are used (torchao's float8 conversion among them) on stderr.
    # Only where that is the very stream from which `fp8verify run` takes those lines out again.
    if API_USAGE in os.environ or not config.get("stderr"):
        return False
    try:
        stderr = os.fstat(2)
    except OSError:
        return False
    if [stderr.st_dev, stderr.st_ino] != config["stderr"]:
        return False
    os.environ[API_USAGE] = "1"
    return True


def _load_agent() -> Any:
    from importlib.util import module_from_spec, spec_from_file_location

    folder = os.path.join(HERE, "agent")
    spec = spec_from_file_location(
        "_fp8verify_agent",
        os.path.join(folder, "__init__.py"),
        submodule_search_locations=[folder],
    )
    if spec is None or spec.loader is None:
        raise ImportError(folder)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _complain() -> None:
    # The user's stderr is not ours to write to: the parent reads this file after the run.
    try:
        import traceback

        with open(os.path.join(HERE, "errors.txt"), "a", encoding="utf-8") as file:
            traceback.print_exc(file=file)
    except Exception:
        return


def _run_shadowed() -> None:
    """Run the `sitecustomize` that this one hides, its errors handled as without us."""
    ours = sys.modules.pop(__name__)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != __name__:
            raise
    finally:
        # The import system takes the module back out of sys.modules when we return to it.
        sys.modules.setdefault(__name__, ours)


sys.path[:] = [entry for entry in sys.path if entry != HERE]
sys.meta_path.insert(0, TorchFinder())
_run_shadowed()
