"""Workers on other machines, through a Dask scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from fp8verify.errors import UsageError

_CONNECT_S = 10


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
    with client:
        yield client.get_executor(pure=False)
