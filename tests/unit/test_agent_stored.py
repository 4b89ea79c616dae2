"""What the agent looks at runs no code: a model that is looked at trains as it would alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

torch = pytest.importorskip("torch", reason="needs torch, from the train extra")
from torch.nn.utils import parametrizations, parametrize  # noqa: E402 - needs torch
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from fp8verify.agent import layers  # noqa: E402
from fp8verify.agent.census import take_census  # noqa: E402
from fp8verify.agent.hooks import _version  # noqa: E402
from fp8verify.agent.instruments import InstrumentContext, InstrumentSet  # noqa: E402
from fp8verify.agent.numerics import Numerics  # noqa: E402

pytestmark = pytest.mark.train
nn = torch.nn


def runs(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("code of the model ran")


class Meta(type):
    __eq__ = __hash__ = __instancecheck__ = __subclasscheck__ = runs  # type: ignore[assignment]


class Weight(nn.Parameter):  # type: ignore[misc, name-defined]
    """A tensor class that sees each function of torch, and cannot be compared."""

    shape = dtype = grad = property(runs)
    __eq__ = __hash__ = __getattr__ = runs

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> NoReturn:
        runs()


class Touchy(nn.Linear, metaclass=Meta):  # type: ignore[misc, name-defined]
    """A linear layer of which nothing may be touched but what it stores."""

    __eq__ = __hash__ = __getattr__ = __getattribute__ = __bool__ = __len__ = runs
    parameters = named_parameters = modules = named_modules = children = runs
    config = fp8 = fp8_meta = tp_group = property(runs)


class Computed(nn.Module):  # type: ignore[misc, name-defined]
    """A parametrization that counts its calls."""

    calls = 0

    def forward(self, weight: Any) -> Any:
        Computed.calls += 1
        return weight * 2


class Property(nn.Linear):  # type: ignore[misc, name-defined]
    """A hypernetwork's: its weight is computed from parameters of another name."""

    weight = property(runs)


class Optimizer(torch.optim.SGD):  # type: ignore[misc, name-defined]
    """An optimizer that computes its groups."""

    reads = 0

    @property
    def param_groups(self) -> Any:
        """Return the groups, and count that they were asked for."""
        type(self).reads += 1
        return vars(self)["param_groups"]

    @param_groups.setter
    def param_groups(self, value: Any) -> None:
        vars(self)["param_groups"] = value


class Functions(TorchFunctionMode):  # type: ignore[misc]
    def __torch_function__(self, *_: Any, **__: Any) -> NoReturn:
        runs()


class Operators(TorchDispatchMode):  # type: ignore[misc]
    def __torch_dispatch__(self, *_: Any, **__: Any) -> NoReturn:
        runs()


def touchy() -> Any:
    layer = nn.Linear(16, 32)
    layer.weight.__class__ = Weight
    layer.__class__ = Touchy
    return layer


def look(optimizer: Any) -> dict[str, dict[str, Any]]:
    """Take everything that a window takes by default, while modes of the script are active."""
    layers._modules.clear()
    layers._searched.clear()
    context = InstrumentContext(
        {
            "numerics": False,
            "numerics_every": 0,
            "numerics_eager": False,
            "live": False,
        },
        lambda: [optimizer],
        own=lambda: [optimizer],
    )
    instruments = InstrumentSet(context, [Numerics])
    with Operators(), Functions():
        instruments.call("before_window")
        instruments.call("begin")
        instruments.call("end")
        version = _version(optimizer)
        found = take_census([optimizer])
    assert instruments._instruments, "an instrument failed"
    assert version >= 0
    return {record["fqn"]: record for record in found}


def test_modules_and_tensors_that_may_not_be_touched() -> None:
    layer = touchy()
    model = nn.Module()
    model._modules["first"] = layer
    weight = layers.weight_of(layer)
    optimizer = SimpleNamespace(param_groups=[{"params": [weight]}], state={})

    record = look(optimizer)["first"]

    assert (record["out_features"], record["in_features"]) == (32, 16)
    assert (record["weight_class"], record["class"]) == ("Weight", "Touchy")
    assert (record["state"], record["frozen"], record["training"]) == (
        "unknown",
        False,
        True,
    )


@pytest.mark.parametrize("kind", ["own", "spectral", "weight", "property"])
def test_a_weight_that_is_computed_is_not_computed_for_us(kind: str) -> None:
    layer = nn.Linear(16, 32)
    if kind == "own":
        parametrize.register_parametrization(layer, "weight", Computed())
    elif kind == "property":
        layer._parameters["raw"] = layer._parameters.pop("weight")
        layer.__class__ = Property
    else:
        getattr(parametrizations, f"{kind}_norm")(layer)
    model = nn.Sequential(layer)
    optimizer = Optimizer(model.parameters(), lr=0.1)
    Computed.calls = Optimizer.reads = 0
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()

    record = look(optimizer)["0"]

    assert (record["out_features"], record["in_features"]) == (32, 16)
    assert record["state"] == "unknown"
    assert not record["frozen"]
    assert Computed.calls == Optimizer.reads == 0
    assert torch.equal(random, torch.get_rng_state())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_the_original_of_a_parametrized_weight_stands_for_it() -> None:
    layer = parametrizations.weight_norm(nn.Linear(16, 32, dtype=torch.bfloat16))

    weight = layers.weight_of(layer)

    assert weight is layer.parametrizations.weight.original1
