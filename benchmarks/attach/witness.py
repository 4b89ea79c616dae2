"""Run a script and write down, at exit, what its process looks like from inside.

`witness.py SCRIPT ARGUMENTS...`; the file's name is in the environment, see `../harness.py`.
"""

import atexit
import json
import os
import re
import resource
import runpy
import signal
import sys
import threading


def look(process: int, path: str) -> None:
    if os.getpid() != process:  # a fork inherits this function
        return
    dynamo = sys.modules.get("torch._dynamo.utils")
    seen = {
        # A profiler of CUDA keeps two handles of the GPU for good; Inductor's timer may still run.
        "descriptors": sorted(
            kind
            for kind in map(kind_of, os.listdir("/proc/self/fd"))
            if not kind.startswith("/dev/nvidia")
        ),
        "threads": sorted(
            thread.name
            for thread in threading.enumerate()
            if thread.name != "subproc_worker_timer"
        ),
        "signals": {
            name: str(signal.getsignal(getattr(signal, name)))[:40]
            for name in ("SIGTERM", "SIGINT", "SIGCHLD", "SIGUSR1")
        },
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if dynamo is not None:
        seen |= compiled(dynamo)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(seen, file)


def compiled(dynamo: object) -> dict[str, object]:
    counters = dynamo.counters  # type: ignore[attr-defined]
    metrics = dynamo.get_compilation_metrics()  # type: ignore[attr-defined]
    return {
        "graphs": counters.get("stats", {}).get("unique_graphs", 0),
        "graph_breaks": sum(counters.get("graph_break", {}).values()),
        "recompilations": sum(bool(one.recompile_reason) for one in metrics),
    }


def kind_of(descriptor: str) -> str:
    try:
        found = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return "gone"
    return re.sub(r"\d+", "N", found.replace(os.getcwd(), "."))


if __name__ == "__main__":
    atexit.register(look, os.getpid(), os.environ["FP8VERIFY_HARNESS"])
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
