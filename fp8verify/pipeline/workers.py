"""Run jobs on worker processes; one that dies loses at most the job that killed it."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    InvalidStateError,
    wait,
)
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Event, Thread
from typing import Any, TypeVar

from fp8verify.errors import UsageError, requires

Job = TypeVar("Job")
Result = TypeVar("Result")

OpenExecutor = Callable[[], AbstractContextManager[Executor]]


def retrying_map(
    work: Callable[[Job], Result],
    jobs: Iterable[Job],
    open_executor: OpenExecutor,
    in_flight: int,
    give_up: Callable[[Job, str], Result],
) -> Iterator[Result]:
    """Yield the result of `work` for each job as soon as it is done, in any order.

    A worker process that dies breaks its pool, and with it other jobs. The failed jobs are
    tried once more, each alone in a new pool, so only the faulty one fails again.

    Args:
        work: a function of one job that can be pickled.
        jobs: read as needed.
        open_executor: opens a pool; called again after a pool broke.
        in_flight: the most jobs that are submitted at once.
        give_up: returns the result of a job that failed twice, given the reason.
    """
    waiting = deque(jobs)
    suspects: list[Job] = []
    while waiting:
        with open_executor() as executor:
            suspects += yield from _run(work, waiting, executor, in_flight)
    for job in suspects:
        try:
            with open_executor() as executor:
                result = executor.submit(work, job).result()
        except Exception as error:
            result = give_up(job, _reason(error))
        yield result


def _run(
    work: Callable[[Job], Result], waiting: deque[Job], executor: Executor, in_flight: int
) -> Generator[Result, None, list[Job]]:
    """Run jobs until none waits or the pool breaks; return those that did not come through."""
    running: dict[Future[Result], Job] = {}
    suspects: list[Job] = []
    healthy = True
    while running or (waiting and healthy):
        while waiting and healthy and len(running) < in_flight:
            job = waiting.popleft()
            try:
                running[executor.submit(work, job)] = job
            except Exception:
                suspects.append(job)
                healthy = False
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            job = running.pop(future)
            try:
                result = future.result()
            except Exception as error:  # also of one that its executor canceled
                suspects.append(job)
                healthy = healthy and not isinstance(error, BrokenExecutor)
            else:
                yield result
    return suspects


def _reason(error: Exception) -> str:
    if isinstance(error, BrokenExecutor):
        return "its worker process died twice, killed or out of memory"
    text = str(error).strip().partition("\n")[0][:200].rstrip(".")
    return f"its worker failed twice with {type(error).__name__}" + (f" ({text})" if text else "")


@contextmanager
def process_pool(workers: int) -> Iterator[Executor]:
    """Open a pool of spawned processes, which share no threads and GPU contexts with this one."""
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
        reason = (str(error) or type(error).__name__).partition("\n")[0][:200].rstrip(".")
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
        self._over = Event()
        Thread(target=self._watch, daemon=True).start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = self._executor.submit(fn, *args, **kwargs)
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            if self._client.status in ("closing", "closed"):
                for future in tuple(self._waiting):
                    with suppress(InvalidStateError):
                        future.set_exception(ConnectionError("the Dask scheduler is gone"))
