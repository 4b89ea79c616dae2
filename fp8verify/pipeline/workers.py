"""Run jobs on worker processes or on a cluster; one that dies loses the job that killed it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    InvalidStateError,
    as_completed,
)
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Thread
from time import sleep
from typing import Any, TypeVar

from fp8verify.errors import UsageError, requires

Job = TypeVar("Job")
Result = TypeVar("Result")
OpenExecutor = Callable[[], AbstractContextManager[Executor]]


def spread(
    work: Callable[[Job], Result],
    jobs: Iterable[Job],
    executor: Executor,
    give_up: Callable[[Job, str], Result],
    *,
    one_more: OpenExecutor,
) -> Iterator[Result]:
    """Yield the result of `work` for each job as soon as it is done, in any order.

    A worker process that dies breaks its pool, and with it the jobs that are not done: these are
    tried once more, each alone, so only the job that killed its worker is given up.

    Args:
        work: a function of one job that can be pickled.
        jobs: all of them.
        executor: runs them.
        give_up: returns the result of a job that failed, given the reason.
        one_more: opens an executor for one job whose pool broke.
    """
    broken: list[Job] = []
    running = {executor.submit(work, job): job for job in jobs}
    for future in as_completed(tuple(running)):
        job = running.pop(future)  # a result is kept no longer than it takes to use it
        try:
            result = future.result()
        except BrokenExecutor:
            broken.append(job)
            continue
        except Exception as error:  # also of one that its executor canceled
            result = give_up(job, _reason(error))
        yield result
    for job in broken:
        yield _alone(work, job, give_up, one_more)


def _alone(
    work: Callable[[Job], Result],
    job: Job,
    give_up: Callable[[Job, str], Result],
    open_executor: OpenExecutor,
) -> Result:
    with open_executor() as executor:
        try:
            return executor.submit(work, job).result()
        except Exception as error:
            return give_up(job, _reason(error))


def _reason(error: Exception) -> str:
    if isinstance(error, BrokenExecutor):
        return "its worker process died twice, killed or out of memory"
    text = str(error).strip().partition("\n")[0][:200].rstrip(".")
    return f"its worker failed with {type(error).__name__}" + (
        f" ({text})" if text else ""
    )


@contextmanager
def process_pool(workers: int) -> Iterator[Executor]:
    """Open a pool of spawned processes, which share no threads and GPU contexts with this one."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    spawn = get_context("spawn")
    executor = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_start_worker)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Let an interrupt end the worker without a traceback, and its parent's end too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


_CONNECT_S = 10
_LOOK_S = 1.0


@contextmanager
def dask_cluster(address: str) -> Iterator[Executor]:
    """Open the executor of the Dask cluster whose scheduler listens at `address`.

    Its workers need fp8verify installed, and the traces under the same paths or URLs.

    Raises:
        InputError: distributed is not installed.
        UsageError: no scheduler answers.
    """
    with requires("distributed", "--scheduler"):
        from distributed import Client
    client: Any = Client.__new__(Client)
    try:
        client.__init__(address, timeout=_CONNECT_S, set_as_default=False)
    except Exception as error:  # whatever else listens there makes it fail in any way
        # A client that never started waits 20 s for its end, unless it takes itself for closed.
        client.status = "closed"
        reason = (
            (str(error) or type(error).__name__).partition("\n")[0][:200].rstrip(".")
        )
        raise UsageError(
            f"no Dask scheduler answers at {address}: {reason}.",
            "Give the address that `dask scheduler` prints, such as tcp://host:8786.",
        ) from None
    with client, _Watched(client) as executor:
        yield executor


class _Watched(Executor):
    """A client's executor whose futures fail when the scheduler is gone.

    The futures of distributed (2026.8) would wait forever.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._executor = client.get_executor(pure=False)
        self._waiting: set[Future[Any]] = set()
        Thread(target=self._watch, daemon=True).start()

    def submit(
        self,
        fn: Callable[..., Any],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Future[Any]:
        future: Future[Any] = self._executor.submit(fn, *args, **kwargs)
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future

    def _watch(self) -> None:
        while self._client.status not in ("closing", "closed"):
            sleep(_LOOK_S)
        for future in tuple(self._waiting):
            with suppress(InvalidStateError):
                future.set_exception(ConnectionError("the Dask scheduler is gone"))
