"""Linear layers amid what is around them in a decoder, as a training compiles them.

The compiler fuses casts with the work beside them, and which work that is depends on the whole
graph: a norm whose input is also the residual stream is computed otherwise than one alone. So
decoder blocks are built whole, and cut where the compiler cannot fuse anyway: after attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

BLOCKS = 2  # so that attention's output is also one that the graph itself computes

# What computes the input of a layer outside of a block, and what reads its outputs, by its role.
SURROUNDINGS = {
    "attention in": ("norm", "tensor"),
    "attention out": ("tensor", "residual"),
    "feed-forward in": ("norm", "activation"),
    "feed-forward out": ("activation", "residual"),
    "head": ("norm", "loss"),
    "other": ("norm", "residual"),
}


@torch.library.custom_op("fp8verify::hand_on", mutates_args=(), schema="(Tensor tensor) -> Tensor")  # type: ignore[untyped-decorator]
def hand_on(tensor: Tensor) -> Tensor:
    """Copy a tensor, closed to the compiler: it stands for the layer before, which is a GEMM."""
    return tensor.clone()


@hand_on.register_fake  # type: ignore[untyped-decorator]
def _(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor)


hand_on.register_autograd(lambda _context, gradient: hand_on(gradient.contiguous()))


def build(probe: dict[str, Any]) -> Stack | Alone:
    """Return the module of a probe: a decoder block if it has heads, else its one group alone."""
    return Stack(probe["groups"], probe["heads"]) if probe["heads"] else Alone(probe["groups"][0])


def _linears(group: dict[str, Any]) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(group["k"], n, bias=False) for n in group["outputs"])


def _join(stream: Tensor, branch: Tensor) -> Tensor:
    """Return the residual stream after a layer that wrote `branch`."""
    return stream + hand_on(branch)


class Block(nn.Module):  # type: ignore[misc]
    """All between two attentions: the rest of one decoder block, and the beginning of the next."""

    def __init__(self, groups: list[dict[str, Any]], heads: Sequence[int]) -> None:
        super().__init__()
        width, self.heads = groups[0]["k"], heads
        self.groups = nn.ModuleList(map(_linears, groups))
        self.attention_norm, self.feed_forward_norm = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """Map the residual stream and what attention wrote to those of the next block."""
        into_attention, attention_out, into, out = self.groups
        x = x + attention_out[0](attended)
        read = self.feed_forward_norm(x)
        parts = [layer(read) for layer in into]
        if parts[0].shape[-1] == 2 * out[0].in_features:
            parts = list(parts[0].chunk(2, dim=-1))
        x = x + out[0](activate(parts))
        read = self.attention_norm(x)
        return x, attend([layer(read) for layer in into_attention], *self.heads)


def attend(parts: list[Tensor], query: int, key: int, size: int) -> Tensor:
    """Return causal attention of queries, keys and values, which one or more layers wrote."""
    if len(parts) == 1:
        parts = list(parts[0].split([query, key, key], dim=-1))
    parts = sorted(parts, key=lambda part: part.shape[-1] != query)
    if len(parts) == 2:
        parts = [parts[0], *parts[1].split(key, dim=-1)]
    q, k, v = (part.unflatten(-1, (-1, size)).transpose(1, 2) for part in parts)
    grouped = {"enable_gqa": True} if key != query else {}
    y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, **grouped)
    return y.transpose(1, 2).flatten(2)


class Stack(nn.Module):  # type: ignore[misc]
    """Decoder blocks one after the other."""

    copies = BLOCKS

    def __init__(self, groups: list[dict[str, Any]], heads: Sequence[int]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(groups, heads) for _ in range(BLOCKS))
        self.widths, self.classes = [groups[0]["k"], heads[0]], 0

    def layers_of(self, group: int) -> Iterator[nn.Module]:
        """Yield the layers of a group in each block."""
        return (block.groups[group] for block in self.blocks)

    def forward(self, inputs: list[Tensor], _targets: Tensor | None) -> list[Tensor]:
        """Map the residual stream and what attention wrote to those after the last block."""
        x, attended = inputs
        for block in self.blocks:
            x, attended = block(x, attended)
        return [x, attended]


class Alone(nn.Module):  # type: ignore[misc]
    """Layers that read one input, between what makes it and what reads their outputs."""

    copies = 1

    def __init__(self, group: dict[str, Any]) -> None:
        super().__init__()
        k, outputs = group["k"], group["outputs"]
        self.before, self.after = SURROUNDINGS[group["role"]]
        self.layers = _linears(group)
        if self.before == "norm":
            self.norm = nn.RMSNorm(k)
        if self.after == "residual":
            self.norms = nn.ModuleList(nn.RMSNorm(n) for n in outputs)
        firsts = [k] if self.before == "tensor" else [k, k]
        self.reads = len(firsts)
        self.joins = self.before == "norm" and self.after == "residual" and set(outputs) == {k}
        others = outputs if self.after == "residual" and not self.joins else []
        self.widths = [*firsts, *others]
        self.classes = min(outputs) if self.after == "loss" else 0

    def layers_of(self, _group: int) -> Iterator[nn.Module]:
        """Yield its only group."""
        yield self.layers

    def forward(self, inputs: list[Tensor], targets: Tensor | None) -> list[Tensor]:
        """Map the inputs of the surroundings to what they hand on."""
        x, read = self._input(inputs[: self.reads])
        y = [layer(read) for layer in self.layers]
        if self.after == "loss" and targets is not None:
            return [
                functional.cross_entropy(one.flatten(0, 1).float(), targets.flatten()) for one in y
            ]
        # The residual stream goes on, so that its gradient joins that of the norm.
        stream = [x] if self.before == "norm" and not self.joins else []
        if self.after == "activation":
            return [activate(y), *stream]
        if self.after == "residual":
            others = [x] * len(y) if self.joins else inputs[self.reads :]
            sums = [one + other for one, other in zip(y, others, strict=True)]
            normed = [norm(one) for norm, one in zip(self.norms, sums, strict=True)]
            return [*sums, *normed, *stream]
        return [*y, *stream]

    def _input(self, inputs: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the residual stream, and what the layers read."""
        if self.before == "norm":
            x = _join(*inputs)
            return x, self.norm(x)
        x = inputs[0]
        return x, activate(inputs) if self.before == "activation" else x


def activate(parts: list[Tensor]) -> Tensor:
    """Return SwiGLU of two tensors, GELU of one, SiLU times all others of more."""
    if len(parts) == 1:
        return functional.gelu(parts[0], approximate="tanh")
    result = functional.silu(parts[0])
    for part in parts[1:]:
        result = result * part
    return result
