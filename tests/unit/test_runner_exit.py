"""Waiting for the GPU at the end of a process, never for ever."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch", reason="needs torch, from the train extra")
pytestmark = pytest.mark.train


@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


def finishes_within(seconds: float) -> bool:
    from fp8verify.agent.windows.profiler import gpu_finishes_within

    return gpu_finishes_within(seconds)


def test_without_a_gpu_there_is_nothing_to_wait_for() -> None:
    assert finishes_within(0)


@pytest.mark.usefixtures("_gpu")
def test_an_idle_gpu_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)

    assert finishes_within(30)


@pytest.mark.usefixtures("_gpu")
def test_a_collective_without_its_peer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = threading.Event()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: peer.wait(30))
    try:
        assert not finishes_within(0.05)
    finally:
        peer.set()


@pytest.mark.usefixtures("_gpu")
def test_where_no_thread_starts_at_exit_the_gpu_may_be_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", fail)

    assert not finishes_within(30)
