"""What the rules read: a configuration's requests in shared terms, and what else is gathered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fp8verify.preflight.documents import Document
from fp8verify.preflight.machine import Gpus, Installed, Interpreter
from fp8verify.text import listed, shorten

if TYPE_CHECKING:
    from fp8verify.capture.schema import ModuleRecord
    from fp8verify.logs.failures import Failure

Values = Mapping[str, Any]


class Ask(NamedTuple):
    """A wish for low precision.

    Attributes:
        format: "fp8", "fp8_block", "mxfp8" or "nvfp4".
        recipe: how it scales, such as "tensorwise", "rowwise" or "delayed", if that is known.
        backend: "torchao", "te" or "msamp", None if the framework chooses.
        key: the key that asks, by which its line is found.
        until: when the framework dropped that key, "" if it has it.
    """

    format: str
    recipe: str | None = None
    backend: str | None = None
    key: str = ""
    until: str = ""


class LayerSize(NamedTuple):
    """Linear layers of one size: N outputs, K inputs, and how many of them a model has.

    `kind`: "head" for an output head, "expert" for experts, of which only those per token count.
    """

    name: str
    n: int
    k: int
    modules: int = 1
    kind: str = ""


def flops(layers: Iterable[LayerSize]) -> int:
    """Return a number proportional to the FLOPs of layers."""
    return sum(layer.n * layer.k * layer.modules for layer in layers)


def layers_of(modules: Iterable[ModuleRecord]) -> tuple[LayerSize, ...]:
    """Return modules as layers; modules of one size are one entry."""
    names: dict[tuple[int, int], list[str]] = {}
    for module in modules:
        if module.in_features and module.out_features:
            names.setdefault((module.out_features, module.in_features), []).append(module.fqn)
    return tuple(
        LayerSize(listed(shorten(fqns, fqns), 3), n, k, len(fqns)) for (n, k), fqns in names.items()
    )


class Config(NamedTuple):
    """A configuration, and its settings for the run.

    Attributes:
        path: its file as the user named it; "the command" for arguments.
        framework: the framework that reads it.
        kind: kind of the document.
        values: its values by dotted key.
        lines: the lines of the keys, 1-based.
        elsewhere: what may add settings, as in `Document`.
        given: its values, and the framework's defaults, by the names that the rules use.
        origins: the keys of `values` by these names.
        branches: those of these names that only a branch of a script gives, as in `Document`.
        ask: the low precision that it requests.
        compile: whether the model is compiled; None if not given.
        checkpointing: whether activations are recomputed in the backward pass; None if not given.
        tensor_parallel: number of GPUs that each matrix is split over.
        deepspeed: whether DeepSpeed runs it.
        layers: the linear layers that follow from its sizes.
        tokens: the tokens of a micro-batch on one GPU; None if not given.
    """

    path: str
    framework: str
    kind: str
    values: Values
    lines: Mapping[str, int]
    elsewhere: str
    given: Values
    origins: Mapping[str, str]
    branches: Mapping[str, int]
    ask: Ask | None = None
    compile: bool | None = None
    checkpointing: bool | None = None
    tensor_parallel: int = 1
    deepspeed: bool = False
    layers: tuple[LayerSize, ...] = ()
    tokens: int | None = None

    @property
    def is_file_of_values(self) -> bool:
        """Whether its values are from a file, not from a command line."""
        return self.kind not in ("shell", "arguments")


def whole(value: Any) -> int | None:
    """Return a positive whole number, also from a string; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 12:
        value = int(value)
    return value if isinstance(value, int) and value > 0 else None


def truth(value: Any) -> bool | None:
    """Return whether a value means yes, as YAML, TOML and command lines write it."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return {"true": True, "yes": True, "1": True, "on": True}.get(
            value.lower(), False if value.lower() in ("false", "no", "0", "off", "none") else None
        )
    return bool(value) if isinstance(value, int) else None


def word(value: Any) -> str:
    """Return a value as a lower-case word; "" for other values."""
    return value.strip().lower() if isinstance(value, str) else ""


def llama_layers(
    dim: int,
    hidden: int,
    layers: int,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    *,
    gated: bool = True,
    shards: int = 1,
) -> tuple[LayerSize, ...]:
    """Return the linear layers of a decoder of these sizes, as split over `shards` GPUs."""
    head = head_dim or dim // (heads or 1)
    q, kv = (head * heads, head * kv_heads) if heads and kv_heads else (dim, dim)
    inner, gates = hidden // shards, 2 if gated else 1
    return (
        LayerSize("attention q", q // shards, dim, layers),
        LayerSize("attention k, v", max(1, kv // shards), dim, 2 * layers),
        LayerSize("attention o", dim, q // shards, layers),
        LayerSize("feed-forward in", inner, dim, gates * layers),
        LayerSize("feed-forward out", dim, inner, layers),
    )


class DryModel(NamedTuple):
    """The result of a dry start.

    Attributes:
        modules: the linear layers of the model, in the order of the model.
        why_none: why no model was found; "" if one was.
        remedy: the next step if none was found.
        causes: known causes of a failure, if it failed.
    """

    modules: tuple[ModuleRecord, ...] = ()
    why_none: str = ""
    remedy: str = ""
    causes: tuple[Failure, ...] = ()


class Missing(NamedTuple):
    """A configuration that a launch names and that is not here: who names it, where, what."""

    path: str
    line: int | None
    framework: str
    file: str


class Facts(NamedTuple):
    """The facts that all rules read.

    Attributes:
        environment: the variables that reach the run.
        configs: the configurations, including those that the command names.
        unread: documents whose framework is not known, among them Python sources.
        missing: configurations that a launch names and that are not on this machine.
        command: what would be run.
        gpus: the GPUs of this machine, or those that were named.
        installed: the packages of the run's Python.
        require_gpu: whether a machine without a GPU fails.
        model: the result of a dry start, None if nothing was started.
    """

    environment: Mapping[str, str]
    configs: tuple[Config, ...] = ()
    unread: tuple[Document, ...] = ()
    missing: tuple[Missing, ...] = ()
    command: tuple[str, ...] = ()
    gpus: Gpus = Gpus()
    installed: Installed = Installed(Interpreter("", "", named=False), {})
    require_gpu: bool = False
    model: DryModel | None = None

    @property
    def asks(self) -> tuple[tuple[Ask, str], ...]:
        """The FP8 requests of the configurations, each with its file."""
        asked = ((config.ask, config.path) for config in self.configs)
        return tuple((ask, path) for ask, path in asked if ask is not None)

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions by distribution."""
        return self.installed.versions
