"""Measure the tensors of every FP8 layer in one step, by hooks on its modules.

Inputs and weights are measured before the forward pass of the module, gradients when autograd
reaches its output. The training's own tensors are only read.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .casts import GRAD_OUTPUT, INPUT, WEIGHT, Casts, casts_of
from .formats import E4M3
from .measurements import Measurements
from .own_products import Operand, OwnProducts
from .replay import Cast
from .saved_bytes import SavedBytes
from .tensors import capturing, first_tensor, is_fp8, local, measurable, plain

FORWARD_ONLY = -1  # torch._C._current_graph_task_id() outside of a backward pass
TRANSFORMER_ENGINE = "transformer_engine"
# Modules of Transformer Engine that normalise their input before they cast it.
NORMALISES = ("LayerNormLinear", "LayerNormMLP")
MOST_LAYERS = 4096


class Pass:
    """One forward pass of a layer: its input is kept only where its cast shows during the pass."""

    def __init__(self, name: str, module: Any, x: Any, casts: Casts | None) -> None:
        self.name = name
        self.module = module
        self.x = x
        self.casts = casts
        self.saved: SavedBytes | None = None
        self.of_recompute = False
        # Scales of MXFP8 are bytes too, one for 32 values.
        self.least_bytes = x.numel() // 2 if isinstance(x, Tensor) else 0


class NumericsHooks:
    """Hooks on modules, by name, for one step.

    Attributes:
        measured: what was measured.
        unseen: notes on what could not be.
    """

    def __init__(self, modules: Sequence[tuple[str, Any]]) -> None:
        self.measured = Measurements()
        self.unseen: list[str] = []
        self.recomputed_high: list[str] = []
        self._first_was_fp8: set[str] = set()
        self._handles: list[Any] = []
        self._passes: defaultdict[int, list[Pass]] = defaultdict(list)  # by thread
        self._gradient: tuple[str, Tensor] | None = None
        self._own: set[str] = set()
        self._seen: set[str] = set()
        self._expected: set[str] = set()
        self._active = True
        self._lock = threading.RLock()  # data-parallel threads share the table
        for name, module in modules[:MOST_LAYERS]:
            self._hook(name, module)
        self._products = OwnProducts(self._product)

    def remove(self) -> None:
        """Take all hooks off; what is still to come is not measured."""
        self._active = False
        self._products.remove()
        self._flush_gradient()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for thread in list(self._passes):
            for left in self._passes.pop(thread):
                if left.saved is not None:
                    left.saved.close()

    def notes(self) -> Iterator[str]:
        """Yield what a reader should know of layers that were not measured."""
        missed = sorted(self._expected - self._seen)
        if missed:
            layers = "layer" if len(missed) == 1 else "layers"
            yield (
                f"{len(missed)} FP8 {layers} ran no hook in the step (unused, or replayed from a "
                f"CUDA graph): {', '.join(missed[:3])}{' …' if len(missed) > 3 else ''}"
            )
        yield from dict.fromkeys(self.unseen)

    def _hook(self, name: str, module: Any) -> None:
        parameter = weights_of(module)
        if casts_of(module, parameter[0][1] if parameter else None):
            self._expected.add(name)
        self._handles.append(module.register_forward_pre_hook(self._opener(name), with_kwargs=True))
        self._handles.append(module.register_forward_hook(self._closer(name), always_call=True))

    def _opener(self, name: str) -> Any:
        def fp8verify_measure_input(module: Any, args: Any, kwargs: Any) -> None:
            self._guarded(self._before, name, module, args, kwargs)

        return fp8verify_measure_input

    def _closer(self, name: str) -> Any:
        def fp8verify_measure_output(module: Any, _: Any, out: Any) -> None:
            self._guarded(self._after, name, module, out)

        return fp8verify_measure_output

    def _guarded(self, method: Any, *args: Any) -> None:
        """Let no error of ours into the training; the first one ends the measuring."""
        if not self._active or capturing():
            return
        try:
            with self._lock, torch.no_grad():
                method(*args)
        except Exception as error:
            self._active = False
            self.unseen.append(f"measuring ended early: {type(error).__name__}: {error}"[:300])

    def _before(self, name: str, module: Any, args: Any, kwargs: Any) -> None:
        x = plain(first_tensor(args, kwargs))
        weights = weights_of(module)
        casts = casts_of(module, weights[0][1] if weights else None)
        run = Pass(name, module, x, casts)
        run.of_recompute = torch._C._current_graph_task_id() != FORWARD_ONLY
        self._passes[threading.get_ident()].append(run)
        if run.of_recompute:
            run.x = None
            return
        if casts is None:
            return  # the class says nothing: its products will
        run.x = None
        if not casts and not _is_transformer_engine(module):
            return
        self._seen.add(name)
        self._measure_inputs(name, module, x, weights, casts)
        if _is_transformer_engine(module):
            self._watch_bytes(run)

    def _measure_inputs(
        self, name: str, module: Any, x: Any, weights: list[tuple[str, Any]], casts: Casts
    ) -> None:
        if INPUT in casts and type(module).__name__ not in NORMALISES:
            self._add(name, INPUT, x, casts[INPUT], _autocast_type(x, module))
        for part, weight in weights if WEIGHT in casts else ():
            self._add(f"{name}{part}", WEIGHT, plain(weight), casts[WEIGHT])

    def _watch_bytes(self, run: Pass) -> None:
        if type(run.module).__name__ not in NORMALISES:
            return  # the cast of its own input is repeated
        name = run.name

        def seen(data: Tensor) -> None:
            if data.numel() >= run.least_bytes:
                self._guarded(self._bytes, run, data)

        run.saved = SavedBytes(seen)
        if not run.saved.open():
            run.saved = None
            self.unseen.append(
                f"the normalised input of {name} cannot be seen under activation checkpointing"
            )

    def _bytes(self, run: Pass, data: Tensor) -> None:
        casts = casts_of(run.module, None) or {}
        cast = casts.get(INPUT, Cast(E4M3, "tensorwise"))
        self._note(self.measured.add_bytes(run.name, INPUT, data, cast))

    def _after(self, name: str, module: Any, out: Any) -> None:
        passes = self._passes[threading.get_ident()]
        # After an error in a layer further in, its pass is still there.
        while passes and passes[-1].name != name:
            _close(passes.pop())
        if not passes:
            return
        run = passes.pop()
        _close(run)
        self._watch_recompute(run)
        out = first_tensor(out)
        known = bool(run.casts) or name in self._own or self._runs_fp8(run)
        if known and out is not None and out.requires_grad:
            out.register_hook(self._gradient_hook(name, module))

    def _runs_fp8(self, run: Pass) -> bool:
        return _is_transformer_engine(run.module) and bool(getattr(run.module, "fp8", False))

    def _watch_recompute(self, run: Pass) -> None:
        """Find a layer whose recomputation, outside of autocast, is not in FP8 as its pass was."""
        if not _is_transformer_engine(run.module):
            return
        in_fp8 = bool(getattr(run.module, "fp8", False))
        if not run.of_recompute and in_fp8:
            self._first_was_fp8.add(run.name)
        elif run.of_recompute and not in_fp8 and run.name in self._first_was_fp8:
            self.recomputed_high.append(run.name)

    def _gradient_hook(self, name: str, module: Any) -> Any:
        def fp8verify_measure_gradient(gradient: Tensor) -> None:
            self._guarded(self._on_gradient, name, module, gradient)

        return fp8verify_measure_gradient

    def _on_gradient(self, name: str, module: Any, gradient: Tensor) -> None:
        self._flush_gradient()
        weights = weights_of(module)
        casts = casts_of(module, weights[0][1] if weights else None)
        found = plain(gradient)
        if casts is None:
            self._gradient = (name, found)  # until its product comes
        elif GRAD_OUTPUT in casts:
            self._add(name, GRAD_OUTPUT, found, casts[GRAD_OUTPUT])

    def _flush_gradient(self) -> None:
        """Measure a gradient whose cast was not seen, by its values."""
        waiting, self._gradient = self._gradient, None
        if waiting is not None:
            with torch.no_grad():
                self._add(waiting[0], GRAD_OUTPUT, waiting[1], None)

    def _product(self, a: Operand, b: Operand) -> None:
        self._guarded(self._on_product, a, b)

    def _on_product(self, a: Operand, b: Operand) -> None:
        if torch._C._current_graph_task_id() != FORWARD_ONLY:
            self._gradient_product(a)
            return
        passes = self._passes[threading.get_ident()]
        run = passes[-1] if passes else None
        if run is None or run.casts is not None or run.x is None:
            return
        x, weight, b = run.x, plain(getattr(run.module, "weight", None)), b.transposed()
        if not (_same_rows(x, a.values) and _same_shape(weight, b.values)):
            return
        run.x = None  # the first product of a pass is its fprop
        self._own.add(run.name)
        self._seen.add(run.name)
        self._add(run.name, INPUT, x, a.cast())
        self._add(run.name, WEIGHT, weight, b.cast())

    def _gradient_product(self, a: Operand) -> None:
        waiting = self._gradient
        if waiting is not None and _same_rows(waiting[1], a.values):
            self._gradient = None
            self._add(waiting[0], GRAD_OUTPUT, waiting[1], a.cast())

    def _add(
        self,
        layer: str,
        tensor: str,
        x: Any,
        cast: Cast | None,
        as_type: torch.dtype | None = None,
    ) -> None:
        if isinstance(x, Tensor) and x.element_size() == 1 and cast is not None:
            if is_fp8(x) or x.dtype == torch.uint8:
                self._note(self.measured.add_bytes(layer, tensor, x, cast))
        elif measurable(x):
            self._note(self.measured.add(layer, tensor, x, cast, as_type=as_type))

    def _note(self, measured: bool) -> None:
        if not measured:
            self.unseen.append("more layers, or passes of layers, than there is room for")


def _close(run: Pass) -> None:
    if run.saved is not None:
        run.saved.close()


def _is_transformer_engine(module: Any) -> bool:
    return any(cls.__module__.split(".")[0] == TRANSFORMER_ENGINE for cls in type(module).__mro__)


def weights_of(module: Any) -> list[tuple[str, Any]]:
    """Return the matrices of a layer by what to add to its name: ".fc1" of a LayerNormMLP."""
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor):
        return [("", local(weight))]
    return [
        (_part(name), local(parameter))
        for name, parameter in module._parameters.items()
        if parameter is not None and parameter.dim() >= 2
    ]


def _part(name: str) -> str:
    if name.startswith("weight"):  # GroupedLinear's weight0, weight1 … are one layer
        return ""
    return f".{name.removesuffix('_weight')}"


def _autocast_type(x: Any, module: Any) -> torch.dtype | None:
    """Return to what Float8Linear converts its input: torchao/float8/float8_linear.py, forward."""
    if _is_transformer_engine(module) or not measurable(x) or not torch.is_autocast_enabled():
        return None
    kind = torch.get_autocast_dtype("cuda")
    return kind if x.dtype != kind else None


def _same_shape(weight: Any, operand: Tensor) -> bool:
    return isinstance(weight, Tensor) and weight.shape == operand.shape


def _same_rows(x: Any, flat: Tensor) -> bool:
    return bool(measurable(x) and x.shape[-1] == flat.shape[-1] and x.numel() == flat.numel())
