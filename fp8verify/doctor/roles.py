"""What a linear layer is in a decoder, by its name: that tells what is computed around it."""

from __future__ import annotations

import re
from enum import Enum


class Role(str, Enum):
    """The place of a linear layer; its surroundings are in worker/surroundings.py.

    `OTHER` is a layer whose name says nothing: it is measured after a norm and before a residual.
    """

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
