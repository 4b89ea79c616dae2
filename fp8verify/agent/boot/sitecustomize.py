"""Start `_fp8verify_boot` once, and run the `sitecustomize` that this one hides.

`fp8verify run` puts this folder on PYTHONPATH, so every Python below it loads this file, also
tools with a Python of their own: it must be valid in all of them, 2.7 too, and never raise.
"""

# No annotations, no pathlib: Python 2.7 has neither.
# ruff: noqa: PTH118, PTH120, PTH123
# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-not-found"

import os
import sys

HERE = os.path.dirname(__file__)
BOOT = "_fp8verify_boot"
OLDEST = (3, 8)  # no torch that has the profiler's step ranges runs on an older one


def _start():
    try:
        if BOOT in sys.modules:
            # A run inside this one is nearer to the script, and leads.
            with open(os.path.join(HERE, "inner"), "a") as file:
                file.write(os.path.dirname(sys.modules[BOOT].HERE) + "\n")
        elif sys.version_info >= OLDEST:
            __import__(BOOT)
    except Exception:
        # The user's stderr is not ours to write to: the parent reads this file after the run.
        try:
            import traceback

            with open(os.path.join(HERE, "errors.txt"), "a") as file:
                traceback.print_exc(file=file)
        except Exception:
            return


def _run_shadowed():
    """Run the `sitecustomize` that this one hides, its errors handled as without us."""
    ours = sys.modules.pop(__name__)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        # Python 2 has no `name`, and its message ends with it.
        if getattr(error, "name", str(error).split(" ")[-1]) != __name__:
            raise
    finally:
        # The import system takes the module back out of sys.modules when we return to it.
        sys.modules.setdefault(__name__, ours)


_start()
sys.path[:] = [entry for entry in sys.path if entry != HERE]
_run_shadowed()
