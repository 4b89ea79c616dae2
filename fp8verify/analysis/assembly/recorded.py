"""Lay out what `fp8verify run` recorded beside the traces: the clock, its windows, the census."""

from __future__ import annotations

from fp8verify.analysis.step_statistics import step_statistics
from fp8verify.capture.schema import ModuleRecord, RankMeta, WindowRecord
from fp8verify.report.model import ClockReport, ModulesReport, StepStatistics, WindowReport


def clock_report(meta: RankMeta | None) -> ClockReport | None:
    """Tell what was counted on a rank, and how its framework numbers the windows."""
    if meta is None:
        return None
    classes = [name for name, calls in meta.optimizer_updates.items() if calls]
    leader = meta.leader or (classes[0] if len(classes) == 1 else None)
    counts = f"{leader}.step" if leader else None
    return ClockReport(
        source=meta.clock,
        counts="fp8verify.step" if meta.clock == "explicit" else counts,
        steps_seen=meta.steps_seen,
        steps_skipped=meta.steps_skipped,
        updates=meta.optimizer_updates,
        windows=tuple(map(_window_report, meta.windows)),
    )


def steps_outside(meta: RankMeta | None) -> StepStatistics | None:
    """Return the times of a rank's steps outside of windows, None where none were timed."""
    times = meta.steps_outside if meta is not None else None
    if times is None:
        return None
    return step_statistics([[ns / 1000 for ns in times.samples_ns]], times.count)


def _window_report(window: WindowRecord) -> WindowReport:
    framework = window.framework
    return WindowReport(
        first=window.first,
        last=window.last,
        state=window.state,
        framework=framework.name if framework else None,
        counter=framework.counter if framework else None,
        framework_first=framework.first if framework else None,
        framework_last=framework.last if framework else None,
    )


def modules_report(meta: RankMeta | None) -> ModulesReport | None:
    """Count the linear modules of a rank by state, and list their names, if anybody looked."""
    if meta is None or not meta.modules_listed:
        return None
    linears = [module for module in meta.modules if _is_linear(module)]
    names: dict[str, list[str]] = {}
    for module in linears:
        names.setdefault(module.state, []).append(module.fqn)
    return ModulesReport(
        counts={state: len(fqns) for state, fqns in sorted(names.items())},
        names={state: tuple(fqns) for state, fqns in sorted(names.items())},
        recipes=tuple(sorted({module.recipe for module in linears if module.recipe})),
        scalings=tuple(sorted(filter(None, set(map(_scaling, linears))))),
        unknown_classes=tuple(sorted({_class(m) for m in linears if m.state == "unknown"})),
    )


# Old captures have the class of Transformer Engine's recipe alone.
_SCALINGS = {
    "DelayedScaling": "delayed",
    "Float8CurrentScaling": "current",
    "Float8BlockScaling": "blocks",
    "MXFP8BlockScaling": "MX",
    "NVFP4BlockScaling": "NVFP4",
}


def _is_linear(module: ModuleRecord) -> bool:
    """Whether a module multiplies by a weight of its own: experts and attention cores do not."""
    return module.kind == "linear" and not module.class_name.endswith("DotProductAttention")


def _scaling(module: ModuleRecord) -> str | None:
    return module.scaling or _SCALINGS.get(module.recipe or "")


def _class(module: ModuleRecord) -> str:
    return f"{module.source}.{module.class_name}" if module.source else module.class_name
