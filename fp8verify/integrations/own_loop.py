"""Watching from inside a training loop of one's own: `fp8verify.window` and `fp8verify.watch`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

from fp8verify.integrations.sinks import open_sink
from fp8verify.record.live.metrics import WindowMetrics
from fp8verify.record.live.sinks import Sink
from fp8verify.record.live.watch import Watch
from fp8verify.record.live.window import Window
from fp8verify.record.settings import read_settings
from fp8verify.verdict.policy import Policy

Destination = str | Path | Sink | Callable[[WindowMetrics], object]


def window(
    folder: str | Path, *, policy: Policy | None = None, record_shapes: bool = True
) -> Window:
    """Record the steps inside a `with`, whatever trains in them.

        with fp8verify.window("capture") as w:
            for batch in batches:
                train(batch)
                w.step()
        w.report.verdict

    The report is made in another process; asking for it waits for it.

    Args:
        folder: for the capture: a new one, or an empty one.
        policy: what the verdict asks for.
        record_shapes: whether operators' input shapes are recorded.
    """
    return Window(folder, policy=policy, record_shapes=record_shapes)


def watch(
    every: int,
    *,
    window: int | None = None,
    steps: str | None = None,
    sinks: Destination | Iterable[Destination] = (),
    folder: str | Path | None = None,
    on_change: Callable[[str | None, WindowMetrics], None] | None = None,
    policy: Policy | None = None,
    record_shapes: bool = True,
    numerics_every: int | None = None,
) -> Watch:
    """Record a short window every so many steps from here on, and judge each in another process.

        with fp8verify.watch(every=1000, sinks="fp8.jsonl"):
            train()

    Args:
        every: steps from the beginning of one window to that of the next.
        window: steps in a window, 2 if nothing else says.
        steps: the first window, such as "10-11"; else it begins with step `every`.
        sinks: where a line for each window goes: a file of JSON lines, "tensorboard:DIR" and its
            like, a function, or an object with `write` and `close`; or several of these.
        folder: where windows whose verdict changed are kept; None keeps none.
        on_change: called with the verdict before, None at first, and the line.
        policy: what verdicts ask for.
        record_shapes: whether operators' input shapes are recorded.
        numerics_every: measure a step before a window (what casts flush, clip and lose), whenever
            so many steps have gone by since the last; None measures none.

    Raises:
        UsageError: these steps mean nothing, a sink is none, or the process is watched already.
    """
    asked = read_settings(steps=steps, every=every, window=window, numerics_every=numerics_every)
    live = asked.live
    assert live is not None  # noqa: S101 - `every` is given
    return Watch(
        live,
        folder=None if folder is None else Path(folder),
        policy=policy,
        sinks=[open_sink(one) for one in _listed(sinks)],
        on_change=on_change,
        record_shapes=record_shapes,
        numerics_every=numerics_every,
    )


def _listed(sinks: Destination | Iterable[Destination]) -> list[Destination]:
    if isinstance(sinks, (list, tuple, set, frozenset)):
        return list(sinks)
    return [cast(Destination, sinks)]
