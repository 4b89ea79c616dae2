"""`fp8verify.window` and `fp8verify.watch` in a training's own loop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fp8verify
from fp8verify.errors import UsageError
from tests.attached import SCRIPTS, execute
from tests.shared_torch import python_with_torch

pytestmark = pytest.mark.train


def run(how: str, cwd: Path) -> list[str]:
    done = execute(python_with_torch(), SCRIPTS / "own_loop.py", how, cwd=cwd)
    assert done.code == 0, done.stderr
    return done.stdout.splitlines()


def test_a_window_gives_a_report_without_torch_optim(tmp_path: Path) -> None:
    verdict, steps = run("window", tmp_path)

    assert verdict.startswith(
        "INCONCLUSIVE WindowReport(first=1, last=3, state='complete'"
    )
    assert steps == "[1, 2, 3] True"
    report = fp8verify.inspect(tmp_path / "cap")
    assert report.ranks[0].modules is not None
    assert report.ranks[0].modules.counts == {"high_precision": 1}


def test_a_window_inside_the_script_s_own_profiler_leaves_it_alone(
    tmp_path: Path,
) -> None:
    assert run("profiled", tmp_path) == ["INCONCLUSIVE skipped"]
    assert json.loads((tmp_path / "theirs.json").read_text())["traceEvents"]


def test_a_window_that_another_thread_closes_is_lost_and_does_no_harm(
    tmp_path: Path,
) -> None:
    begin = (
        "import threading, torch, fp8verify\nw = fp8verify.window('cap').__enter__()\n"
    )
    train = "torch.ones(2, requires_grad=True).sum().backward(); w.step()\n"
    close = "t = threading.Thread(target=w.close); t.start(); t.join()\n"
    end = "print(w.report.verdict.value)\n"
    (tmp_path / "train.py").write_text(begin + train + close + end)

    done = execute(python_with_torch(), "train.py", cwd=tmp_path)

    assert (done.code, done.stderr) == (0, "")
    assert done.stdout == "INCONCLUSIVE\n"


def test_a_watch_hands_every_window_to_its_sinks(tmp_path: Path) -> None:
    said = run("watch", tmp_path)

    lines = [
        json.loads(line) for line in (tmp_path / "fp8.jsonl").read_text().splitlines()
    ]
    assert [(line["first_step"], line["step"]) for line in lines] == [
        (10, 11),
        (20, 21),
        (30, 31),
    ]
    assert [eval(line)["step"] for line in said[:3]] == [11, 21, 31]
    assert said[3] == "[None]"
    assert [eval(line)["first_step"] for line in said[4:6]] == [3, 8]
    assert said[6] == "[3, 8] 8"
    assert list(tmp_path.iterdir()) == [tmp_path / "fp8.jsonl"]


def test_a_window_that_never_began_is_none_and_one_inside_which_the_run_ends_is_shorter(
    tmp_path: Path,
) -> None:
    done = execute(python_with_torch(), SCRIPTS / "own_loop.py", "short", cwd=tmp_path)

    assert done.stdout.splitlines() == ["5 6", "10 11", "5 6", "10 11", "5 6"]
    assert (
        "profiler" not in done.stderr
    )  # torch would complain of one that stays prepared
    # Nobody closed the last watch.
    lines = [
        json.loads(line) for line in (tmp_path / "fp8.jsonl").read_text().splitlines()
    ]
    assert [(line["first_step"], line["step"]) for line in lines] == [
        (5, 6),
        (10, 11),
        (15, 15),
    ]


def test_a_window_that_the_script_s_own_profiler_took_ends_with_the_last_step(
    tmp_path: Path,
) -> None:
    (last,) = run("never", tmp_path)
    assert int(last) < 10


def test_a_watch_that_a_hook_of_the_script_closes_counts_no_step() -> None:
    torch = pytest.importorskip("torch", reason="needs torch, from the train extra")
    from torch.optim.optimizer import register_optimizer_step_post_hook

    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for _ in range(2):
        with fp8verify.watch(every=100) as watch:
            closes = register_optimizer_step_post_hook(
                lambda *_, watch=watch: watch.close()
            )
            optimizer.step()
            closes.remove()

    with pytest.raises(UsageError, match="closed"):
        watch.step()


def test_steps_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(UsageError, match="do not fit"):
        fp8verify.watch(every=4, window=3)
    for wrong in (0, -1, 1.5, float("nan"), float("inf"), 1e300, "10"):
        with pytest.raises(UsageError, match="which is not a number of steps"):
            fp8verify.watch(every=100, numerics_every=wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="which is not a number of steps"):
            fp8verify.watch(every=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is not a sink"):
        fp8verify.watch(every=100, sinks=[3])  # type: ignore[list-item]
