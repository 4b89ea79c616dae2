"""Report on what was recorded: the clock, its windows, the module list, memory and versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import structs

from fp8verify.analysis.layers import FP8_PARAMETERS, is_transformer_engine, package_of
from fp8verify.analysis.rank import RankEvidence, Recorded
from fp8verify.analysis.timeline import step_statistics
from fp8verify.capture.schema import ModuleRecord, RankMeta
from fp8verify.report.model.diagnosis import MemoryReport
from fp8verify.report.model.parts import ClockReport, ModulesReport, StepStatistics, WindowReport
from fp8verify.report.model.report import Environment
from fp8verify.text import counted


def clock_report(recorded: Recorded) -> ClockReport | None:
    """Return what was counted as steps on a rank, and the framework's step numbers."""
    if not recorded.observed:
        return None
    meta = recorded.meta
    classes = [name for name, calls in meta.optimizer_updates.items() if calls]
    leader = meta.leader or (classes[0] if len(classes) == 1 else None)
    counts = f"{leader}.step" if leader else None
    return ClockReport(
        source=meta.clock,
        counts="fp8verify.step" if meta.clock == "explicit" else counts,
        steps_seen=meta.steps_seen,
        steps_skipped=meta.steps_skipped,
        updates=meta.optimizer_updates,
        windows=tuple(
            WindowReport(
                first=window.first,
                last=window.last,
                state=window.state,
                framework=framework.name if framework else None,
                counter=framework.counter if framework else None,
                framework_first=framework.first if framework else None,
                framework_last=framework.last if framework else None,
            )
            for window, framework in ((window, window.framework) for window in meta.windows)
        ),
    )


def steps_outside(meta: RankMeta) -> StepStatistics | None:
    """Return the times of a rank's steps outside windows, None if none were timed."""
    times = meta.steps_outside
    if times is None:
        return None
    return step_statistics([[ns / 1000 for ns in times.samples_ns]], times.count)


def modules_report(rank: RankEvidence) -> ModulesReport | None:
    """Count the linear modules of a rank by state, and list their names, if they were recorded."""
    meta = rank.recorded.meta
    if not meta.modules_listed:
        return None
    # Experts and attention cores do not multiply by a weight of their own.
    own = [m for m in meta.modules if not m.class_name.endswith("DotProductAttention")]
    linears = [module for module in own if module.kind == "linear"]
    names: dict[str, list[str]] = {}
    for module in linears:
        names.setdefault(module.state, []).append(module.fqn)
    unknown = ((m.source, m.class_name) for m in linears if m.state == "unknown")
    return ModulesReport(
        counts={state: len(fqns) for state, fqns in sorted(names.items())},
        names={state: tuple(fqns) for state, fqns in sorted(names.items())},
        recipes=tuple(sorted({module.recipe for module in linears if module.recipe})),
        scalings=tuple(sorted({module.scaling for module in linears if module.scaling})),
        unknown_classes=tuple(sorted({".".join(filter(None, names)) for names in unknown})),
        storage=tuple(_storage(rank)),
    )


def _storage(rank: RankEvidence) -> Iterator[str]:
    """Say what is only kept or sent in FP8, which says nothing of the products."""
    for found in rank.recorded.meta.storage:
        if found.what == "weights" and found.count:
            yield f"{counted(found.count, 'linear layer')} with weights stored in {found.dtype}"
        elif found.what == "optimizer":
            yield f"optimizer states stored in {found.dtype}"
    sent = {
        (one.name, one.dtype) for one in rank.trace.collectives if one.dtype.startswith("Float8")
    }
    yield from (f"{name} in {dtype.lower()}" for name, dtype in sorted(sent))


def environment(ranks: Sequence[RankEvidence]) -> Environment:
    """Return the GPU of the first rank whose trace or record names one, and the versions of all.

    A version is "2.10 and 2.11" if ranks differ.
    """
    metas = [rank.recorded.meta for rank in ranks]
    gpus = [(rank.trace.gpu, rank.trace.compute_capability) for rank in ranks]
    gpus += [(meta.environment.gpu, meta.environment.compute_capability) for meta in metas]
    name, capability = next((gpu for gpu in gpus if gpu[0]), (None, None))
    versions: dict[str, dict[str, None]] = {}
    for package, version in (item for meta in metas for item in meta.versions.items()):
        versions.setdefault(package, {})[version] = None
    joined = {package: " and ".join(found) for package, found in versions.items()}
    return Environment(gpu=name, compute_capability=capability, versions=joined)


def memory_report(meta: RankMeta) -> MemoryReport | None:
    """Return the peak of a rank's GPU memory at its last window, and FP8's part of it."""
    found = [window.memory for window in meta.windows if window.memory is not None]
    if not found or not found[-1].allocated_peak:
        return None
    return MemoryReport(**structs.asdict(found[-1]), why=tuple(_why(meta.modules)))


def _why(modules: Sequence[ModuleRecord]) -> Iterator[str]:
    """Say where FP8 costs and saves memory, by the classes of the converted modules."""
    converted = [module for module in modules if module.state == "fp8"]
    engine = [module for module in converted if is_transformer_engine(module)]
    others = [module for module in converted if module not in engine]
    # They cast values in high precision anew in each pass; what is not known may save anything.
    dynamic = [
        module
        for module in others
        if module.recipe
        or (module.weight_class or "").startswith(("Float8Training", "MXFP8Training", "Scaled"))
        or package_of(module) in ("torchao", "torchtitan")
    ]
    parameters = [module for module in engine if module.weight_class in FP8_PARAMETERS]
    cached = [module for module in engine if module.weight_class not in FP8_PARAMETERS]
    if dynamic:
        yield (
            f"the weights of {counted(dynamic, 'FP8 layer')} stay in high precision, and so do the "
            "inputs saved for the backward pass: FP8 saves nothing there, and its copies (1 byte a "
            "value) come on top for as long as a product takes"
        )
    if cached:  # pytorch/module/base.py, get_weight_workspace
        yield (
            f"the weights of {counted(cached, 'FP8 layer')} stay in high precision, with an FP8 "
            "copy in addition and, where the GPU needs it, a transposed one: 1 or 2 bytes a value "
            "more, which fp8_model_init would save"
        )
    if parameters:
        yield (
            f"the weights of {counted(parameters, 'FP8 layer')} are kept in FP8 alone: 1 byte "
            "each, 2 with a transpose"
        )
    # wgrad, which reads the saved input, reads it in FP8: `backward_override`.
    if any(
        module.format_of("wgrad") != "high_precision" or "dequantized" in (module.scaling or "")
        for module in engine
    ):
        yield "Transformer Engine saves inputs for the backward pass in FP8: 1 byte a value, not 2"
