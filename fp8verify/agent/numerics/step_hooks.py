"""Measure the tensors of every FP8 layer in one step, by hooks on its modules.

Inputs and weights are measured before the forward pass of the module, gradients when autograd
reaches its output. The training's own tensors are only read.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..modules.layer_names import compiles, eager_mode
from .cast_reference import E4M3, FORMATS, Cast
from .gradients import gradient_norm
from .measurements import Measurements
from .module_casts import (
    GRAD_OUTPUT,
    INPUT,
    WEIGHT,
    Casts,
    casts_of,
    is_transformer_engine,
    matrices_of,
    measurable,
    normalizes_input,
    plain,
    recipe_class,
)
from .torch_hooks import ClippingHook, Operand, SavedTensorHook, ScaledMMHook

FORWARD_ONLY = -1  # torch._C._current_graph_task_id() outside of a backward pass
MOST_LAYERS = 4096
NAMED = 3  # layers that a note names


class MeasuredStep:
    """One step with hooks on; `number` is its own."""

    def __init__(self, number: int, modules: list[tuple[str, Any]]) -> None:
        self.number = number
        self._eager = False
        self._hooks = NumericsHooks(modules)
        self._clipping = ClippingHook()

    def begin(self) -> None:
        """Let compiled code run eagerly, in which alone hooks are called.

        Raises:
            RuntimeError: torch is older than 2.6, or this was called from compiled code.
        """
        if compiles():
            eager_mode.enter()
            self._eager = True

    def leave(self) -> None:
        """Take the hooks off; compiled code runs as before."""
        self._hooks.remove()
        self._clipping.remove()
        if self._eager:
            self._eager = False
            eager_mode.leave()

    def result(self, optimizers: Callable[[], list[Any]]) -> dict[str, Any]:
        """Return what was measured; copies it from the GPU."""
        hooks = self._hooks
        rows = hooks.measured.records()
        gradient = gradient_norm(optimizers())
        if gradient is not None:
            gradient["clip_ratio"] = self._clipping.ratio()
        return {
            "step": self.number,
            "time": round(time.time(), 3),
            "rows": rows,
            "recomputed_high": list(dict.fromkeys(hooks.recomputed_high)),
            "gradient": None if gradient is None else {"step": self.number, **gradient},
            "notes": list(hooks.notes(measured=bool(rows))),
        }


class Pass:
    """One forward pass of a layer: its input is kept only where its cast shows during the pass."""

    def __init__(self, name: str, module: Any, x: Any, casts: Casts | None) -> None:
        self.name = name
        self.module = module
        self.x = x if casts is None else None
        self.casts = casts
        self.saved: SavedTensorHook | None = None
        self.is_recompute = torch._C._current_graph_task_id() != FORWARD_ONLY
        # Scales of MXFP8 are bytes too, one for 32 values.
        self.least_bytes = x.numel() // 2 if isinstance(x, Tensor) else 0

    def close(self) -> None:
        """Take off what was put in for this pass."""
        if self.saved is not None:
            self.saved.close()


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
        self._empty: set[str] = set()
        self._unknown: defaultdict[str, set[str]] = defaultdict(set)  # by recipe
        self._active = True
        self._lock = threading.RLock()  # data-parallel threads share the table
        self._hooked = {name for name, _ in modules[:MOST_LAYERS]}
        for name, module in modules[:MOST_LAYERS]:
            self._hook(name, module)
        self._products = ScaledMMHook(self._product)

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
                left.close()

    def notes(self, *, measured: bool = True) -> Iterator[str]:
        """Yield what a reader should know of layers that were not measured."""
        missed = self._expected - self._seen
        if missed:
            yield (
                f"{_layers(missed, 'FP8 ')} ran no hook in the step (unused, or replayed from a "
                f"CUDA graph): {_named(missed)}"
            )
        if self._empty:
            yield (
                f"{_layers(self._empty)} got an input without values (experts without tokens) in "
                f"at least one pass: {_named(self._empty)}"
            )
        for recipe, layers in self._unknown.items():
            yield f"the casts of {recipe} are not measured: {_layers(layers)}, {_named(layers)}"
        yield from dict.fromkeys(self.unseen)
        if not (measured or missed or self._empty or self._unknown or self.unseen):
            yield (
                f"no FP8 cast was seen: none of {_layers(self._hooked)} is of a class whose casts "
                "are known and in FP8, or called torch._scaled_mm"
            )

    def _hook(self, name: str, module: Any) -> None:
        if _casts(module):
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
        x, casts = plain(first_tensor(args, kwargs)), _casts(module)
        run = Pass(name, module, x, casts)
        self._passes[threading.get_ident()].append(run)
        if run.is_recompute:
            run.x = None
            return
        engine = is_transformer_engine(module)
        if casts is None or not (casts or engine):
            return  # of a class that says nothing its products do
        if engine and not casts and getattr(module, "fp8", False):
            self._unknown[recipe_class(module.fp8_meta.get("recipe"))].add(name)
        self._seen.add(name)
        if isinstance(x, Tensor) and not x.numel():
            self._empty.add(name)
        normalizes = engine and normalizes_input(module)
        if INPUT in casts and not normalizes:
            self._add(name, INPUT, x, casts[INPUT], _autocast_type(x, module))
        for part, weight in matrices_of(module) if WEIGHT in casts else ():
            self._add(f"{name}{part}", WEIGHT, plain(weight), casts[WEIGHT])
        if normalizes and casts:
            self._watch_bytes(run)

    def _watch_bytes(self, run: Pass) -> None:
        def seen(data: Tensor) -> None:
            if data.numel() >= run.least_bytes:
                self._guarded(self._bytes, run, data)

        run.saved = SavedTensorHook(seen)
        if not run.saved.open():
            run.saved = None
            self.unseen.append(
                f"the normalized input of {run.name} cannot be seen under activation checkpointing"
            )

    def _bytes(self, run: Pass, data: Tensor) -> None:
        cast = (_casts(run.module) or {}).get(INPUT, Cast(E4M3, "tensorwise"))
        self._note(self.measured.add_bytes(run.name, INPUT, data, cast))

    def _after(self, name: str, module: Any, out: Any) -> None:
        passes = self._passes[threading.get_ident()]
        # After an error in a layer further in, its pass is still there.
        while passes and passes[-1].name != name:
            passes.pop().close()
        if not passes:
            return
        run = passes.pop()
        run.close()
        self._watch_recompute(run)
        out = first_tensor(out)
        known = bool(run.casts) or name in self._own or _runs_fp8(run.module)
        if known and out is not None and out.requires_grad:
            out.register_hook(self._gradient_hook(name, module))

    def _watch_recompute(self, run: Pass) -> None:
        """Find a layer whose recomputation, outside of autocast, is not in FP8 as its pass was."""
        if run.is_recompute and run.name in self._first_was_fp8 and not _runs_fp8(run.module):
            self.recomputed_high.append(run.name)
        elif not run.is_recompute and _runs_fp8(run.module):
            self._first_was_fp8.add(run.name)

    def _gradient_hook(self, name: str, module: Any) -> Any:
        def fp8verify_measure_gradient(gradient: Tensor) -> None:
            self._guarded(self._on_gradient, name, module, gradient)

        return fp8verify_measure_gradient

    def _on_gradient(self, name: str, module: Any, gradient: Tensor) -> None:
        self._flush_gradient()
        casts, found = _casts(module), plain(gradient)
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
            if x.dtype in FORMATS or x.dtype == torch.uint8:
                self._note(self.measured.add_bytes(layer, tensor, x, cast))
        elif measurable(x):
            self._note(self.measured.add(layer, tensor, x, cast, as_type=as_type))

    def _note(self, measured: bool) -> None:
        if not measured:
            self.unseen.append("more layers, or passes of layers, than there is room for")


def _casts(module: Any) -> Casts | None:
    weights = matrices_of(module)
    return casts_of(module, weights[0][1] if weights else None)


def _runs_fp8(module: Any) -> bool:
    return is_transformer_engine(module) and bool(getattr(module, "fp8", False))


def _autocast_type(x: Any, module: Any) -> torch.dtype | None:
    """Return to what Float8Linear converts its input: torchao/float8/float8_linear.py, forward."""
    if is_transformer_engine(module) or not measurable(x) or not torch.is_autocast_enabled():
        return None
    kind = torch.get_autocast_dtype("cuda")
    return kind if x.dtype != kind else None


def _same_shape(weight: Any, operand: Tensor) -> bool:
    return isinstance(weight, Tensor) and weight.shape == operand.shape


def _same_rows(x: Any, flat: Tensor) -> bool:
    return bool(measurable(x) and x.shape[-1] == flat.shape[-1] and x.numel() == flat.numel())


def first_tensor(args: Any, kwargs: dict[str, Any] | None = None) -> Any:
    """Return the first tensor of a call's arguments, or of what it returned."""
    candidates = list(args) if isinstance(args, (tuple, list)) else [args]
    candidates += list((kwargs or {}).values())
    return next((found for found in candidates if isinstance(found, Tensor)), None)


def capturing() -> bool:
    """Whether a CUDA graph is being captured, in which nothing of ours may appear."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def _layers(names: Iterable[str], kind: str = "") -> str:
    count = len(set(names))
    return f"{count} {kind}layer{'' if count == 1 else 's'}"


def _named(names: Iterable[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:NAMED]) + (" …" if len(shown) > NAMED else "")
