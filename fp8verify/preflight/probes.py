"""What to measure: the layers of a model that read one input, and how often a model has them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fp8verify.capture.schema import ModuleRecord
from fp8verify.errors import UsageError
from fp8verify.preflight.facts import Facts
from fp8verify.preflight.roles import Role, is_expert, role_of
from fp8verify.preflight.training import LayerSize

DEFAULT_TOKENS = 8192
# A layer this much wider than its input, and as wide as a vocabulary, ends in a loss.
_HEAD_RATIO, _LEAST_VOCABULARY = 6, 16384
_LOW = ("fp8", "fp8_module_off", "fp8_emulated")


class Shape(NamedTuple):
    """One linear layer: M tokens, K inputs, N outputs."""

    m: int
    k: int
    n: int


class Probe(NamedTuple):
    """Layers that read one input, so that they share its cast."""

    tokens: int
    k: int
    outputs: tuple[int, ...]
    role: Role

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The distinct sizes among its layers."""
        return tuple(dict.fromkeys(Shape(self.tokens, self.k, n) for n in self.outputs))


class Use(NamedTuple):
    """Where a model has a probe.

    Attributes:
        layers: the names of its layers.
        repeats: how often the model has it; 0 for a size that belongs to no model.
        converted: whether the model runs it in FP8, as far as is known.
    """

    layers: tuple[str, ...] = ()
    repeats: int = 0
    converted: bool = True


Plan = dict[Probe, Use]


def parse_shape(text: str) -> Shape:
    """Read "8192x4096x14336": tokens, inputs and outputs of a layer.

    Raises:
        UsageError: it is none.
    """
    match = re.fullmatch(r"(\d{1,8})[x,](\d{1,7})[x,](\d{1,7})", text.strip().lower())
    sizes = tuple(map(int, match.groups())) if match else ()
    if len(sizes) != 3 or not all(sizes):
        raise UsageError(
            f"{text!r} is no matrix size.",
            "Pass tokens, inputs and outputs: --shape 8192x4096x14336",
        )
    return Shape(*sizes)


def plan(facts: Facts, given: Sequence[Shape], tokens: int | None) -> Plan:
    """Return what to measure: the sizes given, and those of the model, or else of the files."""
    found: Plan = {Probe(s.m, s.k, (s.n,), _role_by_size(s)): Use() for s in given}
    if facts.model is not None and facts.model.modules:
        said = (config.training.tokens for config in facts.configs if config.training.tokens)
        rows = tokens or next(said, DEFAULT_TOKENS)
        return {**found, **_of_model(facts.model.modules, rows)}
    for config in facts.configs:
        rows = tokens or config.training.tokens or DEFAULT_TOKENS
        found |= _of_sizes(config.training.layers, rows)
    return found


def _role_by_size(shape: Shape) -> Role:
    wide = shape.n >= _LEAST_VOCABULARY and shape.n >= _HEAD_RATIO * shape.k
    return Role.HEAD if wide else Role.OTHER


def _of_model(modules: Iterable[ModuleRecord], tokens: int) -> Plan:
    """Gather the layers of a model; those of one parent, role and input read the same tensor."""
    groups: dict[tuple[str, Role, int | None], list[ModuleRecord]] = defaultdict(list)
    for module in filter(measurable, modules):
        role = role_of(module.fqn)
        owner = module.fqn if role is Role.OTHER else module.fqn.rpartition(".")[0]
        groups[owner, role, module.in_features].append(module)
    alike: dict[Probe, list[list[ModuleRecord]]] = defaultdict(list)
    for (_, role, _), group in groups.items():
        alike[_probe(group, role, tokens)].append(group)
    any_low = any(module.state in _LOW for module in modules)
    return {probe: _use(groups, any_low) for probe, groups in alike.items()}


def measurable(module: ModuleRecord) -> bool:
    """Whether the layer reads all tokens: experts share them, by a routing that nobody knows."""
    sized = module.kind == "linear" and module.in_features and module.out_features
    return bool(sized) and not is_expert(module.fqn)


def _probe(group: Sequence[ModuleRecord], role: Role, tokens: int) -> Probe:
    outputs = tuple(module.out_features or 0 for module in group)
    return Probe(tokens, group[0].in_features or 0, outputs, role)


def _use(groups: Sequence[Sequence[ModuleRecord]], any_low: bool) -> Use:
    layers = [module for group in groups for module in group]
    converted = not any_low or any(module.state in _LOW for module in layers)
    return Use(tuple(module.fqn for module in layers), len(groups), converted)


def _of_sizes(layers: Sequence[LayerSize], tokens: int) -> Plan:
    """Gather the layers of a configuration; a size says how many of it read one input."""
    groups: dict[tuple[Role, int], list[LayerSize]] = defaultdict(list)
    for layer in layers:
        groups[layer.role, layer.k].append(layer)
    found = {}
    for (role, k), group in groups.items():
        outputs = tuple(n for layer in group for n in [layer.n] * layer.siblings)
        names = tuple(layer.name for layer in group)
        found[Probe(tokens, k, outputs, role)] = Use(names, group[0].modules // group[0].siblings)
    return found


def left_out(facts: Facts) -> Iterator[str]:
    """Return the names of layers of the model that are not measured."""
    for module in facts.model.modules if facts.model is not None else ():
        if not measurable(module):
            yield module.fqn
