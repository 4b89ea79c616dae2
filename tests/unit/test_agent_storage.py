"""Tensors that are only kept in FP8, in the ways of the libraries that keep them so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch, from the train extra")
from fp8verify.agent import layers  # noqa: E402 - needs torch
from fp8verify.agent.census import stored_in_fp8, take_census  # noqa: E402

pytestmark = pytest.mark.train
nn = torch.nn
FP8 = torch.float8_e4m3fn


class Wrapper(torch.Tensor):  # type: ignore[misc]
    """As quanto's `QBytesTensor`: of another type than what it keeps."""

    @staticmethod
    def __new__(cls, data: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, data.shape, dtype=torch.bfloat16
        )

    def __init__(self, data: Any) -> None:
        self._data = data

    __torch_dispatch__ = None  # type: ignore[assignment]


def kept(way: str, layer: Any) -> None:
    data = layer.weight.detach().to(FP8)
    if way == "parameter":  # kohya, musubi, diffusers, checkpoints of transformers
        layer.weight = nn.Parameter(data, requires_grad=False)
    elif way == "wrapper":
        layer._parameters["weight"] = Wrapper(data)
    elif way == "nested":  # torchao before `Float8Tensor`
        outer = Wrapper(data)
        outer._data = Wrapper(data)
        layer._parameters["weight"] = outer
    elif way == "bytes":  # Transformer Engine
        outer = Wrapper(data.view(torch.uint8))
        outer._fp8_dtype = "DType.kFloat8E4M3"
        layer._parameters["weight"] = outer
    elif way == "buffer":
        layer._parameters["weight"] = None
        layer.register_buffer("packed", data)
        layer.register_buffer("scale", torch.ones(()))
    elif way == "copy":  # beside the weight itself
        layer.register_buffer("copy", data)


@pytest.mark.parametrize(
    "way", ["parameter", "wrapper", "nested", "bytes", "buffer", "copy"]
)
def test_weights_are_found_however_they_are_kept(way: str) -> None:
    layers._modules.clear()
    base = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 16))
    for layer in base:
        kept(way, layer)
    for module in (base, *base):
        layers.remember(module)

    found = stored_in_fp8([])

    one = {
        "what": "weights",
        "dtype": "float8_e4m3fn",
        "count": 2,
        "elements": 2 * 16 * 32,
    }
    assert found == ([] if way == "copy" else [one])


def test_states_of_optimizers_are_no_weights() -> None:
    layers._modules.clear()
    parameter = nn.Parameter(torch.ones(16))
    state = {
        parameter: {
            "step": torch.ones(()),
            "exp_avg": torch.ones(16).to(torch.float8_e5m2),
        }
    }

    found = stored_in_fp8([SimpleNamespace(state=state)])

    assert found == [
        {"what": "optimizer", "dtype": "float8_e5m2", "count": 1, "elements": 16}
    ]


@pytest.mark.parametrize(
    ("activations", "state"),
    [("float8", "fp8_emulated"), (None, HIGH := "high_precision")],
)
def test_fake_quantization_emulates_if_it_rounds_activations(
    activations: str | None, state: str
) -> None:
    qat = pytest.importorskip("torchao.quantization.qat.linear")
    configs = pytest.importorskip("torchao.quantization.qat.fake_quantize_config")
    weights = configs.Float8FakeQuantizeConfig()
    layer = qat.FakeQuantizedLinear(
        16, 32, False, weights if activations else None, weights
    )
    model = nn.Sequential(layer)

    (record,) = take_census([torch.optim.SGD(model.parameters(), lr=0.1)])

    assert record["state"] == state
    assert {record["formats"][leg] for leg in ("dgrad", "wgrad")} == {HIGH}
