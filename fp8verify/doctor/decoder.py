"""What a linear layer is in a decoder, by its name; which layers make a block, by their widths."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple


class Role(str, Enum):
    """The place of a linear layer; `OTHER` is one whose name says nothing."""

    ATTENTION_IN = "attention in"
    ATTENTION_OUT = "attention out"
    FEED_FORWARD_IN = "feed-forward in"
    FEED_FORWARD_OUT = "feed-forward out"
    HEAD = "head"
    OTHER = "other"


# The last parts of names in the models of transformers, torchtitan, KempnerForge, Megatron-LM,
# litgpt, nanoGPT and timm; a fused qkv or gate_up is one layer of more outputs.
_BY_NAME = {
    Role.ATTENTION_IN: r"w?[qkv]|w?qkv|(?:to_)?[qkv]|[qkv]_?(?:proj|lin|b_proj|a_proj)|qkv_?proj|"
    r"query|key|value|c_attn|query_key_value|linear_qkv|in_proj|attn_in",
    Role.ATTENTION_OUT: r"o|wo|[wo]_?proj|out_?proj|out_lin|linear_proj",
    Role.FEED_FORWARD_IN: r"gate_?proj|up_?proj|gate_up_?proj|w1|w3|w13|fc1|fc_1|fc_2|c_fc|"
    r"dense_h_to_4h|linear_fc1|wi(?:_[01])?|lin1|intermediate",
    Role.FEED_FORWARD_OUT: r"down_?proj|w2|fc2|dense_4h_to_h|linear_fc2|lin2",
    Role.HEAD: r"lm_head|head|output|output_(?:layer|head|proj)|embed_out|unembed|vocab_proj",
}
_PATTERNS = {role: re.compile(text, re.IGNORECASE) for role, text in _BY_NAME.items()}
# Names that mean one thing in attention and another in a feed-forward part.
_SHARED = re.compile(r"c_proj|dense|proj|output", re.IGNORECASE)
_ATTENTION = re.compile(r"att(?:n|ention)", re.IGNORECASE)
_FEED_FORWARD = re.compile(r"mlp|ffn?(?![a-z])|feed_?forward|output", re.IGNORECASE)
_EXPERT = re.compile(r"(?:^|\.)experts?\.\d+\.", re.IGNORECASE)
_INDEXED = re.compile(r"(?:^|\.)\d+\.")


def role_of(fqn: str) -> Role:
    """Return the place of the layer of that name."""
    owner, _, name = fqn.rpartition(".")
    if _SHARED.fullmatch(name) and _INDEXED.search(fqn):
        if "intermediate" in owner:
            return Role.FEED_FORWARD_IN
        return _output_of(owner)
    found = (role for role, pattern in _PATTERNS.items() if pattern.fullmatch(name))
    role = next(found, Role.OTHER)
    return Role.OTHER if role is Role.HEAD and _INDEXED.search(fqn) else role


def _output_of(owner: str) -> Role:
    if _ATTENTION.search(owner):
        return Role.ATTENTION_OUT
    return Role.FEED_FORWARD_OUT if _FEED_FORWARD.search(owner) else Role.OTHER


def is_expert(fqn: str) -> bool:
    """Whether the layer is one of many experts, which share the tokens among them."""
    return _EXPERT.search(f"{fqn}.") is not None


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
