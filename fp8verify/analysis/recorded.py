"""What was recorded of a rank, as the report has it: clock, windows, modules, memory, numerics."""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import structs
from msgspec.structs import replace

from fp8verify.analysis.gemms import rounded
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
    return ClockReport(
        source=meta.clock,
        counts=_counted_as_step(meta),
        steps_seen=meta.steps_seen,
        steps_skipped=meta.steps_skipped,
        updates=meta.optimizer_updates,
        windows=tuple(map(_window_report, meta.windows)),
    )


def _counted_as_step(meta: schema.RankMeta) -> str | None:
    """Return the call that a step was, None if several could be."""
    if meta.clock == "explicit":
        return "fp8verify.step"
    leader = meta.leader
    classes = []
    for name, calls in meta.optimizer_updates.items():
        if calls:
            classes.append(name)
    if not leader and len(classes) == 1:
        leader = classes[0]
    return f"{leader}.step" if leader else None


def _window_report(window: schema.WindowRecord) -> WindowReport:
    framework = window.framework
    if framework is None:
        return WindowReport(
            first=window.first,
            last=window.last,
            state=window.state,
            framework=None,
            counter=None,
            framework_first=None,
            framework_last=None,
        )
    return WindowReport(
        first=window.first,
        last=window.last,
        state=window.state,
        framework=framework.name,
        counter=framework.counter,
        framework_first=framework.first,
        framework_last=framework.last,
    )


def steps_outside(meta: schema.RankMeta) -> StepStatistics | None:
    """Return the times of a rank's steps outside windows, None if none were timed."""
    times = meta.steps_outside
    if times is None:
        return None
    samples_us = [ns / 1000 for ns in times.samples_ns]
    return step_statistics([samples_us], times.count)


def modules_report(rank: RankEvidence) -> ModulesReport | None:
    """Count the linear modules of a rank by state, and list their names, if they were recorded."""
    if not rank.recorded.meta.modules_listed:
        return None
    by_state: dict[str, list[str]] = defaultdict(list)
    recipes: set[str] = set()
    scalings: set[str] = set()
    unknown_classes: set[str] = set()
    for module in rank.linears:
        if module.class_name.endswith("DotProductAttention"):
            continue  # attention cores do not multiply by a weight of their own
        by_state[module.state].append(module.fqn)
        recipes.add(module.recipe or "")
        scalings.add(configured_scaling(module))
        if module.state == "unknown":
            path = filter(None, (module.source, module.class_name))
            unknown_classes.add(".".join(path))
    counts = {}
    names_by_state = {}
    for state, names in sorted(by_state.items()):
        counts[state] = len(names)
        names_by_state[state] = tuple(names)
    return ModulesReport(
        counts=counts,
        names=names_by_state,
        recipes=tuple(sorted(recipes - {""})),
        scalings=tuple(sorted(scalings - {""})),
        unknown_classes=tuple(sorted(unknown_classes)),
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
    scalings: dict[str, None] = {}  # in the order in which they come first
    high = []
    for part in (module.recipe or "").split():
        leg, _, casts = part.partition("=")
        if casts == "high_precision":
            high.append(leg)
            continue
        words = set(re.split(r"[_,:]", casts))
        for word, name in _GRANULARITIES.items():
            if word in words:
                scalings[name] = None
                break
    phrases = list(scalings)
    if scalings and high:
        phrases.append(f"{enumerated(high)} in high precision")
    return ", ".join(phrases)


def _storage(rank: RankEvidence) -> Iterator[str]:
    """Say what is only kept or sent in FP8, which says nothing of the products."""
    for stored in rank.recorded.meta.storage:
        if stored.what == "weights" and stored.count:
            layers = counted(stored.count, "linear layer")
            yield f"{layers} with weights stored in {stored.dtype}"
        elif stored.what == "weights" and stored.elements:
            millions = stored.elements / 1e6
            yield f"another {millions:.0f} M weights stored in {stored.dtype}"
        elif stored.what == "optimizer":
            yield f"optimizer states stored in {stored.dtype}"
    moved = {(total.name, total.dtype) for total in rank.trace.collectives}
    for name, dtype in sorted(moved):
        if dtype.startswith("Float8"):
            yield f"{name} in {dtype.lower()}"


# Times outside of these are no dates: 2015 and 2070 in ns since 1970.
_FIRST_DATE_NS = 1_420_070_400 * 10**9
_LAST_DATE_NS = 3_155_760_000 * 10**9


def _date(ranks: Sequence[RankEvidence]) -> str | None:
    """Return when the first kernel of all ranks began; None where no trace says so."""
    dates = []
    for rank in ranks:
        began = rank.trace.began_ns
        if began is not None and _FIRST_DATE_NS < began < _LAST_DATE_NS:
            dates.append(began)
    if not dates:
        return None
    first = time.gmtime(min(dates) // 10**9)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", first)


def environment(ranks: Sequence[RankEvidence]) -> Environment:
    """Return the GPU of the first rank whose trace or record names one, versions and the date.

    A version is "2.10 and 2.11" if ranks differ.
    """
    gpus = [(rank.trace.gpu, rank.trace.compute_capability) for rank in ranks]
    versions: dict[str, dict[str, None]] = defaultdict(dict)
    for rank in ranks:
        meta = rank.recorded.meta
        recorded = meta.environment
        gpus.append((recorded.gpu, recorded.compute_capability))
        for package, version in meta.versions.items():
            versions[package][version] = None
    named = (gpu for gpu in gpus if gpu[0])
    name, capability = next(named, (None, None))
    joined = {package: " and ".join(known) for package, known in versions.items()}
    return Environment(
        gpu=name,
        compute_capability=capability,
        versions=joined,
        recorded=_date(ranks),
    )


def memory_report(meta: schema.RankMeta) -> MemoryReport | None:
    """Return the peak of a rank's GPU memory at its last window, and FP8's part of it."""
    last = None
    for window in meta.windows:
        if window.memory is not None:
            last = window.memory
    if last is None or not last.allocated_peak:
        return None
    why = _why(meta.modules)
    return MemoryReport(**structs.asdict(last), why=tuple(why))


def _why(modules: Sequence[schema.ModuleRecord]) -> Iterator[str]:
    """Say where FP8 costs and saves memory, by the classes of the converted modules."""
    dynamic = 0
    cached = 0
    parameters = 0
    saves_inputs = False
    for module in modules:
        if module.state != "fp8":
            continue
        if not is_transformer_engine(module):
            dynamic += _casts_anew(module)
            continue
        if module.weight_class in FP8_PARAMETERS:
            parameters += 1
        else:
            cached += 1  # pytorch/module/base.py, get_weight_workspace
        # wgrad, which reads the saved input, reads it in FP8: `backward_override`.
        high_wgrad = module.format_of("wgrad") == "high_precision"
        saves_inputs |= not high_wgrad or "dequantized" in (module.scaling or "")
    layers = {
        "stay in high precision, and so do the inputs saved for the backward pass: FP8 saves "
        "nothing there, and its copies (1 byte a value) come on top for as long as a product "
        "takes": dynamic,
        "stay in high precision, with an FP8 copy in addition and, where the GPU needs it, a "
        "transposed one: 1 or 2 bytes a value more, which fp8_model_init would save": cached,
        "are kept in FP8 alone: 1 byte each, 2 with a transpose": parameters,
    }
    for what, count in layers.items():
        if count:
            yield f"the weights of {counted(count, 'FP8 layer')} {what}"
    if saves_inputs:
        yield "Transformer Engine saves inputs for the backward pass in FP8: 1 byte a value, not 2"


def _casts_anew(module: schema.ModuleRecord) -> bool:
    """Whether a module casts values in high precision anew in each pass; others may save any."""
    if module.recipe or package_of(module) in ("torchao", "torchtitan"):
        return True
    weight_class = module.weight_class or ""
    return weight_class.startswith(("Float8Training", "MXFP8Training", "Scaled"))


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
        before = self.slot.scale_before
        return before is not None and before == self.slot.scale

    @property
    def newest(self) -> float | None:
        """The amax of the last step."""
        return self.slot.amax[-1] if self.slot.amax else None

    def expected(self, *, before: bool = False) -> float | None:
        """Return the scale that the recipe would make of the history; None if that is not known.

        transformer_engine/pytorch/quantization.py: `(largest / amax) / 2^margin`.
        """
        slot = self.slot
        amax = None
        if self.recipe.algorithm == "max":
            amax = slot.largest_amax_before if before else slot.largest_amax
        elif self.recipe.algorithm == "most_recent":
            amax = slot.amax_before if before else self.newest
        if not amax:
            return None
        margin = self.recipe.margin or 0
        return slot.largest / amax / 2.0**margin

    @property
    def headroom(self) -> float | None:
        """Octaves by which the newest amax may grow before values are clipped."""
        used = (self.newest or 0.0) * self.scale
        if not 0 < used < math.inf:
            return None
        return math.log2(self.slot.largest / used)

    @property
    def first_of_window(self) -> float | None:
        """The amax of the first step that used the scale which the window began with."""
        before = self.slot.amax_before
        if not before:
            return None
        newer = None
        for amax in reversed(self.slot.amax):
            if amax == before:
                return newer
            newer = amax
        return None


def kept_scales(rank: RankEvidence) -> list[Kept]:
    """Return the scales that delayed scaling keeps and uses, as the last window saw them."""
    windows = rank.recorded.numerics.record.windows
    if not windows:
        return []
    window = windows[-1]
    kept = []
    for slot in window.slots:
        # Layers do not use all of their slots: of others no amax was recorded.
        is_used = slot.largest_amax or any(slot.amax) or slot.staged
        if is_used and 0 <= slot.recipe < len(window.recipes):
            kept.append(Kept(slot, window.recipes[slot.recipe], window))
    return kept


def recipes_of(rank: RankEvidence) -> tuple[schema.RecipeRecord, ...]:
    """Return the recipes of a rank's windows, each once."""
    recipes: dict[schema.RecipeRecord, None] = {}
    for window in rank.recorded.numerics.record.windows:
        recipes.update(dict.fromkeys(window.recipes))
    return tuple(recipes)


def steps_of(rank: RankEvidence) -> list[schema.MeasuredRecord]:
    """Return all measured steps of a rank, the first one and those of its series, in order."""
    steps = {line.step: line for line in reversed(_lines(rank))}
    return [steps[number] for number in sorted(steps)]


def _lines(rank: RankEvidence) -> list[schema.MeasuredRecord]:
    numerics = rank.recorded.numerics
    measured = numerics.record.measured
    if measured is None:
        return list(numerics.series)
    return [measured, *numerics.series]


def loss_scales_of(rank: RankEvidence) -> tuple[float | None, ...]:
    """Return the scales of torch's GradScalers at the end of the last window."""
    windows = rank.recorded.numerics.record.windows
    return windows[-1].loss_scales if windows else ()


def gradients_of(rank: RankEvidence) -> list[schema.GradientRecord]:
    """Return the gradient norms of a rank by step."""
    norms: dict[int, schema.GradientRecord] = {}
    for window in rank.recorded.meta.windows:
        for norm in window.gradients:
            norms[norm.step] = norm
    for line in _lines(rank):
        if line.gradient is not None:
            norms[line.gradient.step] = line.gradient
    return [norms[step] for step in sorted(norms)]


def recomputed_high(rank: RankEvidence) -> tuple[str, ...]:
    """Return the layers that a measured step ran in FP8 and recomputed without FP8."""
    layers: dict[str, None] = {}
    for line in _lines(rank):
        layers.update(dict.fromkeys(line.recomputed_high))
    return tuple(layers)


def _trend(rank: RankEvidence) -> tuple[TrendPoint, ...]:
    """Return the scalars of each step of a rank's series, with the losses of the log."""
    known = rank.recorded.losses
    losses = {} if known.counted else known.points
    # Resumed runs: the framework's steps are ahead of those of this process.
    ahead = 0
    for window in reversed(rank.recorded.meta.windows):
        if window.framework:
            ahead = window.framework.last - window.last
            break
    points = []
    for line in rank.recorded.numerics.series:
        loss = losses.get(line.step + ahead)
        if loss is not None and not math.isfinite(loss):
            loss = None
        point = TrendPoint(
            step=line.step,
            scalars=scalars_of(line, loss),
        )
        points.append(point)
    return tuple(points)


def scalars_of(
    line: schema.MeasuredRecord,
    loss: float | None = None,
) -> dict[str, float]:
    """Return the scalars of a measured step, by the names of `fp8verify.model.numerics`."""
    scalars: dict[str, float] = {}
    for name, of in OF_TENSORS.items():
        known = []
        for row in line.rows:
            value = of.of(row) if row.tensor in of.tensors else None
            if value is not None:
                known.append(value)
        worst = of.worst(known) if known else None
        if worst is not None:
            scalars[name] = worst
    gradient = line.gradient
    if gradient is not None and gradient.norm is not None:
        scalars[GRAD_NORM] = gradient.norm
    if gradient is not None and gradient.clip_ratio is not None:
        scalars[GRAD_NORM_CLIP_RATIO] = gradient.clip_ratio
    if loss is not None:
        scalars[LOSS] = loss
    return scalars


def numerics_report(rank: RankEvidence) -> NumericsReport | None:
    """Return the numerics of a rank; None if none were recorded."""
    gradients = tuple(gradients_of(rank))
    if rank.recorded.numerics is NO_NUMERICS and not gradients:
        return None
    record = rank.recorded.numerics.record
    measured = record.measured
    reason = record.reason
    step = None
    rows: Sequence[schema.TensorRecord] = ()
    notes: tuple[str, ...] = ()
    if measured is not None:
        step = measured.step
        rows = measured.rows
        notes = measured.notes
        if not rows:
            nothing = f"no FP8 layer was seen in step {measured.step}"
            reason = reason or "; ".join(notes) or nothing
    return NumericsReport(
        step=step,
        reason=reason,
        rows=tuple(map(_rounded_row, rows)),
        recipes=recipes_of(rank),
        scales=tuple(map(_scale_row, kept_scales(rank))),
        loss_scales=loss_scales_of(rank),
        gradients=gradients,
        trend=_trend(rank),
        notes=notes,
    )


def _rounded_row(row: schema.TensorRecord) -> schema.TensorRecord:
    shares = {name: rounded(getattr(row, name)) for name in _SHARES}
    return replace(row, **shares)


def _scale_row(kept: Kept) -> ScaleRow:
    slot = kept.slot
    return ScaleRow(
        layer=slot.layer,
        tensor=slot.tensor,
        gemm=slot.gemm,
        format=slot.format,
        scale=kept.scale if math.isfinite(kept.scale) else None,
        amax=kept.newest,
        headroom_octaves=rounded(kept.headroom),
        changed=None if slot.scale_before is None else not kept.frozen,
    )
