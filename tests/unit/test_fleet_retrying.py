"""Work outlives the workers that die of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest

from fp8verify.pipeline.workers import process_pool, retrying_map


def work(job: str) -> str:
    """A job is a word; the file of that name, if there is one, makes its worker die once."""
    kind, _, rest = job.partition(":")
    if kind == "die":
        os._exit(9)
    if kind == "die-once" and Path(rest).exists():
        Path(rest).unlink()
        os._exit(9)
    if kind == "fail":
        raise ValueError("no such thing\nand more")
    return f"did {kind}"


def give_up(job: str, reason: str) -> str:
    return f"{job.partition(':')[0]}: {reason}"


def results(jobs: list[str], workers: int = 2) -> list[str]:
    return sorted(retrying_map(work, jobs, partial(process_pool, workers), 2 * workers, give_up))


def test_a_worker_that_dies_costs_only_its_own_job(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    marker.touch()
    jobs = ["a", "b", f"die-once:{marker}", "c", "die:", *"defgh"]
    assert results(jobs) == [
        "did a", "did b", "did c", "did d", "did die-once", "did e", "did f", "did g", "did h",
        "die: its worker process died twice, killed or out of memory",
    ]  # fmt: skip


def test_a_job_that_fails_is_named_with_its_reason() -> None:
    with ThreadPoolExecutor(2) as pool:
        found = sorted(
            retrying_map(work, ["a", "fail", "b"], lambda: nullcontext(pool), 1, give_up)
        )
    assert found == [
        "did a",
        "did b",
        "fail: its worker failed twice with ValueError (no such thing)",
    ]


def test_no_more_jobs_are_in_flight_than_asked_for() -> None:
    class Counting(ThreadPoolExecutor):
        running = most = 0

        def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
            Counting.running += 1
            Counting.most = max(Counting.most, Counting.running)
            future = super().submit(fn, *args, **kwargs)
            future.add_done_callback(lambda _: setattr(Counting, "running", Counting.running - 1))
            return future

    with Counting(4) as pool:
        found = list(retrying_map(work, list("abcdefghij"), lambda: nullcontext(pool), 3, give_up))
    assert len(found) == 10
    assert Counting.most <= 3


def test_an_executor_that_takes_no_work_ends_in_a_reason() -> None:
    closed = ThreadPoolExecutor(1)
    closed.shutdown()
    opened = []

    @contextmanager
    def open_closed() -> Iterator[Executor]:
        opened.append(1)
        yield closed

    found = list(retrying_map(work, ["a", "b"], open_closed, 2, give_up))
    assert len(found) == 2
    assert all("cannot schedule new futures" in result for result in found)
    assert len(opened) <= 4


@pytest.mark.parametrize("workers", [1, 3])
def test_every_job_is_done_once(workers: int) -> None:
    assert results(list("abcdefg"), workers) == [f"did {job}" for job in "abcdefg"]
