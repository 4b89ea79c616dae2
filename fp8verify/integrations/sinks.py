"""Where the metrics of windows go: a file of JSON lines, a function, TensorBoard, W&B."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fp8verify.errors import Fp8VerifyError, InputError, UsageError, requires
from fp8verify.files import writing
from fp8verify.record.window_metrics import Sink, WindowMetrics, scalars_in

STEP = "fp8/step"


Destination = str | Path | Sink | Callable[[WindowMetrics], object]


class JsonLines:
    """Appends the metrics of each window to a file as a JSON object."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with writing("metrics", self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.open("a", encoding="utf-8").close()

    def write(self, metrics: WindowMetrics) -> None:
        """Append a line; the file is whole after each, and may be moved away between two."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")

    def close(self) -> None:
        """Nothing is left open."""


class Call:
    """Passes the metrics of each window to a function."""

    def __init__(self, function: Callable[[WindowMetrics], object]) -> None:
        self.write = function

    def close(self) -> None:
        """Nothing to do."""


class TensorBoardSink:
    """Writes the scalars of each line; `writer` is a folder, or a torch `SummaryWriter`."""

    def __init__(self, writer: Any) -> None:
        self._owned = isinstance(writer, str)
        if self._owned:
            with requires("tensorboard", "tensorboard:"):
                from tensorboard.summary import Writer

            writer = Writer(writer or "runs/fp8verify")
        self._writer = writer

    def write(self, metrics: WindowMetrics) -> None:
        """Add the scalars at the window's last step."""
        for name, value in scalars_in(metrics).items():
            self._writer.add_scalar(name, value, metrics["step"])
        self._writer.flush()

    def close(self) -> None:
        """Close the writer if it is ours."""
        if self._owned:
            self._writer.close()


class WandbSink:
    """Logs the scalars of each line to a run, by an axis of their own, `fp8/step`.

    Args:
        run: a run, or the project of a new one; "" is the run that is active, if there is one.
    """

    def __init__(self, run: Any = "") -> None:
        self._owned = False
        if isinstance(run, str):
            with requires("wandb", "wandb:"):
                import wandb

            self._owned = bool(run) or wandb.run is None
            run = wandb.init(project=run or "fp8verify") if self._owned else wandb.run
        self._run = run
        # The training's own step count may be ahead of a window that was judged meanwhile.
        run.define_metric(STEP)
        run.define_metric("fp8/*", step_metric=STEP)
        if self._owned:  # in a training's own run they are the training's names too
            run.define_metric("train/*", step_metric=STEP)

    def write(self, metrics: WindowMetrics) -> None:
        """Log the scalars; in a training's own run they go with what it logs next."""
        values = {**scalars_in(metrics), "fp8/verdict": metrics["verdict"], STEP: metrics["step"]}
        self._run.log(values, commit=self._owned)

    def close(self) -> None:
        """Finish the run if it is ours."""
        if self._owned:
            self._run.finish()


# What `--metrics KIND:TARGET` makes, from the target.
KINDS: dict[str, Callable[[str], Sink]] = {"tensorboard": TensorBoardSink, "wandb": WandbSink}


def open_sink(what: Destination) -> Sink:
    """Return the sink of a `FILE.jsonl`, of `KIND:TARGET`, or of a function; a sink is itself.

    Raises:
        UsageError: it is none of these, or its package is not installed.
        InputError: the file cannot be written.
    """
    if isinstance(what, Path):
        return JsonLines(what)
    if isinstance(what, str):
        return _named_sink(what)
    if isinstance(what, Sink):
        return what
    if callable(what):
        return Call(what)
    raise UsageError(
        f"{type(what).__name__} is not a sink.",
        f"Give a file, a function, or one of {', '.join(f'{kind}:…' for kind in KINDS)}.",
    )


def _named_sink(what: str) -> Sink:
    if not what:
        raise UsageError("A sink needs a name.", "Such as fp8.jsonl.")
    kind, colon, target = what.partition(":")
    if not colon or re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]+", kind) is None:
        return JsonLines(what)
    if kind not in KINDS:
        close = get_close_matches(kind, KINDS, n=1)
        kinds = ", ".join(f"{kind}:" for kind in KINDS)
        hint = f"Did you mean {close[0]}:?" if close else f"Give a file, or one of {kinds}."
        raise UsageError(f"{what[:80]!r} is not a sink: {kind[:40]} is unknown.", hint)
    try:
        return KINDS[kind](target)
    except Fp8VerifyError:
        raise
    except Exception as error:  # whatever the package raises
        said = " ".join(str(error).split())[:200]
        raise InputError(
            f"{kind} cannot be opened: {type(error).__name__}: {said}",
            f"Try what follows {kind}: with its own tools first: login, address, folder.",
        ) from error
