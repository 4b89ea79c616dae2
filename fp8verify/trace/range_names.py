"""The names that torch gives to NVTX and roctx ranges under `emit_nvtx` and nsys' --pytorch.

`torch::profiler::impl::getNvtxStr` (torch 2.11) writes the operator, then where known
", seq = N", ", op_id = N", ", sizes = [[…], …]" and ", input_op_ids = […]".
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

import msgspec

from fp8verify.text import lazy_pattern
from fp8verify.trace.columns import PlainInputs

_TAIL = lazy_pattern(r", (?:seq|op_id|sizes|input_op_ids) = ")
_SEQUENCE = lazy_pattern(r", seq = (\d{1,18})")
_SIZES = lazy_pattern(r", sizes = (\[.*?\])(?:, input_op_ids = |$)", re.DOTALL)
# A node of autograd's backward pass; its number is that of the operator which made it.
_NODE = lazy_pattern(r"^autograd::engine::evaluate_function:|Backward\d*$")
_NAMESPACED = lazy_pattern(r"\w+::\w")
# What `record_function` marks: Kineto keeps these apart as annotations, NVTX does not.
_ANNOTATION = lazy_pattern(
    r"ProfilerStep#|Optimizer\.|## Call |nccl:|gloo:|FSDP::|DistributedDataParallel\.|fp8verify:"
    r"|\[pl\]"
)
_MAX_SIZES = 1 << 14
# The number of the forward pass's thread is not in the text: one stands for all.
_FORWARD = "forward"

_sizes = msgspec.json.Decoder(list[object])


class RangeName(NamedTuple):
    """What the text of a range says; `sizes` is still text, `sequence` -1 where there is none."""

    name: str
    is_operator: bool
    is_node: bool = False
    sequence: int = -1
    sizes: str = ""


def parse_range(text: str) -> RangeName:
    """Take the text of a range apart."""
    tail = _TAIL.search(text)
    name = text[: tail.start()] if tail else text
    if _ANNOTATION.match(name) or not (tail or _is_plain_operator(name)):
        return RangeName(name, is_operator=False)
    if tail is None:
        return RangeName(name, is_operator=True)
    rest = text[tail.start() :]
    number, sizes = _SEQUENCE.match(rest), _SIZES.search(rest)
    return RangeName(
        name,
        is_operator=True,
        is_node=number is not None and _NODE.search(name) is not None,
        sequence=int(number[1]) if number else -1,
        sizes=sizes[1] if sizes and len(sizes[1]) < _MAX_SIZES else "",
    )


def _is_plain_operator(name: str) -> bool:
    return _NAMESPACED.match(name) is not None or _NODE.search(name) is not None


def inputs_of(key: tuple[str, bool]) -> PlainInputs:
    """Return what an operator was called with, from its sizes and whether autograd ran it."""
    sizes, is_node = key
    return PlainInputs(dims=_dims(sizes), forward_thread=_FORWARD if is_node else None)


@lru_cache(maxsize=1 << 12)
def _dims(sizes: str) -> tuple[tuple[int, ...], ...]:
    """Return the shapes; a list of tensors has shapes of its own, and counts as having none."""
    try:
        return tuple(map(_shape, _sizes.decode(sizes))) if sizes else ()
    except (ValueError, RecursionError):
        return ()


def _shape(item: object) -> tuple[int, ...]:
    if isinstance(item, list) and all(isinstance(size, int) for size in item):
        return tuple(item)
    return ()
