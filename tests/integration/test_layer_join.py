"""Layers by name in real traces: torch numbers the nodes of autograd as the join assumes.

A CPU trace holds no kernels, so the test adds one to each product. The layers' sizes differ, so
that the shapes of a product tell its layer without names.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fp8verify.trace import read_trace
from tests.attached import SCRIPTS, execute, python

pytestmark = pytest.mark.train

PRODUCTS = ("aten::mm", "aten::addmm")
STACK = {(16, 32): "up", (32, 48): "down", (48, 64): "head", (64, 80): None}
STEPS = 2


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    script = SCRIPTS / "layer_traces.py"
    done = execute(python(), script, folder, cwd=folder)
    assert done.code == 0, done.stderr
    return folder


def products(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the products that hold no other."""
    found = [e for e in events if e.get("name") in PRODUCTS and e["cat"] == "cpu_op"]
    return [
        outer for outer in found if not any(inside(inner, outer) for inner in found)
    ]


def inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    end, outer_end = inner["ts"] + inner["dur"], outer["ts"] + outer["dur"]
    return inner is not outer and outer["ts"] <= inner["ts"] and end <= outer_end


def kernel_of(product: dict[str, Any], size: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return a launch inside the product and a kernel that is named like its size."""
    number = product["args"]["External id"]
    middle = product["ts"] + product["dur"] / 2
    same = {
        "ph": "X",
        "ts": middle,
        "dur": 0.001,
        "pid": product["pid"],
        "tid": product["tid"],
    }
    args = {"External id": number, "correlation": 10**6 + number}
    return [
        {**same, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": args},
        {
            **same,
            "cat": "kernel",
            "name": json.dumps(size),
            "args": {**args, "device": 0},
        },
    ]


def size_of(product: dict[str, Any]) -> tuple[int, ...]:
    """Return the sizes of a product without the number of tokens: its inputs and outputs."""
    a, b = (shape for shape in product["args"]["Input Dims"] if len(shape) == 2)
    return tuple(sorted({*a, *b} - {7}))


def joined(path: Path) -> Counter[tuple[tuple[int, ...], str | None]]:
    """Count the products by size and layer."""
    document = json.loads(path.read_text())
    events = document["traceEvents"]
    for product in products(events):
        events += kernel_of(product, size_of(product))
    path.with_suffix(".gpu.json").write_text(json.dumps(document))
    trace = read_trace(path.with_suffix(".gpu.json"), layers=True)
    return Counter(
        (
            tuple(json.loads(trace.names[name])),
            trace.layers[layer] if layer >= 0 else None,
        )
        for name, layer in zip(trace.kernels.name, trace.kernels.layer, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "recomputed"),
    [
        ("plain", ()), ("reentrant", ("up", "down")), ("nonreentrant", ("up", "down")),
        ("float8", ()), ("float8 reentrant", ("up", "down")),
        ("float8 nonreentrant", ("up", "down")),
    ],
)  # fmt: skip
def test_every_product_of_three_legs_has_its_layer(
    traces: Path, name: str, recomputed: tuple[str, ...]
) -> None:
    if name.startswith("float8"):
        pytest.importorskip("torchao")
    assert joined(traces / f"{name}.json") == {
        (size, layer): STEPS * (4 if layer in recomputed else 3)
        for size, layer in STACK.items()
    }


def test_layers_in_a_frozen_layer_keep_their_own(traces: Path) -> None:
    products = {((16, 32), "0"): 2, ((4, 16), "0.down"): 3, ((4, 32), "0.up"): 3}
    assert joined(traces / "adapter.json") == {
        of: STEPS * n for of, n in products.items()
    }


def test_what_runs_while_the_error_of_a_layer_is_handled_is_named_by_it(
    traces: Path,
) -> None:
    """The error holds the layer's call, whose end closes its range."""
    products = {((16, 48), "bad"): 1, ((16, 32), "good"): 3, ((32, 80), "bad"): 3}
    assert joined(traces / "rescued.json") == {
        of: STEPS * n for of, n in products.items()
    }
