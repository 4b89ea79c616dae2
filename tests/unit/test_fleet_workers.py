"""Jobs on workers: each is done once, and one that fails costs only itself."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import sleep
from unittest.mock import Mock

import pytest

from fp8verify.pipeline import workers
from fp8verify.pipeline.workers import process_pool, spread


def work(job: str) -> str:
    """A job is a word, which may say what becomes of it."""
    if job == "die":
        os._exit(9)
    if job.startswith("die once "):
        marker = Path(job.removeprefix("die once "))
        if not marker.exists():
            marker.touch()
            os._exit(9)
        return "did it"
    if job == "fail":
        raise ValueError("no such thing\nand more")
    return f"did {job}"


def give_up(job: str, reason: str) -> str:
    return f"{job}: {reason}"


def spread_over(pool: Executor, jobs: Iterable[str]) -> list[str]:
    alone = partial(process_pool, 1)
    return sorted(spread(work, jobs, pool, give_up, one_more=alone))


def test_a_worker_that_dies_loses_the_job_that_killed_it_alone() -> None:
    with process_pool(1) as pool:
        found = spread_over(pool, ["a", "die", "b"])
    assert found == [
        "did a",
        "did b",
        "die: its worker process died twice, killed or out of memory",
    ]


def test_a_job_whose_worker_dies_once_is_done(tmp_path: Path) -> None:
    with process_pool(1) as pool:
        assert spread_over(pool, [f"die once {tmp_path / 'died'}"]) == ["did it"]


def test_a_job_that_fails_is_named_with_its_reason() -> None:
    with ThreadPoolExecutor(2) as pool:
        found = spread_over(pool, ["a", "fail", "b"])
    assert found == [
        "did a",
        "did b",
        "fail: its worker failed with ValueError (no such thing)",
    ]


@pytest.mark.parametrize("workers", [1, 3])
def test_every_job_is_done_once(workers: int) -> None:
    with process_pool(workers) as pool:
        found = spread_over(pool, "abcdefg")
    assert found == [f"did {job}" for job in "abcdefg"]


def test_jobs_fail_once_their_scheduler_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "_LOOK_S", 0.01)
    client, jobs = Mock(status="running"), [Future[str](), Future[str]()]
    client.get_executor.return_value.submit.side_effect = jobs
    watched = workers._Watched(client)
    done, waits = (watched.submit(work, job) for job in "ab")
    done.set_result("did a")
    sleep(0.1)
    assert (done.result(), waits.done()) == ("did a", False)
    client.status = "closed"
    with pytest.raises(ConnectionError, match="scheduler is gone"):
        waits.result(timeout=60)
