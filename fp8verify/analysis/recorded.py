"""What was recorded of a rank, as the report has it: clock, windows, modules, memory, numerics."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import structs
from msgspec.structs import replace

from fp8verify.analysis.gemms import rounded
from fp8verify.analysis.kinds import grouped
from fp8verify.analysis.layers import FP8_PARAMETERS, is_transformer_engine, package_of
from fp8verify.analysis.rank import NO_NUMERICS, RankEvidence, Recorded
from fp8verify.analysis.timeline import step_statistics
from fp8verify.capture import schema
from fp8verify.model.costs import MemoryReport
from fp8verify.model.layers import ModulesReport
from fp8verify.model.numerics import (
    GRAD_NORM,
    GRAD_NORM_CLIP_RATIO,
    LOSS,
    OF_TENSORS,
    NumericsReport,
    ScaleRow,
    TrendPoint,
)
from fp8verify.model.report import Environment
from fp8verify.model.steps import ClockReport, StepStatistics, WindowReport
from fp8verify.text import counted, enumerated


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
            for window, framework in (
                (window, window.framework) for window in meta.windows
            )
        ),
    )


def steps_outside(meta: schema.RankMeta) -> StepStatistics | None:
    """Return the times of a rank's steps outside windows, None if none were timed."""
    times = meta.steps_outside
    if times is None:
        return None
    return step_statistics([[ns / 1000 for ns in times.samples_ns]], times.count)


def modules_report(rank: RankEvidence) -> ModulesReport | None:
    """Count the linear modules of a rank by state, and list their names, if they were recorded."""
    if not rank.recorded.meta.modules_listed:
        return None
    # Attention cores do not multiply by a weight of their own.
    linears = [
        m for m in rank.linears if not m.class_name.endswith("DotProductAttention")
    ]
    by_state = sorted(grouped(linears, lambda module: module.state).items())
    unknown = ((m.source, m.class_name) for m in linears if m.state == "unknown")
    return ModulesReport(
        counts={state: len(modules) for state, modules in by_state},
        names={
            state: tuple(module.fqn for module in modules)
            for state, modules in by_state
        },
        recipes=tuple(sorted({module.recipe for module in linears if module.recipe})),
        scalings=tuple(sorted(set(filter(None, map(configured_scaling, linears))))),
        unknown_classes=tuple(
            sorted({".".join(filter(None, names)) for names in unknown})
        ),
        storage=tuple(_storage(rank)),
    )


# How torchao's `CastConfig.short_str` names what shares a scale.
_GRANULARITIES = {"axs": "rowwise", "ten": "tensorwise"}


def configured_scaling(module: schema.ModuleRecord) -> str:
    """Return how a module's recipe scales, in words; empty if it does not say.

    A GEMM with one operand scaled by row is rowwise, as rowwise_with_gw_hp's dgrad is.
    """
    if module.scaling:
        return module.scaling
    scalings = []
    high = []
    for part in (module.recipe or "").split():
        leg, _, casts = part.partition("=")
        if casts == "high_precision":
            high.append(leg)
            continue
        words = set(re.split(r"[_,:]", casts))
        scalings += [name for word, name in _GRANULARITIES.items() if word in words][:1]
    said = list(dict.fromkeys(scalings))
    if said and high:
        said.append(f"{enumerated(high)} in high precision")
    return ", ".join(said)


def _storage(rank: RankEvidence) -> Iterator[str]:
    """Say what is only kept or sent in FP8, which says nothing of the products."""
    for stored in rank.recorded.meta.storage:
        if stored.what == "weights" and stored.count:
            yield f"{counted(stored.count, 'linear layer')} with weights stored in {stored.dtype}"
        elif stored.what == "weights" and stored.elements:
            millions = stored.elements / 1e6
            yield f"{millions:.0f} M weights stored in {stored.dtype} outside them"
        elif stored.what == "optimizer":
            yield f"optimizer states stored in {stored.dtype}"
    moved = {(total.name, total.dtype) for total in rank.trace.collectives}
    sent = {(name, dtype) for name, dtype in moved if dtype.startswith("Float8")}
    yield from (f"{name} in {dtype.lower()}" for name, dtype in sorted(sent))


# Times outside of these are no dates: 2015 and 2070 in ns since 1970.
_FIRST_DATE_NS = 1_420_070_400 * 10**9
_LAST_DATE_NS = 3_155_760_000 * 10**9


def _date(ranks: Sequence[RankEvidence]) -> str | None:
    """Return when the first kernel of all ranks began; None where no trace says so."""
    begins = [rank.trace.began_ns for rank in ranks if rank.trace.began_ns is not None]
    dates = [began for began in begins if _FIRST_DATE_NS < began < _LAST_DATE_NS]
    if not dates:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(dates) // 10**9))


def environment(ranks: Sequence[RankEvidence]) -> Environment:
    """Return the GPU of the first rank whose trace or record names one, versions and the date.

    A version is "2.10 and 2.11" if ranks differ.
    """
    metas = [rank.recorded.meta for rank in ranks]
    gpus = [(rank.trace.gpu, rank.trace.compute_capability) for rank in ranks]
    gpus += [
        (meta.environment.gpu, meta.environment.compute_capability) for meta in metas
    ]
    name, capability = next((gpu for gpu in gpus if gpu[0]), (None, None))
    versions: dict[str, dict[str, None]] = {}
    for package, version in (item for meta in metas for item in meta.versions.items()):
        versions.setdefault(package, {})[version] = None
    joined = {package: " and ".join(known) for package, known in versions.items()}
    return Environment(
        gpu=name,
        compute_capability=capability,
        versions=joined,
        recorded=_date(ranks),
    )


def memory_report(meta: schema.RankMeta) -> MemoryReport | None:
    """Return the peak of a rank's GPU memory at its last window, and FP8's part of it."""
    peaks = [window.memory for window in meta.windows if window.memory is not None]
    if not peaks or not peaks[-1].allocated_peak:
        return None
    return MemoryReport(**structs.asdict(peaks[-1]), why=tuple(_why(meta.modules)))


def _why(modules: Sequence[schema.ModuleRecord]) -> Iterator[str]:
    """Say where FP8 costs and saves memory, by the classes of the converted modules."""
    converted = [module for module in modules if module.state == "fp8"]
    engine = [module for module in converted if is_transformer_engine(module)]
    # They cast values in high precision anew in each pass; what is not known may save anything.
    others = [
        (module, module.weight_class or "")
        for module in converted
        if module not in engine
    ]
    weights = ("Float8Training", "MXFP8Training", "Scaled")
    packages = ("torchao", "torchtitan")
    dynamic = [
        bool(module.recipe)
        or package_of(module) in packages
        or weight_class.startswith(weights)
        for module, weight_class in others
    ]
    parameters = sum(module.weight_class in FP8_PARAMETERS for module in engine)
    # pytorch/module/base.py, get_weight_workspace
    cached = len(engine) - parameters
    layers = {
        "stay in high precision, and so do the inputs saved for the backward pass: FP8 saves "
        "nothing there, and its copies (1 byte a value) come on top for as long as a product "
        "takes": sum(dynamic),
        "stay in high precision, with an FP8 copy in addition and, where the GPU needs it, a "
        "transposed one: 1 or 2 bytes a value more, which fp8_model_init would save": cached,
        "are kept in FP8 alone: 1 byte each, 2 with a transpose": parameters,
    }
    for what, count in layers.items():
        if count:
            yield f"the weights of {counted(count, 'FP8 layer')} {what}"
    # wgrad, which reads the saved input, reads it in FP8: `backward_override`.
    formats = ((module.format_of("wgrad"), module.scaling or "") for module in engine)
    if any(
        wgrad != "high_precision" or "dequantized" in scaling
        for wgrad, scaling in formats
    ):
        yield "Transformer Engine saves inputs for the backward pass in FP8: 1 byte a value, not 2"


# ---- scales, tensors, gradients


_SHARES = ("zeros", "flushed", "saturated", "subnormal", "zero_rows")


class Kept(NamedTuple):
    """A scale that is kept from step to step, with its recipe and its window."""

    slot: schema.SlotRecord
    recipe: schema.RecipeRecord
    window: schema.ScalesRecord

    @property
    def scale(self) -> float:
        """What values are multiplied by."""
        return float(self.slot.scale)

    @property
    def is_usable(self) -> bool:
        """Whether the scale is a positive number."""
        return 0 < self.scale < math.inf

    @property
    def frozen(self) -> bool:
        """Whether the scale was the same before the window and after it."""
        return (
            self.slot.scale_before is not None
            and self.slot.scale_before == self.slot.scale
        )

    @property
    def newest(self) -> float | None:
        """The amax of the last step."""
        return self.slot.amax[-1] if self.slot.amax else None

    def expected(self, *, before: bool = False) -> float | None:
        """Return the scale that the recipe would make of the history; None if that is not known.

        transformer_engine/pytorch/quantization.py: `(largest / amax) / 2^margin`.
        """
        slot = self.slot
        of_all = slot.largest_amax_before if before else slot.largest_amax
        of_last = slot.amax_before if before else self.newest
        known = {"max": of_all, "most_recent": of_last}
        amax = known.get(self.recipe.algorithm or "")
        if amax:
            return slot.largest / amax / 2.0 ** (self.recipe.margin or 0)
        return None

    @property
    def headroom(self) -> float | None:
        """Octaves by which the newest amax may grow before values are clipped."""
        used = (self.newest or 0.0) * self.scale
        return math.log2(self.slot.largest / used) if 0 < used < math.inf else None

    @property
    def first_of_window(self) -> float | None:
        """The amax of the first step that used the scale which the window began with."""
        before = self.slot.amax_before
        history = list(self.slot.amax)
        if not before or before not in history:
            return None
        place = len(history) - 1 - history[::-1].index(before)
        return history[place + 1] if place + 1 < len(history) else None


def kept_scales(rank: RankEvidence) -> list[Kept]:
    """Return the scales that delayed scaling keeps and uses, as the last window saw them."""
    return [
        Kept(slot, window.recipes[slot.recipe], window)
        for window in rank.recorded.numerics.record.windows[-1:]
        for slot in window.slots
        # Layers do not use all of their slots: of others no amax was recorded.
        if 0 <= slot.recipe < len(window.recipes)
        and (slot.largest_amax or any(slot.amax) or slot.staged)
    ]


def recipes_of(rank: RankEvidence) -> tuple[schema.RecipeRecord, ...]:
    """Return the recipes of a rank's windows, each once."""
    windows = rank.recorded.numerics.record.windows
    return tuple(
        dict.fromkeys(recipe for window in windows for recipe in window.recipes)
    )


def steps_of(rank: RankEvidence) -> list[schema.MeasuredRecord]:
    """Return all measured steps of a rank, the first one and those of its series, in order."""
    steps = {line.step: line for line in reversed(_lines(rank))}
    return [steps[number] for number in sorted(steps)]


def _lines(rank: RankEvidence) -> list[schema.MeasuredRecord]:
    numerics = rank.recorded.numerics
    measured = numerics.record.measured
    return [*([] if measured is None else [measured]), *numerics.series]


def loss_scales_of(rank: RankEvidence) -> tuple[float | None, ...]:
    """Return the scales of torch's GradScalers at the end of the last window."""
    windows = rank.recorded.numerics.record.windows
    return windows[-1].loss_scales if windows else ()


def gradients_of(rank: RankEvidence) -> list[schema.GradientRecord]:
    """Return the gradient norms of a rank by step."""
    windows = rank.recorded.meta.windows
    noted = [line.gradient for line in _lines(rank) if line.gradient is not None]
    every = (*(norm for window in windows for norm in window.gradients), *noted)
    norms = {norm.step: norm for norm in every}
    return [norms[step] for step in sorted(norms)]


def recomputed_high(rank: RankEvidence) -> tuple[str, ...]:
    """Return the layers that a measured step ran in FP8 and recomputed without FP8."""
    layers = (layer for line in _lines(rank) for layer in line.recomputed_high)
    return tuple(dict.fromkeys(layers))


def _trend(rank: RankEvidence) -> tuple[TrendPoint, ...]:
    """Return the scalars of each step of a rank's series, with the losses of the log."""
    known = rank.recorded.losses
    losses = {} if known.counted else known.points
    finite = {step: loss for step, loss in losses.items() if math.isfinite(loss)}
    # Resumed runs: the framework's steps are ahead of those of this process.
    windows = reversed(rank.recorded.meta.windows)
    ahead = next((w.framework.last - w.last for w in windows if w.framework), 0)
    return tuple(
        TrendPoint(
            step=line.step, scalars=scalars_of(line, finite.get(line.step + ahead))
        )
        for line in rank.recorded.numerics.series
    )


def scalars_of(
    line: schema.MeasuredRecord, loss: float | None = None
) -> dict[str, float]:
    """Return the scalars of a measured step, by the names of `fp8verify.model.numerics`."""
    scalars: dict[str, float | None] = {}
    for name, of in OF_TENSORS.items():
        values = [of.of(row) for row in line.rows if row.tensor in of.tensors]
        known = [value for value in values if value is not None]
        scalars[name] = of.worst(known) if known else None
    if line.gradient is not None:
        scalars[GRAD_NORM] = line.gradient.norm
        scalars[GRAD_NORM_CLIP_RATIO] = line.gradient.clip_ratio
    scalars[LOSS] = loss
    return {name: value for name, value in scalars.items() if value is not None}


def numerics_report(rank: RankEvidence) -> NumericsReport | None:
    """Return the numerics of a rank; None if none were recorded."""
    gradients = tuple(gradients_of(rank))
    if rank.recorded.numerics is NO_NUMERICS and not gradients:
        return None
    record = rank.recorded.numerics.record
    measured = record.measured
    reason = record.reason
    rows, notes = (measured.rows, measured.notes) if measured is not None else ((), ())
    if measured is not None and not rows:
        reason = (
            reason
            or "; ".join(notes)
            or f"no FP8 layer was seen in step {measured.step}"
        )
    return NumericsReport(
        step=measured.step if measured is not None else None,
        reason=reason,
        rows=tuple(
            replace(row, **{name: rounded(getattr(row, name)) for name in _SHARES})
            for row in rows
        ),
        recipes=recipes_of(rank),
        scales=tuple(
            ScaleRow(
                layer=kept.slot.layer,
                tensor=kept.slot.tensor,
                gemm=kept.slot.gemm,
                format=kept.slot.format,
                scale=kept.scale if math.isfinite(kept.scale) else None,
                amax=kept.newest,
                headroom_octaves=rounded(kept.headroom),
                changed=None if kept.slot.scale_before is None else not kept.frozen,
            )
            for kept in kept_scales(rank)
        ),
        loss_scales=loss_scales_of(rank),
        gradients=gradients,
        trend=_trend(rank),
        notes=notes,
    )
