"""A step of compiled code runs eagerly only where that harms no rank."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from fp8verify.agent import eager, layers  # noqa: E402
from fp8verify.agent.eager import EagerStep, RefusedError  # noqa: E402

pytestmark = pytest.mark.train
GIB = 2**30


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, *, peak: float, free: float) -> None:
    """Stand in for a GPU with 10 GiB held between steps, `peak` in them, and so many free."""
    held = {"current": 10 * GIB, "peak": int(peak * GIB)}
    figures = {
        "is_initialized": True,
        "memory_stats_as_nested_dict": {
            "allocated_bytes": {"all": held},
            "reserved_bytes": {"all": held},
        },
        "mem_get_info": (int(free * GIB), 80 * GIB),
    }
    for name, value in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)


@pytest.mark.parametrize(("free", "fits"), [(42, True), (40, False)])
def test_twice_the_memory_of_a_step_must_be_free(
    monkeypatch: pytest.MonkeyPatch, free: float, fits: bool
) -> None:
    on_a_gpu(monkeypatch, peak=30.25, free=free)

    why_not = eager.obstacle()

    assert (why_not is None) is fits
    assert fits or "40.5 GiB of GPU" in str(why_not)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_flex_attention_never_runs_eagerly() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    query = torch.randn(1, 1, 128, 16)
    try:
        flex_attention(query, query, query)
        assert "flex_attention" in str(eager.obstacle())
    finally:  # else no later test of this process could run a step eagerly
        torch.ops.higher_order.flex_attention._dispatch_cache.clear()


def test_a_step_of_a_script_with_a_stance_never_runs_eagerly() -> None:
    with torch.compiler.set_stance("eager_on_recompile"):
        assert "stance" in str(eager.obstacle())


def test_what_code_asks_whether_it_is_compiled_never_runs_eagerly() -> None:
    class Asks(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not torch.compiler.is_compiling():
                raise RuntimeError("eager")
            return self.inner(x)

    model = Asks()
    layers.remember(model)

    assert "asks" in str(eager.obstacle())


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "obstacle", lambda: None)


def planned(folder: Path, rank: int) -> EagerStep:
    mode = EagerStep()
    mode.plan(12, str(folder), rank, 2)
    return mode


def is_entered(mode: EagerStep) -> bool:
    try:
        with mode:
            return True
    except RefusedError:
        return False


@pytest.mark.usefixtures("able")
def test_all_ranks_vote_for_it(tmp_path: Path) -> None:
    ranks = [planned(tmp_path, rank) for rank in range(2)]

    assert [is_entered(rank) for rank in ranks] == [True, True]


@pytest.mark.usefixtures("able")
def test_a_rank_that_misses_a_vote_stops_all(tmp_path: Path) -> None:
    early = planned(tmp_path, 0)
    with pytest.raises(RefusedError, match="--ranks all"), early:
        raise AssertionError

    assert not is_entered(planned(tmp_path, 1))


def test_a_rank_that_cannot_stops_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager, "obstacle", lambda: "no memory")
    unable = planned(tmp_path, 0)
    monkeypatch.setattr(eager, "obstacle", lambda: None)
    other = planned(tmp_path, 1)

    with pytest.raises(RefusedError, match="no memory"), unable:
        raise AssertionError
    assert not is_entered(other)


@pytest.mark.usefixtures("able")
def test_a_step_is_entered_only_as_planned(tmp_path: Path) -> None:
    mode = EagerStep()
    with pytest.raises(RefusedError, match="not planned"), mode:
        raise AssertionError
    mode.plan(12, str(tmp_path), 0, 1)
    with mode:
        assert eager._stance() == "force_eager"
    assert eager._stance() == "default"


@pytest.mark.usefixtures("able")
def test_a_stance_of_the_script_outlasts_the_step(tmp_path: Path) -> None:
    mode = EagerStep()
    mode.plan(12, str(tmp_path), 0, 1)
    try:
        with mode:
            torch.compiler.set_stance("eager_on_recompile")
        assert eager._stance() == "eager_on_recompile"
    finally:
        torch.compiler.set_stance("default")
