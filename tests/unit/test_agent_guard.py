"""An exception of the script's that passes through a hook reaches it; one of ours does not."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch, from the train extra")

from fp8verify.agent import guard  # noqa: E402
from fp8verify.agent.guard import is_the_scripts, quietly  # noqa: E402
from fp8verify.agent.stored import unseen  # noqa: E402

pytestmark = pytest.mark.train


def in_a_hook(function: Callable[[], object]) -> BaseException | None:
    """Call a function as a hook of ours would, and return what goes on to the script."""
    try:
        with quietly(Exception):
            unseen(function)
    except BaseException as error:
        return error
    return None


class Budget(Exception):  # noqa: N818 - as scripts call it
    """What a script raises when its time is over."""


@pytest.mark.parametrize("kind", [Budget, TimeoutError, ValueError, OSError])
@pytest.mark.parametrize("form", ["function", "method", "starred"])
def test_what_a_signal_handler_raises_goes_on(kind: type[Exception], form: str) -> None:
    def handler(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise kind("over")

    class Handlers:
        def handle(self, number: int, frame: FrameType | None) -> None:
            handler(number, frame)

    def starred(*given: Any) -> None:
        handler(*given)

    forms = {"function": handler, "method": Handlers().handle, "starred": starred}
    before = signal.signal(signal.SIGUSR1, forms[form])
    try:
        error = in_a_hook(lambda: signal.raise_signal(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert type(error) is kind
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("kind", [Budget, TimeoutError, RuntimeError, Exception])
def test_what_another_thread_sets_goes_on(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if this file were of ours: the code that is interrupted.
    monkeypatch.setattr(guard, "_CALLED", guard._CALLED | {"tests"})
    monkeypatch.setattr(guard, "_OWN", "tests")
    monkeypatch.setattr(Budget, "__module__", "__main__")
    me = ctypes.c_ulong(threading.get_ident())

    def waits() -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(me, ctypes.py_object(kind))
        for _ in range(1000):
            pass

    assert type(in_a_hook(waits)) is kind


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_ends_a_process_goes_on(error: BaseException) -> None:
    def ends() -> None:
        raise error

    assert in_a_hook(ends) is error


def test_errors_of_ours_and_of_what_we_call_do_not_go_on() -> None:
    def of_ours() -> None:
        unseen(int, "no number")

    def of_torch() -> None:
        torch.zeros(2) @ torch.zeros(3)

    def of_a_mock() -> None:
        raise Budget("a mock of open that the script has put there")

    assert [in_a_hook(one) for one in (of_ours, of_torch, of_a_mock)] == [None] * 3


def test_an_error_that_holds_its_callers_frame_is_no_handlers() -> None:
    def raises() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        raises()
    assert not is_the_scripts(caught.value)
