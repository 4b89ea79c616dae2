"""What a trace without Kineto cannot say, in one sentence for the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fp8verify.text import clean

if TYPE_CHECKING:
    from fp8verify.trace.columns import Columns


_NO_OPERATORS = (
    "no operators: precision is told by kernel names, GEMMs of an optimizer or of attention count "
    "as the layers', legs and FLOPs are unknown"
)
_NO_TYPES = (
    "operators with the shapes of their inputs, but not with their types: precision is told by "
    "kernel names alone"
)


def limits_of(columns: Columns, tool: str, steps: str | None) -> str:
    """Say what the columns lack, and what was taken for the steps.

    Args:
        columns: of one process, with their steps.
        tool: what recorded them.
        steps: what the ranges are called that count as steps, None for torch.profiler's own.
    """
    ops = columns.ops
    has_operators = len(columns.annotations) < len(ops.name)
    facts = []
    if not has_operators:
        facts.append(_NO_OPERATORS)
    elif not any(inputs.dims for inputs in columns.inputs):
        facts.append("operators without shapes: FLOPs are unknown")
    else:
        facts.append(_NO_TYPES)
    if not columns.steps:
        facts.append("no steps: the window is judged as one")
    told = f"the {tool} trace has {', and '.join(facts)}"
    return (
        told if steps is None else f"{told}; its steps are the ranges called “{clean(steps[:60])}”"
    )
