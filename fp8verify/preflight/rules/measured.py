"""Rules on what was measured: for which layers FP8 pays, and which to leave in BF16."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from fp8verify.layer_names import shorten
from fp8verify.preflight.checks import Check, Status
from fp8verify.preflight.measure import Measurement
from fp8verify.preflight.probes import Plan, Probe, Use
from fp8verify.preflight.timings import (
    BF16,
    MARGIN,
    Answer,
    Measured,
    Saved,
    answer_of,
    gain_of,
    total_saved,
)
from fp8verify.wording import listed

_SHOWN = 6
_STATUS = {Answer.PAYS: Status.OK, Answer.LOSES: Status.WARN, Answer.UNSURE: Status.SKIPPED}
_HINTS = {
    Answer.PAYS: "",
    Answer.LOSES: "Leave these layers in BF16, or raise the tokens a step.",
    Answer.UNSURE: f"The gain is within {MARGIN:.0%} and what rounds differ by: train some steps "
    "in both and ask `fp8verify compare`.",
}
_Uses = Sequence[tuple[Measured, Use]]
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
    yield from _model(uses, where, measurement.failed)
    for one, use in uses:
        yield _size(one, use, where)
        yield from _parts(one, where)
    yield from (_failure(probe, why, where) for probe, why in measurement.failed.items())
    yield from _filter(uses, plan, where)


def _size(one: Measured, use: Use, where: str) -> Check:
    answer = answer_of(one)
    times = [f"{name} {one.times[name].us:.0f}, {one.gain(name)}" for name in one.recipes]
    times += [f"{name} failed ({text})" for name, text in one.errors.items()]
    return Check(
        code="measured",
        status=_STATUS[answer],
        message=f"{_named(one.probe, use)}: BF16 {one.times[BF16].us:.0f} µs a step, "
        f"{'; '.join(times) or 'no FP8'}: {answer.value}",
        hint=_HINTS[answer],
        source=f"measured on {where}, compiled, amid what is around such layers",
    )


def _named(probe: Probe, use: Use) -> str:
    counts = Counter(probe.outputs)
    outputs = [f"{n}" if count == 1 else f"{count} x {n}" for n, count in counts.items()]
    names = f" ({listed(shorten(use.layers, use.layers), 3)})" if use.layers else ""
    times = f", {use.repeats} times" if use.repeats > 1 else ""
    return f"{probe.tokens} tokens, {probe.k} -> {' + '.join(outputs)}{names}{times}"


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
            message=f"{one.tokens} tokens, {one.k} -> {listed([*map(str, one.outputs)], 3)}, "
            f"{name}: {_legs(one, name)}; all else {one.around_us:.0f} -> {rest:.0f} µs "
            f"({rest - one.around_us:+.0f} by casts; kernels that cast take {timed.cast_us:.0f})",
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


def _model(uses: _Uses, where: str, failed: Mapping[Probe, str]) -> Iterator[Check]:
    """Say what the model gains: each probe as often as the model has it."""
    of_model = [(one, use) for one, use in uses if use.repeats]
    recipes = {name for one, _ in of_model for name in one.recipes}
    complete = [name for name in recipes if all(name in one.times for one, _ in of_model)]
    if not complete or failed:
        return
    before = sum(one.layers_us * use.repeats for one, use in of_model)
    gains = {name: gain_of(before, _saved(of_model, name)) for name in complete}
    best = max(gains, key=lambda name: gains[name].speed_up)
    answer = gains[best].answer
    after = before / gains[best].speed_up
    yield Check(
        code="measured-model",
        status=_STATUS[answer],
        message=f"the model's linear layers: BF16 {before / 1e3:.1f} ms a step, {best} "
        f"{after / 1e3:.1f} with casts, {gains[best]}: {answer.value}; the rest of a step stays as "
        "it is",
        hint=_HINTS[answer],
        source=f"measured on {where}, {sum(use.repeats for _, use in of_model)} groups of layers",
    )


def _saved(of_model: _Uses, recipe: str) -> Saved:
    return total_saved((one.saved(recipe), use.repeats) for one, use in of_model if use.converted)


def _filter(uses: _Uses, plan: Plan, where: str) -> Iterator[Check]:
    lost = [name for one, use in uses if answer_of(one) is Answer.LOSES for name in use.layers]
    if lost:
        every = [name for use in plan.values() for name in use.layers]
        yield Check(
            code="measured-filter",
            status=Status.OK,
            message=f"leave in BF16: filter_fqns = [{_quoted(shorten(lost, every), lost)}]",
            hint="torchtitan's filter_fqns and torchao's module_filter_fn match parts of names.",
            source=f"measured on {where}",
        )


def _quoted(patterns: list[str], names: list[str]) -> str:
    """Return what a filter by parts of names takes: the last part where all layers share it."""
    parts = list(dict.fromkeys(name.rpartition(".")[2] for name in names))
    plain = parts if len(parts) < len(patterns) or any("*" in p for p in patterns) else names
    return ", ".join(f'"{name}"' for name in dict.fromkeys(plain))
