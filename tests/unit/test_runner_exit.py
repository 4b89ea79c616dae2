"""Waiting for the GPU at the end of a process, never for ever."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs torch, from the train extra")
pytestmark = pytest.mark.train


@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


def finishes_within(seconds: float) -> bool:
    from fp8verify.agent.windows.session import gpu_finishes_within

    return gpu_finishes_within(seconds)


def test_without_a_gpu_there_is_nothing_to_wait_for() -> None:
    assert finishes_within(0)


@pytest.mark.usefixtures("_gpu")
def test_an_idle_gpu_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)

    assert finishes_within(30)


@pytest.mark.usefixtures("_gpu")
def test_a_collective_without_its_peer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = threading.Event()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: peer.wait(30))
    try:
        assert not finishes_within(0.05)
    finally:
        peer.set()


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize("idle", [False, True])
def test_where_no_thread_starts_at_exit_the_stream_is_asked(
    monkeypatch: pytest.MonkeyPatch, idle: bool
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    stream = SimpleNamespace(query=lambda: idle)
    monkeypatch.setattr(threading.Thread, "start", fail)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)

    assert finishes_within(0.05) == idle


@pytest.mark.usefixtures("_gpu")
def test_a_gpu_in_error_is_not_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", fail)

    assert not finishes_within(30)
