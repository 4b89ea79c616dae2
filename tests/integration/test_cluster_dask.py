"""The same work on a Dask cluster: a real scheduler and two worker processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fp8verify import inspect
from fp8verify.cli.inspect_command import inspect_command
from fp8verify.errors import InputError, UsageError
from fp8verify.pipeline import workers
from fp8verify.pipeline.workers import dask_cluster, spread
from fp8verify.report.forms import to_json
from tests.unit.test_errors import fail
from tests.unit.test_fleet_ranks import write_ranks
from tests.unit.test_fleet_workers import give_up, work

pytestmark = pytest.mark.skipif(
    find_spec("distributed") is None, reason="needs the cluster extra"
)


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    import distributed

    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as local:
        yield local.scheduler_address


def test_a_cluster_gives_the_same_report(scheduler: str, tmp_path: Path) -> None:
    folder = write_ranks(tmp_path, fp8="yynyx")
    plain = to_json(inspect(folder))
    with dask_cluster(scheduler) as executor:
        assert to_json(inspect(folder, executor=executor)) == plain
    arguments = [str(folder), "--scheduler", scheduler, "--format", "json"]
    result = CliRunner().invoke(inspect_command, arguments)
    assert (result.stdout, result.exit_code) == (plain, 1)  # a rank ran no FP8


def test_an_error_on_a_worker_is_raised_as_it_was(scheduler: str) -> None:
    with (
        dask_cluster(scheduler) as executor,
        pytest.raises(InputError, match="no trace") as caught,
    ):
        executor.submit(fail, InputError).result()
    assert caught.value.hint == "Name another file."


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:9", "nonsense", "nosuch://host:8786"]
)
def test_no_scheduler_is_told_in_two_lines(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_CONNECT_S", 1)
    with (
        pytest.raises(
            UsageError, match=f"no Dask scheduler answers at {address}"
        ) as caught,
        dask_cluster(address),
    ):
        pass
    assert caught.value.hint


def test_no_job_waits_for_a_scheduler_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gone:
        status = "running"

        def get_executor(self, **_: Any) -> Any:
            return self

        def submit(self, *_: Any) -> Future[Any]:
            self.status = "closed"
            return Future()  # as distributed leaves it, for ever

        def __enter__(self) -> Gone:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(workers, "_LOOK_S", 0.01)
    monkeypatch.setattr("distributed.Client.__new__", lambda *_: Gone())
    monkeypatch.setattr(Gone, "__init__", lambda *_, **__: None)
    with dask_cluster("tcp://gone:1") as executor:
        found = list(
            spread(
                work,
                ["a", "b"],
                executor,
                give_up,
                one_more=lambda: nullcontext(executor),
            )
        )
    reason = "its worker failed with ConnectionError (the Dask scheduler is gone)"
    assert sorted(found) == [f"a: {reason}", f"b: {reason}"]


def test_no_distributed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError) as e, dask_cluster("tcp://127.0.0.1:9"):
        pass
    assert "pip install distributed" in e.value.hint
