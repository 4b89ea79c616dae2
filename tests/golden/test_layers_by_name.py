"""Layers by name in real captures: what autograd's thread launched is joined to its layer.

The captures were recorded without names. An annotation around each forward pass of a linear layer
is added, as `run --layers` would have, named by the order of the calls.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fp8verify import inspect
from fp8verify.analysis.gather import gather
from fp8verify.trace import read_trace

ROOT = Path(__file__).parents[2] / "traces"
# What a call of a linear layer's forward pass is: torchao's and Transformer Engine's function, and
# torch's own operator.
LINEARS = ("matmul_with_hp_or_float8_args", "_Linear", "aten::linear")
LAYER = {"fprop", "dgrad", "wgrad"}


def named(capture: Path, target: Path) -> Path:
    """Write a capture's trace again, with names."""
    with gzip.open(capture / "rank0.json.gz") as file:
        document = json.load(file)
    events = document["traceEvents"]
    calls = [event for event in events if event.get("cat") == "cpu_op" and is_call(event)]
    calls.sort(key=lambda event: float(event["ts"]))
    end = 0.0
    for number, call in enumerate(calls):
        if call["ts"] >= end:  # none inside of another
            end = call["ts"] + call["dur"]
            events.append(annotation(f"{number}.{call['name']}", call))
    target.write_text(json.dumps(document))
    return target


def is_call(event: dict[str, Any]) -> bool:
    args = event["args"]
    return event["name"] in LINEARS and "Sequence number" in args and not args["Fwd thread id"]


def annotation(name: str, call: dict[str, Any]) -> dict[str, Any]:
    around = {"ts": call["ts"] - 0.002, "dur": call["dur"] + 0.004, "args": {}}
    return {**call, **around, "cat": "user_annotation", "name": f"fp8verify:{name}"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Four Float8Linear in three steps, a head, and a first layer that needs no dgrad.
        ("fp8_accelerate", {("fp8", 3): 12, ("bf16", 3): 3, ("bf16", 2): 3}),
        ("fsdp_fp8_all_gather", {("fp8", 3): 42, ("bf16", 3): 3}),
        ("fp8_te_delayed", {("fp8", 3): 30}),
        ("bf16_te_no_autocast", {("bf16", 3): 30}),
    ],
)
def test_every_gemm_has_its_layer_and_every_layer_its_legs(
    captures: Path, tmp_path: Path, name: str, expected: dict[tuple[str, int], int]
) -> None:
    trace = read_trace(named(captures / name, tmp_path / "named.json"), layers=True)
    found = gather(trace, layers=True).named
    assert found is not None
    assert found.unjoined == 0
    kinds: Counter[tuple[str, int]] = Counter()
    for gemms in found.by_layer().values():
        assert all(same.calls == 1 and same.leg.value in LAYER for same in gemms)
        (precision,) = {same.precision.value for same in gemms}
        kinds[precision, len(gemms)] += 1
    assert kinds == expected


def test_a_layer_left_in_bf16_is_told_from_others_of_its_size() -> None:
    report = inspect(ROOT / "fp8_layers_compiled")

    named = report.ranks[0].named_layers
    assert named is not None
    assert (named.source, named.step, named.gemms, named.unjoined) == ("step", 5, 45, 0)
    found = {row.layer: {leg.leg: leg.kernels for leg in row.legs} for row in named.rows}
    parts = [f"attn.{part}_proj" for part in "qkvo"]
    parts += [f"mlp.{part}_proj" for part in ("gate", "up", "down")]
    names = [*(f"layers.{block}.{part}" for block in range(2) for part in parts), "head"]
    assert found == {
        name: dict.fromkeys(
            ("fprop", "dgrad", "wgrad"),
            {"bf16": 1} if name in ("head", "layers.1.attn.k_proj") else {"fp8": 1},
        )
        for name in names
    }
    (left,) = (f.message for f in report.findings if f.code == "layer-not-fp8")
    assert left.endswith("layers.1.attn.k_proj, head")
