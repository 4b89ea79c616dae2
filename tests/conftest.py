"""What all tests share: hand-built traces, and the commands of pages."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.hand_built import TraceBuilder
from tests.shown import Shown

ROOT = Path(__file__).parent.parent
GOLDEN = Path(__file__).with_name("golden")
# When garbage is searched for: as often as Python does by itself, it takes a tenth of the tests' time.
SELDOM = (20_000, 50, 50)
if "FP8VERIFY_MUTATED" not in os.environ:
    # Else each of the hundreds of processes that tests start compiles all that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
# What jsonschema builds forty grammars of addresses with, for seconds, where it is installed.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
if importlib.util.find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    # Its limits are on time, which a busy machine exceeds.
    UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("unhurried", UNHURRIED, max_examples=40)
    # Of the weekly job: --hypothesis-profile=long
    settings.register_profile("long", UNHURRIED, max_examples=1000)
    settings.load_profile("unhurried")


@pytest.fixture
def build(tmp_path: Path) -> TraceBuilder:
    return TraceBuilder(tmp_path)


@pytest.fixture
def shown(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shown]:
    """The commands that pages say this test runs; it fails if it leaves one out."""
    path = Path(request.node.path).relative_to(ROOT).as_posix()
    found = Shown(f"{path}::{request.node.originalname}", tmp_path)
    assert found.commands, "no page names this test"
    yield found
    assert found.left == [], "shown, and said to be run by this test"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep all that is collected from being searched for garbage: it lives as long as the tests.

    A search through it takes half a second, and would be made every hundred tests. What tests make is
    searched less often than elsewhere.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(*SELDOM)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = _spread(items)
    gpu = _gpu_missing()
    torch = None if importlib.util.find_spec("torch") else "torch is not installed"
    for item in items:
        for mark, reason in (("gpu", gpu), ("train", torch)):
            if reason and item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


def _spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests with the files that wait for other processes spread among those that do not.

    So whatever part a process of pytest-xdist gets, one has work while another one waits. What is
    held of all captures stays together: each process would work out their reports anew.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        is_golden = item.path.parent == GOLDEN
        of_all = isinstance(item, pytest.Function) and hasattr(item.module, "CAPTURES")
        file = GOLDEN if is_golden or of_all else item.path
        files.setdefault(file, []).append(item)
    waiting = [file for file in files if file.parent.name == "integration"]
    others = [file for file in files if file.parent.name != "integration"]
    places: dict[Path, float] = {}
    for kind in (waiting, others):
        for number, file in enumerate(kind):
            places[file] = number / len(kind)
    found: list[pytest.Item] = []
    for file in sorted(files, key=places.__getitem__):
        found += files[file]
    return found


def _gpu_missing() -> str | None:
    if not Path("/dev/nvidiactl").exists():
        return "no NVIDIA GPU here"
    return None if importlib.util.find_spec("torch") else "torch is not installed"


@pytest.fixture(scope="session", autouse=True)
def searches_in_a_process_of_many_tests() -> Iterator[None]:
    """Let the agent search among all objects, of which a process of thousands of tests has many."""
    if "torch" not in sys.modules:  # few tests were collected, and none of the agent
        yield
        return
    from fp8verify.agent import process

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "MAX_BLOCKS", 1 << 40)
        yield
