"""Each sink against the real package, which is asked what it has got."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fp8verify.errors import Fp8VerifyError, InputError, UsageError
from fp8verify.integrations.sinks import KINDS, open_sink
from fp8verify.record.window_metrics import WindowMetrics

ROOT = Path(__file__).parents[2]


def line(step: int, share: float, verdict: str = "ACTIVE") -> WindowMetrics:
    return {
        "step": step,
        "time": 1.7e9 + step,
        "verdict": verdict,
        "reason": "r",
        "findings": [],
        "fp8/share_of_gemm_time": share,
        "fp8/active": float(verdict == "ACTIVE"),
        **WATCHED,
    }


# The names by which guides watch a training, with what a run has under them.
WATCHED = {
    "fp8/fwd_scale": 98.869,
    "fp8/bwd_scale": 2624400.0,
    "fp8/amax_fwd": 4.5312,
    "fp8/amax_bwd": 2.1851e-09,
    "train/grad_norm": 1.5,
    "train/grad_norm_clip_ratio": 0.25,
}
LINES = (line(101, 0.75), line(201, 0.25, "PARTIAL"))


def feed(sink: Any) -> None:
    for one in LINES:
        sink.write(one)
    sink.close()


def test_tensorboard_reads_the_scalars(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    feed(open_sink(f"tensorboard:{tmp_path}"))

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path)).Reload()
    tensors = events.Tensors("fp8/share_of_gemm_time")
    assert [(t.step, t.tensor_proto.float_val[0]) for t in tensors] == [(101, 0.75), (201, 0.25)]
    for name, value in WATCHED.items():
        assert events.Tensors(name)[0].tensor_proto.float_val[0] == pytest.approx(value)


def test_wandb_offline_takes_the_scalars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_SILENT", "true")
    sink: Any = open_sink("wandb:fp8")
    sink.write(LINES[0])
    summary = dict(wandb.run.summary)
    sink.write(LINES[1])
    assert summary["fp8/share_of_gemm_time"] == 0.75
    assert WATCHED.items() <= summary.items()
    assert (summary["fp8/step"], summary["fp8/verdict"]) == (101, "ACTIVE")
    sink.close()
    assert wandb.run is None
    assert list(tmp_path.rglob("*.wandb"))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_package_that_is_missing_is_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = {"tensorboard": "tensorboard.summary"}.get(kind, kind)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError) as error:
        open_sink(f"{kind}:x")
    assert f"pip install '{kind}>=" in error.value.hint


@pytest.mark.parametrize(
    ("what", "error", "fact", "hint"),
    [
        ("tensorbord:runs", UsageError, "is not a sink", "Did you mean tensorboard:?"),
        ("nosuch:x", UsageError, "is not a sink", "or one of"),
        ("", UsageError, "needs a name", "fp8.jsonl"),
        ("/proc/none/a.jsonl", UsageError, "cannot write metrics to /proc", "may be written"),
    ],
)
def test_what_is_no_sink_is_an_error_before_the_run(
    what: str, error: type[Fp8VerifyError], fact: str, hint: str
) -> None:
    with pytest.raises(error, match=fact) as caught:
        open_sink(what)
    assert hint in caught.value.hint


def test_a_sink_that_cannot_be_opened_is_told_in_two_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: str) -> None:
        raise RuntimeError("No API key\nconfigured")

    monkeypatch.setitem(KINDS, "wandb", refuse)
    with pytest.raises(InputError, match="RuntimeError: No API key configured") as error:
        open_sink("wandb:x")
    assert "\n" not in f"{error.value.fact}{error.value.hint}"
