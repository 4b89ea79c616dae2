"""Rules on what was measured: for which layers FP8 pays, and which to leave in BF16."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fp8verify.doctor.blocks import IN_A_BLOCK, Group
from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.measure import Measurement
from fp8verify.doctor.probes import Plan, Probe, Use
from fp8verify.doctor.timings import (
    BF16,
    MARGIN,
    Answer,
    Measured,
    answer_of,
)
from fp8verify.doctor.whole_model import Uses, whole_model
from fp8verify.layer_names import shorten
from fp8verify.text import listed

_NAME = 120
_IN_BLOCKS = "in a graph of two decoder blocks"
_ALONE = "alone, amid what is around such layers"
_STATUS = {Answer.PAYS: Status.OK, Answer.LOSES: Status.WARN, Answer.UNSURE: Status.SKIPPED}
_HINTS = {
    Answer.PAYS: "",
    Answer.LOSES: "Leave these layers in BF16, or raise the tokens a step.",
    Answer.UNSURE: f"The gain is within {MARGIN:.0%} and what rounds differ by: train some steps "
    "in both and ask `fp8verify compare`.",
}
_LEGS = ("fprop", "dgrad", "wgrad")


def measured(measurement: Measurement, plan: Plan) -> Iterator[Check]:
    """Say of each size and of the model whether FP8 pays, and for which layers it does not."""
    if not measurement.probes and not measurement.failed:
        yield Check(
            code="measured",
            status=Status.SKIPPED,
            message=f"nothing was measured: {measurement.why_none}",
            hint="--measure needs a GPU, and torch and torchao in the training's Python.",
        )
        return
    versions = (f"{name} {measurement.where.get(name)}" for name in ("torch", "torchao"))
    where = ", ".join([str(measurement.where.get("gpu")), *versions])
    uses = [(one, plan.get(one.probe, Use())) for one in measurement.probes]
    parts = [(one, plan.get(one.probe, Use())) for one in measurement.alone]
    if not measurement.failed:
        yield from _model(uses, where)
    for one, use in uses:
        yield _size(one, use, where)
        yield from _parts(one, where)
        yield from _kernels(one, where)
    for one, use in parts:
        yield from (_alone(one, use, group, where) for group in one.groups if group.low)
    yield from (_failure(probe, why, where) for probe, why in measurement.failed.items())
    yield from _filter([*_losing(uses), *_losing_alone(parts)], plan, where)


def _size(one: Measured, use: Use, where: str) -> Check:
    answer = answer_of(one)
    times = [f"{name} {one.times[name].us:.0f}, {one.gain(name)}" for name in one.recipes]
    times += [f"{name} failed ({text})" for name, text in one.errors.items()]
    around = _IN_BLOCKS if one.probe.is_block else _ALONE
    return Check(
        code="measured",
        status=_STATUS[answer],
        message=f"{_named(one.probe, use)}: BF16 {one.times[BF16].us:.0f} µs a step "
        f"({one.layers_us:.0f} in the layers), {'; '.join(times) or 'no FP8'}: {answer.value}",
        hint=_HINTS[answer],
        source=f"measured on {where}, compiled, {around}",
    )


def _named(probe: Probe, use: Use) -> str:
    groups = [_group_named(group) for group in probe.groups]
    kind = "a decoder block, " if probe.is_block else ""
    if not probe.is_block and probe.groups[0].role in IN_A_BLOCK:
        kind = "in no decoder block, "
    names = f" ({listed(shorten(use.names, use.names), 3)})" if use.names else ""
    times = f", {use.repeats} times" if use.repeats > 1 else ""
    return f"{probe.tokens} tokens, {kind}{', '.join(groups)}{names}{times}"


def _group_named(group: Group) -> str:
    counts = Counter(group.outputs)
    outputs = [f"{n}" if count == 1 else f"{count} x {n}" for n, count in counts.items()]
    return f"{group.k} -> {' + '.join(outputs)}" + ("" if group.low else " in BF16")


def _alone(one: Measured, use: Use, group: Group, where: str) -> Check:
    """Say what a block gains where one group of its layers is in FP8 and all others in BF16."""
    gain, name = one.gain_alone(group), group.role.value
    answer = gain.answer if gain is not None else Answer.UNSURE
    what = one.errors.get(name, "its GEMMs were not found in the trace")
    if gain is not None:
        what = f"a block takes {one.times[BF16].us:.0f} -> {one.times[name].us:.0f} µs a step "
        what += f"({one.group_us(group):.0f} in these layers), {gain}"
    layers = use.layers[one.groups.index(group)] if use.layers else ()
    names = f" ({listed(shorten(layers, layers), 3)})" if layers else ""
    return Check(
        code="measured",
        status=_STATUS[answer],
        message=f"{one.tokens} tokens, {name} {_group_named(group)}{names} alone in FP8: "
        f"{what}: {answer.value}",
        hint=_HINTS[answer],
        source=f"measured on {where}, compiled, {_IN_BLOCKS}",
    )


def _parts(one: Measured, where: str) -> Iterator[Check]:
    """Say where the time of a probe goes, for each leg and size."""
    bf16 = one.times[BF16]
    for name in one.recipes:
        timed = one.times[name]
        if not (bf16.gemms and timed.gemms):
            continue
        rest = timed.us - timed.gemm_us
        yield Check(
            code="measured-parts",
            status=Status.OK,
            message=f"{_named(one.probe, Use())}, "
            f"{name}: {_legs(one, name)}; all else {one.around_us:.0f} -> {rest:.0f} µs "
            f"({rest - one.around_us:+.0f} by casts; kernels that cast take {timed.cast_us:.0f})",
            source=f"traced on {where}",
        )


def _kernels(one: Measured, where: str) -> Iterator[Check]:
    """Name the kernels that take the most time, by which a wrong answer can be explained."""
    for name in (BF16, *one.recipes):
        kernels = [f"{kernel.us:.0f} {kernel.name[:_NAME]}" for kernel in one.times[name].kernels]
        if kernels:
            yield Check(
                code="measured-kernels",
                status=Status.OK,
                message=f"{_named(one.probe, Use())}, {name}, µs a step: {', '.join(kernels)}",
                source=f"traced on {where}",
            )


def _legs(one: Measured, recipe: str) -> str:
    sums: dict[tuple[str, int, int, int], list[float]] = {}
    for place, name in enumerate((BF16, recipe)):
        for gemm in one.times[name].gemms:
            sums.setdefault((gemm.leg, gemm.m, gemm.n, gemm.k), [0.0, 0.0])[place] += gemm.us
    ordered = sorted(sums.items(), key=lambda row: (_place(row[0][0]), row[0]))
    return ", ".join(
        f"{leg} M={m} N={n} K={k} {before:.0f} -> {after:.0f}"
        for (leg, m, n, k), (before, after) in ordered
    )


def _place(leg: str) -> int:
    return _LEGS.index(leg) if leg in _LEGS else len(_LEGS)


def _failure(probe: Probe, why: str, where: str) -> Check:
    return Check(
        code="measured",
        status=Status.SKIPPED,
        message=f"{_named(probe, Use())} could not be measured: {why}",
        hint="Measure fewer tokens with --tokens where memory is short.",
        source=f"tried on {where}",
    )


def _model(uses: Uses, where: str) -> Iterator[Check]:
    """Say what the model gains: each probe as often as the model has it."""
    model = whole_model(uses)
    if model is None:
        return
    answer, before = model.gain.answer, model.layers_us
    after = before / model.gain.speed_up
    whole = f"{model.step_us / 1e3:.1f} -> {(model.step_us - model.saved_us) / 1e3:.1f} ms"
    yield Check(
        code="measured-model",
        status=_STATUS[answer],
        message=f"the model's linear layers: BF16 {before / 1e3:.1f} ms a step, {model.recipe} "
        f"{after / 1e3:.1f} with casts, {model.gain}: {answer.value}; with the attention, norms "
        f"and activations around them {whole}, the rest of a step stays as it is",
        hint=_HINTS[answer],
        source=f"measured on {where}, {sum(use.repeats for _, use in uses)} blocks and layers",
    )


def _losing(uses: Uses) -> list[str]:
    """Return the layers outside of blocks for which FP8 does not pay."""
    lost = [use for one, use in uses if not one.probe.is_block and answer_of(one) is Answer.LOSES]
    return [name for use in lost for name in use.names]


def _losing_alone(parts: Uses) -> list[str]:
    found: list[str] = []
    for one, use in parts:
        for group, layers in zip(one.groups, use.layers, strict=False):
            gain = one.gain_alone(group) if group.low else None
            found += layers if gain is not None and gain.answer is Answer.LOSES else ()
    return found


def _filter(lost: Sequence[str], plan: Plan, where: str) -> Iterator[Check]:
    if lost:
        every = [name for use in plan.values() for name in use.names]
        yield Check(
            code="measured-filter",
            status=Status.OK,
            message=f"leave in BF16: filter_fqns = [{_quoted(shorten(lost, every), lost)}]",
            hint="torchtitan's filter_fqns and torchao's module_filter_fn match parts of names.",
            source=f"measured on {where}",
        )


def _quoted(patterns: list[str], names: Sequence[str]) -> str:
    """Return what a filter by parts of names takes: the last part where all layers share it."""
    parts = list(dict.fromkeys(name.rpartition(".")[2] for name in names))
    plain = parts if len(parts) < len(patterns) or any("*" in p for p in patterns) else names
    return ", ".join(f'"{name}"' for name in dict.fromkeys(plain))
