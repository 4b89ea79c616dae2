"""What is observed is the original to everybody else, and every intrusion is in the table."""

from __future__ import annotations

import inspect
import pickle
import re
import traceback
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest

from fp8verify.agent.observe import observe, observe_function, unobserve_all

AGENT = Path(__file__).parents[2] / "fp8verify" / "agent"
TABLE = (AGENT / "patches.md").read_text(encoding="utf-8")
FILE = r"`agent/([\w/]+\.py)` \|$"


@pytest.fixture
def module() -> ModuleType:
    found = ModuleType("found")
    exec("def f(x):\n    return 1 / x\n", vars(found))
    return found


def test_a_call_of_a_function_is_heard_and_it_seems_the_function_itself(
    module: ModuleType,
) -> None:
    original, heard = module.f, []

    observe_function(module, "f", lambda: heard.append("f"))
    observe_function(module, "f", lambda: heard.append("twice"))

    assert module.f(2) == 0.5
    assert heard == ["f"]
    assert inspect.isfunction(module.f)
    assert inspect.signature(module.f) == inspect.signature(original)
    unobserve_all()
    assert module.f is original


class Trainer:
    def __init__(self, steps: int = 3) -> None:
        """Make one."""
        self.steps = steps


def test_an_announced_method_is_the_function_to_whoever_inspects_the_class() -> None:
    original, heard = Trainer.__init__, list[object]()
    observe(Trainer, "__init__", heard.append)
    found = inspect.getattr_static(Trainer, "__init__")  # as jsonargparse asks

    assert Trainer.__init__ is original
    assert inspect.isfunction(found)
    assert inspect.signature(found) == inspect.signature(original)
    assert inspect.getsource(found) == inspect.getsource(original)
    assert (found.__name__, found.__doc__) == ("__init__", "Make one.")
    assert str(inspect.signature(Trainer)) == "(steps: 'int' = 3) -> 'None'"
    with mock.patch.object(Trainer, "__init__", autospec=True, return_value=None):
        Trainer(4)
    assert heard == []

    made = pickle.loads(pickle.dumps(Trainer(5)))
    unobserve_all()
    Trainer()

    assert made.steps == 5
    assert [type(one) for one in heard] == [Trainer]
    assert vars(Trainer)["__init__"] is original


def test_an_announced_method_bound_to_its_class_is_no_call() -> None:
    """As inspect.signature of Python 3.13 does."""
    heard = list[object]()
    observe(Trainer, "__init__", heard.append)

    vars(Trainer)["__init__"].__get__(Trainer, type)

    unobserve_all()
    assert heard == []


def test_an_error_in_an_announced_function_has_no_frame_of_ours(
    module: ModuleType,
) -> None:
    observe_function(module, "f", lambda: None)

    with pytest.raises(ZeroDivisionError) as caught:
        module.f(0)

    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[1:] == ["f"]


def test_a_function_that_the_script_replaces_is_its_own(module: ModuleType) -> None:
    observe_function(module, "f", lambda: None)

    module.f = len  # type: ignore[assignment]

    assert module.f("abc") == 3


PUTS_IN = re.compile(
    r"(?<!def )\b(?:observe|observe_function|replaced|register|on_calls|set_stance)\("
    r"|atexit\.register|signal\.signal|register_at_fork|setattr\(module|torch\.[\w.]+ = "
    r"|meta_path\.insert|sys\.path\[:\] =|saved_tensors_hooks\(|AddPendingCall|in_dll\("
    r"|_KinetoProfile\(|threading\.local\(\)|ctypes\.CDLL\("
)
# No training runs on in the one; the other has the means, which its callers use.
QUIET = {"census.py", "observe.py"}


def test_every_intrusion_is_in_the_table() -> None:
    found = {
        path.relative_to(AGENT).as_posix()
        for path in AGENT.rglob("*.py")
        if PUTS_IN.search(re.sub(r"#.*", "", path.read_text()))
    }

    assert found - QUIET == set(re.findall(FILE, TABLE, re.MULTILINE))


def test_what_torch_compile_may_see_is_hidden_from_it() -> None:
    """Whatever a row calls folded is registered through `hidden` or observed."""
    for file in set(re.findall(r"folded to nothing.*" + FILE, TABLE, re.MULTILINE)):
        text = (AGENT / file).read_text()
        for found in re.finditer(r"register_\w*hook, (?P<what>\w*)", text):
            assert found["what"] in ("hidden", "begins", "ends", "enters", "leaves"), (
                found.group()
            )
