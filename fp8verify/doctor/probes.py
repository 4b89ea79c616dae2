"""What to measure: decoder blocks and other layers of a model, and how often it has them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fp8verify.capture.schema import ModuleRecord
from fp8verify.doctor.decoder import IN_A_BLOCK, Group, Role, block_of, heads_of, is_expert, role_of
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.training import LayerSize
from fp8verify.errors import UsageError

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
    """What is compiled and timed as one: a decoder block of four groups, or one group alone."""

    tokens: int
    groups: tuple[Group, ...]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The distinct sizes among its layers."""
        every = (Shape(self.tokens, g.k, n) for g in self.groups for n in g.outputs)
        return tuple(dict.fromkeys(every))

    @property
    def is_block(self) -> bool:
        """Whether it is a decoder block."""
        return len(self.groups) > 1


class Use(NamedTuple):
    """Where a model has a probe.

    Attributes:
        names: the names of its layers.
        repeats: how often the model has it; 0 for a size that belongs to no model.
        in_bf16: how many of these the model leaves in BF16, as far as is known.
    """

    names: tuple[str, ...] = ()
    repeats: int = 0
    in_bf16: int = 0


Plan = dict[Probe, Use]
_Unit = list[list[ModuleRecord]]


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
    found: Plan = {Probe(s.m, (Group(s.k, (s.n,), _role_by_size(s)),)): Use() for s in given}
    if facts.model is not None and facts.model.modules:
        said = (config.tokens for config in facts.configs if config.tokens)
        rows = tokens or next(said, DEFAULT_TOKENS)
        return {**found, **_of_model(facts.model.modules, rows)}
    for config in facts.configs:
        rows = tokens or config.tokens or DEFAULT_TOKENS
        found |= _of_sizes(config.layers, rows)
    return found


def _role_by_size(shape: Shape) -> Role:
    wide = shape.n >= _LEAST_VOCABULARY and shape.n >= _HEAD_RATIO * shape.k
    return Role.HEAD if wide else Role.OTHER


def _of_model(modules: Sequence[ModuleRecord], tokens: int) -> Plan:
    """Gather the layers of a model to blocks, and blocks that are alike to one probe."""
    any_low = any(module.state in _LOW for module in modules)
    alike: dict[Probe, list[_Unit]] = defaultdict(list)
    for unit in _units(filter(measurable, modules)):
        alike[_probe(unit, tokens, any_low=any_low)].append(unit)
    return {probe: _use(units, any_low=any_low) for probe, units in alike.items()}


def _units(modules: Iterable[ModuleRecord]) -> Iterator[_Unit]:
    """Yield each decoder block as four groups, and every group that is in none as one."""
    groups: dict[tuple[str, Role, int | None], list[ModuleRecord]] = defaultdict(list)
    for module in modules:
        role = role_of(module.fqn)
        owner = module.fqn if role is Role.OTHER else module.fqn.rpartition(".")[0]
        groups[owner, role, module.in_features].append(module)
    blocks: dict[str, _Unit] = defaultdict(list)
    for group in groups.values():
        blocks[block_of(group[0].fqn)].append(group)
    for unit in blocks.values():
        parts = [part for part in unit if role_of(part[0].fqn) in IN_A_BLOCK]
        parts.sort(key=lambda part: IN_A_BLOCK.index(role_of(part[0].fqn)))
        joined = heads_of([_group(part) for part in parts]) is not None
        yield from [parts] if joined else []
        yield from ([part] for part in unit if not (joined and part in parts))


def measurable(module: ModuleRecord) -> bool:
    """Whether the layer reads all tokens: experts share them, by a routing that is unknown."""
    sized = module.kind == "linear" and module.in_features and module.out_features
    return bool(sized) and not is_expert(module.fqn)


def _group(modules: Sequence[ModuleRecord], *, low: bool = True) -> Group:
    outputs = tuple(module.out_features or 0 for module in modules)
    return Group(modules[0].in_features or 0, outputs, role_of(modules[0].fqn), low)


def _low(modules: Iterable[ModuleRecord]) -> bool:
    return any(module.state in _LOW for module in modules)


def _probe(unit: _Unit, tokens: int, *, any_low: bool) -> Probe:
    """Return what to measure of a unit; one of which nothing is in FP8 is measured as a whole."""
    some = any_low and any(map(_low, unit))
    return Probe(tokens, tuple(_group(part, low=not some or _low(part)) for part in unit))


def _use(units: Sequence[_Unit], *, any_low: bool) -> Use:
    parts = zip(*units, strict=True)
    names = tuple(m.fqn for part in parts for group in part for m in group)
    in_bf16 = sum(any_low and not any(map(_low, unit)) for unit in units)
    return Use(names, len(units), in_bf16)


def _of_sizes(layers: Sequence[LayerSize], tokens: int) -> Plan:
    """Gather the layers of a configuration; a size says how many of it read one input."""
    groups: dict[tuple[Role, int], list[LayerSize]] = defaultdict(list)
    for layer in layers:
        if not layer.expert:  # whose tokens are unknown beforehand
            groups[layer.role, layer.k].append(layer)
    found = {_group_of_sizes(sizes): _use_of_sizes(sizes) for sizes in groups.values()}
    block = tuple(sorted(filter(_in_a_block, found), key=lambda g: IN_A_BLOCK.index(g.role)))
    plan: Plan = {}
    if heads_of(block) is not None and len({found[group].repeats for group in block}) == 1:
        names = tuple(name for group in block for name in found[group].names)
        plan[Probe(tokens, block)] = Use(names, found[block[0]].repeats)
    alone = {g: use for g, use in found.items() if not (plan and _in_a_block(g))}
    return plan | {Probe(tokens, (group,)): use for group, use in alone.items()}


def _in_a_block(group: Group) -> bool:
    return group.role in IN_A_BLOCK


def _group_of_sizes(sizes: Sequence[LayerSize]) -> Group:
    outputs = tuple(n for layer in sizes for n in [layer.n] * layer.siblings)
    return Group(sizes[0].k, outputs, sizes[0].role)


def _use_of_sizes(sizes: Sequence[LayerSize]) -> Use:
    names = tuple(layer.name for layer in sizes)
    return Use(names, sizes[0].modules // sizes[0].siblings)
