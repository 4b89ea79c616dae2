"""Workers on other machines, through a Dask scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any

from fp8verify.errors import UsageError

_CONNECT_S = 10
_LOOK_S = 1.0


@contextmanager
def dask_cluster(address: str) -> Iterator[Executor]:
    """Open the executor of the Dask cluster whose scheduler listens at `address`.

    Its workers need fp8verify installed, and the traces under the same paths or URLs.

    Raises:
        UsageError: distributed is not installed, or no scheduler answers.
    """
    try:
        from distributed import Client
    except ImportError:
        raise UsageError(
            "--scheduler needs a package that is not installed.",
            "pip install 'fp8verify[cluster]', here and on the workers.",
        ) from None
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

    Those of distributed (2026.8) wait for ever then.
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
