"""Which linear layers make a decoder block, by their roles and widths."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from fp8verify.doctor.roles import Role


class Group(NamedTuple):
    """Layers of K inputs that read one tensor, so that they share its cast.

    Attributes:
        k: the inputs.
        outputs: those of each layer.
        role: their place.
        low: whether they are in FP8 where the model is.
    """

    k: int
    outputs: tuple[int, ...]
    role: Role
    low: bool = True


class Heads(NamedTuple):
    """How attention cuts its inputs: widths of the queries and of the keys, and of one head."""

    query: int
    key: int
    size: int


IN_A_BLOCK = (
    Role.ATTENTION_IN,
    Role.ATTENTION_OUT,
    Role.FEED_FORWARD_IN,
    Role.FEED_FORWARD_OUT,
)
_HEAD_SIZES = (128, 64, 96, 80, 256, 32, 16, 8)
_SMALL_HEADS_BELOW = 2048  # models as narrow as this mostly have heads of 64
_BLOCK = re.compile(r"(?:.*\.)?\d+(?=\.)")


def block_of(fqn: str) -> str:
    """Return the name of the block that a layer is in: up to its last number; "" for none."""
    found = _BLOCK.match(fqn)
    return found[0] if found else ""


def heads_of(groups: Sequence[Group]) -> Heads | None:
    """Return how attention joins the layers, in the order of `IN_A_BLOCK`; None if none does.

    Their widths must be those of a decoder block: attention and feed-forward read the residual
    stream and write to it, with one layer each; a fused qkv or gate_up is one layer.
    """
    if tuple(group.role for group in groups) != IN_A_BLOCK:
        return None
    into_attention, attention_out, into, out = groups
    width = into_attention.k
    if attention_out.outputs != (width,) or into.k != width or out.outputs != (width,):
        return None
    if into.outputs not in ((out.k,), (out.k, out.k), (2 * out.k,)):
        return None
    return _heads(into_attention.outputs, attention_out.k)


def _heads(outputs: Sequence[int], query: int) -> Heads | None:
    key, odd = divmod(sum(outputs) - query, 2)
    ways = ([query, key, key], [query, 2 * key], [query + 2 * key])
    if odd or key <= 0 or sorted(outputs) not in [sorted(way) for way in ways]:
        return None
    sizes = sorted(_HEAD_SIZES, key=lambda size: size != 64) if query < _SMALL_HEADS_BELOW else ()
    for size in sizes or _HEAD_SIZES:
        if query % size == 0 and key % size == 0 and query % key == 0:
            return Heads(query, key, size)
    return None
