"""What benchmarks/gpu/numerics.py times: the kinds of steps, and where a measured step's time goes.

A run of `STEPS` steps has two kinds of eager steps by turns: the measured ones, and some that
the script itself runs eagerly, which are the control. Both are followed by compiled steps, which
are held against each other: clocks and temperature drift, but alike for both.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

WARM_EAGER = range(14, 17)
WINDOW, MEASURED, EVERY, STEPS = (30, 31), 33, 60, 994
SETTLED = 6  # compiled steps after an eager one that are not compared
MEASURED_STEPS = range(MEASURED, STEPS + 1, EVERY)
CONTROLS = range(MEASURED + EVERY // 2, STEPS + 1, EVERY)
BEFORE = range(18, WINDOW[0] - 2)
PARTS_EVERY = 12  # steps between measured ones of the training that tells the parts
LONGEST = 12  # calls of a step that are shown one by one


def eager_by_script(step: int) -> bool:
    """Whether the script itself runs a step eagerly."""
    return step in WARM_EAGER or step in CONTROLS


def costs(steps: dict[int, dict[str, Any]]) -> dict[str, float]:
    """Return what measuring costs, from the lines that the training printed."""
    ms = {step: line["ms"] for step, line in steps.items()}
    peak = {step: line["peak"] for step, line in steps.items()}
    turns = list(_turns(ms))
    eager = median(ms[step] for step in CONTROLS)
    again = [ms[step] for step in MEASURED_STEPS[1:]]
    return {
        "compiled_before_ms": median(ms[step] for step in BEFORE),
        "compiled_after_measured_ms": median(_after(ms, MEASURED_STEPS)),
        "compiled_after_control_ms": median(_after(ms, CONTROLS)),
        "change": median(turns),
        "change_least": min(turns),
        "change_most": max(turns),
        "step_before_measured_ms": median(ms[step - 1] for step in MEASURED_STEPS),
        "eager_ms": eager,
        "measured_ms": ms[MEASURED],
        "measured_again_ms": median(again),
        "times_eager": ms[MEASURED] / eager,
        "times_eager_again": median(again) / eager,
        "eager_peak_mb": max(peak[step] for step in CONTROLS) / 1e6,
        "measured_peak_mb": max(peak[step] for step in MEASURED_STEPS) / 1e6,
        "extra_mb": (
            max(peak[step] for step in MEASURED_STEPS)
            - max(peak[step] for step in CONTROLS)
        )
        / 1e6,
        "reserved_before_mb": steps[MEASURED - 1]["reserved"] / 1e6,
        "reserved_after_mb": steps[MEASURED + 1]["reserved"] / 1e6,
        "new_graphs": steps[STEPS]["graphs"] - steps[BEFORE[0]]["graphs"],
    }


def good(found: dict[str, float]) -> bool:
    """Whether the costs are what is promised."""
    return (
        found["change"] <= 0.005
        and found["times_eager"] <= 8
        and found["extra_mb"] <= 256
        and not found["new_graphs"]
    )


def _compiled(event: int) -> range:
    """Return the steps after an eager one that are compared; the next event is still to come."""
    return range(event + SETTLED, min(event + EVERY // 2 - 2, STEPS))


def _after(ms: dict[int, float], events: range) -> list[float]:
    return [ms[step] for event in events for step in _compiled(event)]


def _turns(ms: dict[int, float]) -> Iterator[float]:
    """Yield by how much steps after a measured one differ from those round the controls beside."""
    for before, event, after in zip(
        CONTROLS, MEASURED_STEPS[1:], CONTROLS[1:], strict=False
    ):
        usual = [
            median(ms[step] for step in _compiled(control))
            for control in (before, after)
        ]
        yield median(ms[step] for step in _compiled(event)) / (sum(usual) / 2) - 1


# --- where the time of a measured step goes -------------------------------------------------------

# What the agent calls, by the module and class that it is looked up in.
PARTS = (
    ("numerics.instrument", "Numerics", "_start"),
    ("numerics.instrument", "Numerics", "_finish"),
    ("numerics.instrument", "Numerics", "_write"),
    ("numerics.step_hooks", None, "gradient_norm"),
    ("numerics.step_hooks", "NumericsHooks", "_guard"),
    ("numerics.table", "Measurements", "add"),
    ("numerics.table", "Measurements", "add_bytes"),
    ("numerics.table", "Measurements", "records"),
)


class Parts:
    """Calls and host milliseconds of the agent's parts since `reset`; they lie in one another."""

    def __init__(self) -> None:
        self._calls: list[tuple[str, str, float]] = []
        for module, owner, name in PARTS:
            self._wrap(_agent_module(module), owner, name)

    def reset(self) -> dict[str, Any]:
        """Return calls and milliseconds by part and the longest calls, and begin anew."""
        calls, self._calls = self._calls, []
        totals: dict[str, list[float]] = {}
        for part, _, ms in calls:
            line = totals.setdefault(part, [0, 0.0])
            line[0] += 1
            line[1] += ms
        return {
            "totals": totals,
            "longest": sorted(calls, key=lambda c: -c[2])[:LONGEST],
        }

    def _wrap(self, module: Any, owner: str | None, name: str) -> None:
        place = getattr(module, owner) if owner else module
        setattr(place, name, self._timed(f"{owner or ''}.{name}", getattr(place, name)))

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                about = " ".join(word for word in args if isinstance(word, str))
                self._calls.append((part, about, 1e3 * (time.perf_counter() - began)))

        return timed


class Phases:
    """Host milliseconds of the phases of a step; what the GPU still does comes out as waiting."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self._began = time.perf_counter()

    def end(self, name: str) -> None:
        """End a phase, with which the next one begins."""
        now = time.perf_counter()
        self.ms[name], self._began = 1e3 * (now - self._began), now


def _agent_module(name: str) -> Any:
    """Return a module of the agent's copy in the boot folder; some are imported late."""
    known = ".instruments.numerics"
    package = next(
        key.removesuffix(known)
        for key, module in list(sys.modules.items())
        if key.endswith(known) and ".boot-" in (getattr(module, "__file__", None) or "")
    )
    return importlib.import_module(f"{package}.{name}")


def part_lines(parts: dict[str, Any]) -> Iterator[str]:
    """Yield Markdown of the parts that the training printed."""
    for title, found in parts.items():
        yield from ("", f"Parts, {title} (each within those above it):", "")
        yield ", ".join(f"{name} {ms:.1f} ms" for name, ms in found["phases"].items())
        yield from ("", "| part | calls | host ms |", "|---|---|---|")
        for name, (calls, ms) in found["totals"].items():
            yield f"| {name} | {calls:.0f} | {ms:.1f} |"
        yield from ("", "| longest calls | of | host ms |", "|---|---|---|")
        for name, about, ms in found["longest"]:
            yield f"| {name} | {about} | {ms:.2f} |"
