"""Rules on what was measured: for which layers, and for which model, FP8 pays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.decoder import IN_A_BLOCK, Group
from fp8verify.doctor.measure import BF16, MARGIN, Answer, Measured, Measurement, whole_model
from fp8verify.doctor.probes import Plan, Probe, Use
from fp8verify.text import listed, shorten

_STATUS = {Answer.PAYS: Status.OK, Answer.LOSES: Status.WARN, Answer.UNSURE: Status.SKIPPED}
_HINTS = {
    Answer.PAYS: "",
    Answer.LOSES: "Leave these layers in BF16, or raise the tokens a step.",
    Answer.UNSURE: f"The gain is within {MARGIN:.0%} and what rounds differ by: train some steps "
    "in both and ask `fp8verify compare`.",
}


def measured(measurement: Measurement, plan: Plan) -> Iterator[Check]:
    """Say of each block or layer and of the model whether FP8 pays."""
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
    if not measurement.failed:
        yield from _model(uses, where)
    for one, use in uses:
        yield _probe(one, use, where)
    for probe, why in measurement.failed.items():
        yield Check(
            code="measured",
            status=Status.SKIPPED,
            message=f"{_named(probe, Use())} could not be measured: {why}",
            hint="Measure fewer tokens with --tokens where memory is short.",
            source=f"tried on {where}",
        )


def _probe(one: Measured, use: Use, where: str) -> Check:
    answer = one.answer
    times = [f"{name} {one.us(name):.0f}, {one.gain(name)}" for name in one.recipes]
    times += [f"{name} failed ({text})" for name, text in one.errors.items()]
    around = "in a graph of two decoder blocks" if one.probe.is_block else "alone, after a norm"
    return Check(
        code="measured",
        status=_STATUS[answer],
        message=f"{_named(one.probe, use)}: BF16 {one.us(BF16):.0f} µs a step "
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


def _model(uses: Sequence[tuple[Measured, Use]], where: str) -> Iterator[Check]:
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
