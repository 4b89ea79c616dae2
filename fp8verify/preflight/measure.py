"""Measure on this GPU whether FP8 pays for the linear layers of a model, in the Python that trains.

Each size is timed alone, with its casts in separate kernels. A compiled model fuses some casts with
neighboring operations, so its gain is at least the measured one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from fp8verify.capture.schema import ModuleRecord
from fp8verify.errors import UsageError
from fp8verify.preflight.checks import Check, Status
from fp8verify.preflight.launch import Facts
from fp8verify.preflight.layers import LayerSize, layers_of
from fp8verify.preflight.machine import answer_of, answers_in
from fp8verify.preflight.tables import said
from fp8verify.text import listed

BF16 = "bf16"
MAX_SHAPES = 24
MARGIN = 0.05  # a gain or loss within it is inconclusive
TIMEOUT_S = 1800.0
DEFAULT_TOKENS = 8192
_HINT = (
    "Attention, norms, optimizer, communication and the CPU's launches are not measured, and in a "
    "compiled model some casts cost less: train some steps in both and ask `fp8verify compare`."
)
_WORKER = Path(__file__).parent / "worker.py"
_LOW = ("fp8", "fp8_module_off", "fp8_emulated")
_EXPERT = re.compile(
    r"(?:^|\.)experts?\.", re.IGNORECASE
)  # they share the tokens among them
Rounds = Mapping[str, Sequence[float]]  # µs of a step by precision


class Shape(NamedTuple):
    """One linear layer: M tokens, K inputs, N outputs."""

    m: int
    k: int
    n: int


def measure(
    facts: Facts,
    shapes: Sequence[str],
    tokens: int | None,
    recipes: Sequence[str],
    **options: Any,
) -> Iterator[Check]:
    """Time every size of the model, and the given sizes, in BF16 and with each recipe.

    Args:
        facts: the model of a dry start, or else configurations with sizes.
        shapes: additional sizes, such as "8192x4096x14336".
        tokens: the tokens of a micro-batch, if no configuration has them.
        recipes: torchao's names.
        options: additional fields of the worker's request.

    Raises:
        UsageError: a shape is invalid.
    """
    layers_by_shape: dict[Shape, list[LayerSize]] = {}
    for text in shapes:
        layers_by_shape[parse_shape(text)] = []
    layers_by_shape |= _of_the_training(facts, tokens)
    asked = list(layers_by_shape)[:MAX_SHAPES]
    compiled = not _runs_eager(facts)
    request = {
        "shapes": asked,
        "recipes": list(recipes),
        "compile": compiled,
        **options,
    }
    where, found = _answers(facts.python.program, request)
    if "error" in where:
        yield said("measured/nothing", why=where["error"])
        return
    versions = f"{where['gpu']}, torch {where['torch']}, torchao {where['torchao']}"
    how = "compiled"
    if not compiled:
        how = "not compiled"
    source = f"measured on {versions}, {how}, each layer alone"
    model: list[Rounds] = []
    for shape, answer in zip(asked, found, strict=True):
        layers = layers_by_shape[shape]
        rounds = answer["rounds"]
        label = _named(shape, layers)
        for name, why in answer["errors"].items():
            label += f"; {name} failed ({why})"
        yield _check(label, rounds, source, code="measured")
        if layers:
            model.append(_of_all(layers, rounds))
    if model:
        sums = _summed(model, (BF16, *recipes))
        left_out = len(layers_by_shape) - len(asked)
        missing = ""
        if left_out:
            missing = f"; {left_out} sizes are left out"
        label = f"the model's linear layers{missing}"
        yield _check(label, sums, source, code="measured-model")


def has_sizes(
    facts: Facts,
    shapes: Sequence[str],
    tokens: int | None,
) -> bool:
    """Whether sizes of layers are known, or were given."""
    return bool(shapes or _of_the_training(facts, tokens))


def _runs_eager(facts: Facts) -> bool:
    """Whether a configuration that asks for FP8 does not compile the model."""
    return any(config.ask and config.compile is False for config in facts.configs)


def _of_all(
    layers: Sequence[LayerSize],
    rounds: Rounds,
) -> dict[str, list[float]]:
    """Return the µs of all layers of one size, of which one was timed."""
    count = sum(layer.modules for layer in layers)
    of_all = {}
    for name, times in rounds.items():
        of_all[name] = [count * us for us in times]
    return of_all


def _summed(model: Sequence[Rounds], precisions: Iterable[str]) -> Rounds:
    """Add up the sizes of a model, for the precisions in which each of them ran."""
    ran_everywhere = set.intersection(*map(set, model))
    sums = {}
    for name in precisions:
        if name in ran_everywhere:
            rounds = zip(*map(itemgetter(name), model), strict=True)
            sums[name] = list(map(sum, rounds))
    return sums


def parse_shape(text: str) -> Shape:
    """Read "8192x4096x14336": tokens, inputs and outputs of a layer.

    Raises:
        UsageError: it is invalid.
    """
    match = re.fullmatch(r"(\d{1,8})[x,](\d{1,7})[x,](\d{1,7})", text.strip().lower())
    sizes = tuple(map(int, match.groups())) if match else ()
    if len(sizes) != 3 or not all(sizes):
        raise UsageError(
            f"{text!r} is not a matrix size.",
            "Pass tokens, inputs and outputs: --shape 8192x4096x14336",
        )
    return Shape(*sizes)


def _of_the_training(
    facts: Facts,
    tokens: int | None,
) -> dict[Shape, list[LayerSize]]:
    """Return the layers that should run in FP8 by size, without experts (unknown tokens)."""
    if facts.model is not None and facts.model.modules:
        linears = [one for one in facts.model.modules if one.kind == "linear"]
        # Before accelerate's prepare() none is converted, and all are measured.
        low = [one for one in linears if one.state in _LOW]
        layers = layers_of(filter(_sees_all_tokens, low or linears))
    else:
        layers = ()
        for config in facts.configs:
            layers += config.layers
    m = tokens or _tokens_of(facts)
    found: dict[Shape, list[LayerSize]] = {}
    for layer in layers:
        if layer.kind != "expert":
            found.setdefault(Shape(m, layer.k, layer.n), []).append(layer)
    return found


def _sees_all_tokens(module: ModuleRecord) -> bool:
    return _EXPERT.search(module.fqn) is None


def _tokens_of(facts: Facts) -> int:
    """Return the tokens of a micro-batch by the first configuration that has them."""
    for config in facts.configs:
        if config.tokens:
            return config.tokens
    return DEFAULT_TOKENS


def _answers(
    program: str,
    request: Mapping[str, Any],
) -> tuple[Any, list[Any]]:
    """Return where the worker ran, or its "error", and its answer for each shape."""
    if not request["shapes"]:
        return {
            "error": "no sizes are known: name some with --shape MxKxN, or measure all sizes for "
            "`inspect` with --save-rates FILE"
        }, []
    given = json.dumps(request)
    code, out, err = answer_of(
        program,
        str(_WORKER),
        given=given,
        timeout=TIMEOUT_S,
    )
    answers = answers_in(out)
    if code or not answers:
        last = (err.strip().splitlines() or ["it printed nothing"])[-1]
        return {"error": f"{program}: {last[:200]}"}, []
    return answers[0], answers[1:]


def _check(
    label: str,
    rounds: Rounds,
    source: str,
    *,
    code: str,
) -> Check:
    """Say what the fastest recipe gains; rounds of one number belong together."""
    recipes = [name for name in rounds if name != BF16]
    recipes.sort(key=lambda name: median(rounds[name]))
    if BF16 not in rounds or not recipes:
        hint = "Measure fewer tokens with --tokens where memory is short."
        return Check(
            code=code,
            status=Status.SKIPPED,
            message=f"{label}: could not be measured",
            hint=hint,
            source=source,
        )
    told = []
    for name in recipes:
        gained = _gained(rounds, name)
        told.append(f"{name} {_ms(rounds[name])} with casts, {gained}")
    _, low, high = _gain(rounds, recipes[0])
    answer = "cannot tell"
    status = Status.SKIPPED
    if low >= 1 + MARGIN:
        answer = "pays"
        status = Status.OK
    elif high <= 1 / (1 + MARGIN):
        answer = "does not pay alone"
        status = Status.WARN
    message = f"{label}: BF16 {_ms(rounds[BF16])} a step, {'; '.join(told)}: {answer}"
    return Check(
        code=code,
        status=status,
        message=message,
        hint=_HINT,
        source=source,
    )


def _gain(rounds: Rounds, recipe: str) -> tuple[float, float, float]:
    """Return how many times as fast FP8 is, and its bounds by all rounds but the extremes."""
    pairs = zip(rounds[BF16], rounds[recipe], strict=True)
    ratios = sorted(bf16 / fp8 for bf16, fp8 in pairs)
    inner = ratios[1:-1] or ratios
    return median(ratios), inner[0], inner[-1]


def _gained(rounds: Rounds, recipe: str) -> str:
    speed_up, low, high = _gain(rounds, recipe)
    bounds = ""
    if high - low > 0.005:
        bounds = f" ({low:.2f}-{high:.2f})"
    return f"{speed_up:.2f}x{bounds}"


def _ms(rounds: Sequence[float]) -> str:
    return f"{median(rounds) / 1e3:.2f} ms"


def _named(shape: Shape, layers: Sequence[LayerSize]) -> str:
    names = ""
    if layers:
        names = f" ({listed([layer.name for layer in layers], 3)})"
    count = sum(layer.modules for layer in layers)
    often = f", {count} times" if count > 1 else ""
    return f"{shape.m} tokens, {shape.k} -> {shape.n}{names}{often}"
