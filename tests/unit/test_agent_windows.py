"""Windows of a process whose threads complete steps at once, or which ends before they begin."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from fp8verify.record.folder import CaptureFolder
from fp8verify.record.injection import agent_config, make_boot_folder
from fp8verify.record.settings import RunSettings

torch = pytest.importorskip("torch", reason="needs torch, from the train extra")
pytestmark = pytest.mark.train

Windows = tuple[tuple[int, int], ...]


def config(folder: Path, windows: Windows) -> dict[str, Any]:
    """Return what the runner tells the agent."""
    boot = folder / "boot"
    settings = RunSettings(windows=windows)
    make_boot_folder(boot, agent_config(settings, CaptureFolder(folder)))
    read: dict[str, Any] = json.loads((boot / "config.json").read_text())
    return read


def manager(folder: Path, windows: Windows) -> Any:
    """Return the windows of a process that has no optimizer."""
    from fp8verify.agent.clock import Clock
    from fp8verify.agent.windows.manager import WindowManager
    from fp8verify.agent.windows.profiler import ProfilerArbiter

    arbiter = ProfilerArbiter(lambda: None)
    return WindowManager(config(folder, windows), Clock(), arbiter, list, list)


class Followed:
    """Stands for the windows, and notes after which steps it was called."""

    disturbs = False
    recording = None
    waits_for_its_thread = False

    def __init__(self, meanwhile: Any) -> None:
        self.steps: list[int] = []
        self._meanwhile = meanwhile

    def after(self, step: int) -> None:
        """Note the step; the first takes so long that another thread completes two more."""
        self.steps.append(step)
        if step == 1:
            self._meanwhile()


def test_each_step_is_followed_once_and_in_order_though_threads_step_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fp8verify.agent import hooks

    monkeypatch.setattr(hooks, "PATIENCE_S", 0.01)
    observer = hooks.Observer(config(tmp_path, ((3, 4),)))

    def steps_of_another_thread() -> None:
        for _ in range(2):
            observer.clock.steps += 1
            other = threading.Thread(target=observer._ticked)
            other.start()
            other.join()

    followed = Followed(steps_of_another_thread)
    monkeypatch.setattr(observer, "recorder", followed)
    observer.clock.steps = 1
    observer._ticked()
    assert followed.steps == [1, 2, 3]
    observer._ticked()
    assert followed.steps == [1, 2, 3]


def test_a_window_whose_first_step_is_over_moves_behind_it(tmp_path: Path) -> None:
    windows = manager(tmp_path, ((3, 4),))
    windows._clock.steps = 3  # of which another thread completed two
    windows.after(1)
    windows.after(2)
    (window,) = windows.plan.windows
    assert (window["first"], window["last"], window["state"]) == (5, 6, "never")
    for step in (3, 4, 5, 6):
        windows._clock.steps = step
        windows.after(step)
    assert window["state"] == "complete"
    assert (window["first"], window["last"]) == (5, 6)


def test_a_window_that_cannot_move_says_why_it_never_began(tmp_path: Path) -> None:
    windows = manager(tmp_path, ((3, 4), (6, 7)))
    windows._clock.steps = 3
    windows.after(1)
    windows.after(2)
    first, second = windows.plan.windows
    assert first["state"] == "skipped"
    assert "other threads completed its steps" in first["reason"]
    assert second["state"] == "never"


@pytest.mark.parametrize("end", ["finish", "abandon"])
def test_no_profiler_stays_prepared_when_the_process_ends(
    end: str, tmp_path: Path
) -> None:
    windows = manager(tmp_path, ((3, 4),))
    windows._clock.steps = 1
    windows.after(1)
    session = windows._session
    assert session.state == "prepared"
    if end == "finish":
        windows.finish()
    else:
        windows.abandon("a reason")
    assert session.state == "dropped"
    assert not torch.autograd.profiler._is_profiler_enabled
    # The next profiler of the process is not in its way.
    with torch.profiler.profile() as profile:
        torch.ones(2) + 1
    assert any(event.key == "aten::add" for event in profile.key_averages())


def test_a_window_of_a_training_on_the_cpu_waits_for_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = manager(tmp_path, ((2, 2),))
    windows._clock.steps = 1
    windows.after(1)
    session = windows._session
    session._profile.profiler.use_device = "cuda"  # as where there is a GPU
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append("waited"))
    session.stop()
    assert session.state == "stopped"
    assert waited == []


@pytest.mark.parametrize("then", ["another step", "the end"])
def test_a_window_whose_thread_ended_says_so(then: str, tmp_path: Path) -> None:
    windows = manager(tmp_path, ((3, 9),))

    def steps() -> None:
        for step in (1, 2, 3):
            windows._clock.steps = step
            windows.after(step)

    thread = threading.Thread(target=steps)
    thread.start()
    thread.join()
    if then == "another step":
        windows._clock.steps = 4
        windows.after(4)
    else:
        windows.finish()
    (window,) = windows.plan.windows
    assert window["state"] == "dropped"
    assert window["reason"] == "its thread ended inside the window"
