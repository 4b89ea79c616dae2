"""Worker processes on this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Executor


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def process_pool(workers: int) -> Iterator[Executor]:
    """Open a pool of fresh processes, whatever threads and GPU contexts this one holds."""
    # multiprocessing takes as long to import as a small trace to read.
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    executor = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_start_worker
    )
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Let an interrupt end the worker without a traceback, and its parent's end too."""
    from threading import Thread

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
