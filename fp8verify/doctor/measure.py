"""Measure on this GPU whether FP8 pays for the layers of a model, in the Python that trains."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.decoder import IN_A_BLOCK, Group, heads_of
from fp8verify.doctor.installed import Interpreter
from fp8verify.doctor.probes import Plan, Probe, Use
from fp8verify.errors import InputError
from fp8verify.text import listed, shorten

BF16 = "bf16"
# A model is more than the blocks that are measured: a result within this margin is inconclusive.
# benchmarks/doctor_measure.sh compares the two (docs/doctor.md has its table).
MARGIN = 0.05
MAX_PROBES = 24
TIMEOUT_S = 1800.0
_WORKER = Path(__file__).parent / "worker.py"
_MARK = "fp8verify: "


class Answer(str, Enum):
    """Whether FP8 pays; `UNSURE` where the gain is within the doubt about it."""

    PAYS = "pays"
    LOSES = "does not pay"
    UNSURE = "cannot tell"


class Saved(NamedTuple):
    """The µs that FP8 saves in a step, and by how much rounds differ on that."""

    us: float
    doubt: float


class Gain(NamedTuple):
    """How many times as fast FP8 is, and the bounds of that by the rounds alone."""

    speed_up: float
    low: float
    high: float

    @property
    def answer(self) -> Answer:
        """What follows, with the margin on both sides."""
        if self.low >= 1 + MARGIN:
            return Answer.PAYS
        return Answer.LOSES if self.high <= 1 / (1 + MARGIN) else Answer.UNSURE

    def __str__(self) -> str:
        bounds = f"{self.low:.2f}-{self.high:.2f}"
        return f"{self.speed_up:.2f}x" + (f" ({bounds})" if self.high - self.low > 0.005 else "")


class Measured(NamedTuple):
    """A probe in BF16 and by each recipe that ran; `errors` has those that did not.

    Attributes:
        probe: what was measured.
        rounds_us: µs of a step, by precision and round; rounds of one number belong together.
        gemm_us: µs of the GEMMs of a step in BF16; 0 where no trace has them.
        errors: why a recipe did not run.
    """

    probe: Probe
    rounds_us: dict[str, tuple[float, ...]]
    gemm_us: float = 0.0
    errors: Mapping[str, str] = {}

    @property
    def recipes(self) -> tuple[str, ...]:
        """The recipes that ran, the fastest first."""
        return tuple(sorted((name for name in self.rounds_us if name != BF16), key=self.us))

    @property
    def layers_us(self) -> float:
        """The time in BF16 of the layers: of their GEMMs, or else of all that was measured."""
        return min(self.gemm_us or self.us(BF16), self.us(BF16))

    def us(self, precision: str) -> float:
        """Return the time of a step."""
        return median(self.rounds_us[precision])

    def saved(self, recipe: str) -> Saved:
        """Return what a recipe saves: the median over the rounds, whose extremes do not count."""
        pairs = zip(self.rounds_us[BF16], self.rounds_us[recipe], strict=True)
        gains = sorted(bf16 - fp8 for bf16, fp8 in pairs)
        inner = gains[1:-1] if len(gains) > 3 else gains
        return Saved(median(gains), (inner[-1] - inner[0]) / 2)

    def gain(self, recipe: str) -> Gain:
        """Return how a recipe speeds up the layers themselves, their casts included."""
        return _gain(self.layers_us, self.saved(recipe))

    @property
    def answer(self) -> Answer:
        """Whether the fastest recipe pays."""
        return self.gain(self.recipes[0]).answer if self.recipes else Answer.LOSES


class WholeModel(NamedTuple):
    """The gain of a model by its fastest recipe.

    Attributes:
        recipe: its name.
        layers_us: the time in BF16 of the linear layers.
        gain: how these gain, casts included.
        step_us: the time in BF16 of all that was measured, attention and norms included.
        saved_us: what the recipe saves of it.
    """

    recipe: str
    layers_us: float
    gain: Gain
    step_us: float
    saved_us: float


class Measurement(NamedTuple):
    """What was measured, on what, or why nothing was; what could not run in BF16 itself."""

    probes: tuple[Measured, ...] = ()
    where: Mapping[str, str] = {}
    why_none: str = ""
    failed: Mapping[Probe, str] = {}


def _gain(before: float, saved: Saved) -> Gain:
    """Return the gain of a time in BF16 and what is saved of it."""
    least = before / 1e3  # a noisy round may seem to save more than there was
    saves = (saved.us, saved.us - saved.doubt, saved.us + saved.doubt)
    return Gain(*(before / max(least, before - us) for us in saves))


def whole_model(uses: Iterable[tuple[Measured, Use]]) -> WholeModel | None:
    """Return what a model gains, each probe as often as the model has it.

    None where no recipe ran on all of it, or there is no model.
    """
    of_model = [(one, use) for one, use in uses if use.repeats]
    recipes = dict.fromkeys(name for one, _ in of_model for name in one.recipes)
    complete = [name for name in recipes if all(name in one.rounds_us for one, _ in of_model)]
    models = [_by_recipe(of_model, name) for name in complete]
    return max(models, key=lambda model: model.gain.speed_up, default=None)


def _by_recipe(uses: Sequence[tuple[Measured, Use]], recipe: str) -> WholeModel:
    layers_us = sum(one.layers_us * use.repeats for one, use in uses)
    step_us = sum(one.us(BF16) * use.repeats for one, use in uses)
    saves = [(one.saved(recipe), use.repeats - use.in_bf16) for one, use in uses]
    us = sum(saved.us * count for saved, count in saves)
    doubt = sum(saved.doubt * count for saved, count in saves)  # all may go one way
    return WholeModel(recipe, layers_us, _gain(layers_us, Saved(us, doubt)), step_us, us)


def measure(
    interpreter: Interpreter, plan: Plan, recipes: Sequence[str], **options: object
) -> Measurement:
    """Time every probe in BF16 and by each recipe.

    Args:
        interpreter: the Python that trains.
        plan: what to time, and how often the model has it.
        recipes: torchao's names.
        options: fields of the worker's request besides.
    """
    if not plan:
        return Measurement(why_none="no sizes are known: name some with --shape MxKxN")
    probes = list(plan)[:MAX_PROBES]
    with tempfile.TemporaryDirectory(prefix="fp8verify-measure-") as folder:
        asked = [
            {
                "tokens": probe.tokens,
                "groups": [group._asdict() for group in probe.groups],
                "heads": heads_of(probe.groups),
            }
            for probe in probes
        ]
        request = {**options, "recipes": list(recipes), "probes": asked, "traces": folder}
        try:
            done = subprocess.run(  # noqa: S603 - the user's own Python, our own script
                [interpreter.program, str(_WORKER)],
                input=json.dumps(request),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Measurement(why_none=f"{interpreter.program}: {type(error).__name__}")
        # Libraries print other lines.
        lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
        answers = [json.loads(line.removeprefix(_MARK)) for line in lines]
        if done.returncode or not answers:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            return Measurement(why_none=f"{interpreter.program}: {last[:200]}")
        return read_answers(probes, answers)


def read_answers(probes: Sequence[Probe], answers: Sequence[Mapping[str, Any]]) -> Measurement:
    """Read the lines of the worker: first where it ran, then one for each probe."""
    if "error" in answers[0]:
        return Measurement(why_none=str(answers[0]["error"]))
    where = {name: str(value) for name, value in answers[0].items()}
    found, failed = [], {}
    for probe, answer in zip(probes, answers[1:], strict=True):
        if BF16 in answer["rounds"]:
            found.append(_measured(probe, answer))
        else:
            failed[probe] = str(answer["errors"].get(BF16, "no reason given"))
    return Measurement(tuple(found), where, failed=failed)


def _measured(probe: Probe, answer: Mapping[str, Any]) -> Measured:
    copies = answer["copies"]
    rounds = {name: tuple(us / copies for us in times) for name, times in answer["rounds"].items()}
    gemm_us = 0.0
    with suppress(InputError, OSError):  # without a trace the whole step is all that is known
        gemm_us = _gemm_us(Path(answer["trace"])) / answer["traced_steps"] / copies
    return Measured(probe, rounds, gemm_us, answer["errors"])


def _gemm_us(trace: Path) -> float:
    """Return the µs of the GEMMs of linear layers in a trace."""
    from fp8verify.analysis.gather import gather
    from fp8verify.trace import read_trace

    return sum(row.time_ns for row in gather(read_trace(trace)).survey.linear) / 1e3


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
