"""Jobs on workers: each is done once, and one that fails costs only itself."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from time import sleep
from unittest.mock import Mock

import pytest

from fp8verify.pipeline import workers
from fp8verify.pipeline.workers import process_pool, spread


def work(job: str) -> str:
    """A job is a word, which may say what becomes of it."""
    if job == "die":
        os._exit(9)
    if job == "fail":
        raise ValueError("no such thing\nand more")
    return f"did {job}"


def give_up(job: str, reason: str) -> str:
    return f"{job}: {reason}"


def test_a_worker_that_dies_leaves_no_job_without_an_answer() -> None:
    with process_pool(1) as pool:
        found = list(spread(work, ["a", "die", "b"], pool, give_up))
    (reason,) = (result for result in found if result.startswith("die"))
    assert "its worker process died" in reason
    assert len(found) == 3


def test_a_job_that_fails_is_named_with_its_reason() -> None:
    with ThreadPoolExecutor(2) as pool:
        found = sorted(spread(work, ["a", "fail", "b"], pool, give_up))
    assert found == [
        "did a",
        "did b",
        "fail: its worker failed with ValueError (no such thing)",
    ]


@pytest.mark.parametrize("workers", [1, 3])
def test_every_job_is_done_once(workers: int) -> None:
    with process_pool(workers) as pool:
        found = sorted(spread(work, list("abcdefg"), pool, give_up))
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
        waits.result(timeout=5)
