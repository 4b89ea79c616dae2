"""The linear layers of a model by their sizes: from its modules, or from a configuration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from fp8verify.capture.schema import ModuleRecord
from fp8verify.preflight.tables import MISSING, Values, is_on, value_of, whole
from fp8verify.text import listed, shorten


class LayerSize(NamedTuple):
    """Linear layers of one size: N outputs, K inputs, and how many of them a model has.

    `kind`: "head" for the output head, "expert" for experts, of which only those per token count.
    """

    name: str
    n: int
    k: int
    modules: int = 1
    kind: str = ""


def flops(layers: Iterable[LayerSize]) -> int:
    """Return a number proportional to the FLOPs of layers."""
    return sum(layer.n * layer.k * layer.modules for layer in layers)


def layers_of(modules: Iterable[ModuleRecord]) -> tuple[LayerSize, ...]:
    """Return modules as layers; modules of one size are one entry."""
    names: dict[tuple[int, int], list[str]] = {}
    for module in modules:
        if module.in_features and module.out_features:
            size = (module.out_features, module.in_features)
            names.setdefault(size, []).append(module.fqn)
    layers = []
    for (n, k), fqns in names.items():
        name = listed(shorten(fqns, fqns), 3)
        layers.append(LayerSize(name, n, k, len(fqns)))
    return tuple(layers)


def named(layers: Iterable[LayerSize]) -> str:
    """Return layers as a message names them: K -> N."""
    names = [f"{layer.name} {layer.k} -> {layer.n}" for layer in layers]
    return listed(names, 6)


def layers_from_sizes(
    row: Mapping[str, Any],
    given: Values,
    shards: int,
) -> Iterator[LayerSize]:
    """Yield the linear layers of a decoder by its sizes.

    Args:
        row: the framework, whose `sizes` are the keys; none follow with a key of `unsized`.
        given: the values of a configuration.
        shards: the GPUs that each matrix is split over.
    """
    sizes = row.get("sizes", {})

    def number(name: str) -> int | None:
        key = sizes.get(name, "")
        default = sizes.get(f"{name}_default")
        return whole(given.get(key, default))

    dim = number("dim")
    count = number("layers")
    if dim is None or count is None or _is_unsized(row, given):
        return
    q = dim
    kv = dim
    heads = number("heads")
    if heads:
        head = number("head_dim") or dim // heads
        q = head * heads
        kv = head * (number("kv_heads") or heads)
    q_here = q // shards
    kv_here = max(1, kv // shards)
    yield LayerSize("attention q", q_here, dim, count)
    yield LayerSize("attention k, v", kv_here, dim, 2 * count)
    yield LayerSize("attention o", dim, q_here, count)
    hidden = number("hidden") or _hidden(sizes, given, dim)
    gates = 1
    if "gated" not in sizes or is_on(given.get(sizes["gated"], MISSING)):
        gates = 2
    sparse = 0
    experts = number("experts")
    if experts:
        sparse = count // (number("frequency") or 1)
    dense = count - sparse
    if dense > 0:
        part = hidden // shards
        yield LayerSize("feed-forward in", part, dim, gates * dense)
        yield LayerSize("feed-forward out", dim, part, dense)
    if experts:
        width = number("expert_hidden") or hidden
        active = sparse * (number("top_k") or 1)
        yield LayerSize(
            name="expert feed-forward in",
            n=width,
            k=dim,
            modules=gates * active,
            kind="expert",
        )
        yield LayerSize(
            name="expert feed-forward out",
            n=dim,
            k=width,
            modules=active,
            kind="expert",
        )
    vocabulary = number("vocabulary")
    if vocabulary:
        yield LayerSize("output head", vocabulary, dim, kind="head")


def _is_unsized(row: Mapping[str, Any], given: Values) -> bool:
    """Whether a setting is on with which the layers do not follow from the sizes."""
    settings = [value_of(key, given) for key in row.get("unsized", ())]
    return any(map(is_on, settings))


def _hidden(
    sizes: Mapping[str, Any],
    given: Values,
    dim: int,
) -> int:
    """Return the width of a feed-forward part that is not given: Llama's rule, or four times."""
    if "multiplier" not in sizes:
        return 4 * dim
    factor = given.get(sizes["multiplier"], 1.0)
    is_number = isinstance(factor, (int, float))
    if not is_number or not 0 < factor < 1000:
        factor = 1.0
    width = int(4 * dim * (2 / 3) * factor)
    return 256 * math.ceil(width / 256)
