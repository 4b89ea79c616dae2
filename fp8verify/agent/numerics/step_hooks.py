"""Measure the tensors of every FP8 layer in one step, by hooks on its modules.

Inputs and weights are measured after the forward pass of the module, gradients when autograd
reaches its output; without hooks only the weights, when the step is over. Saved-tensor hooks see
the FP8 bytes that Transformer Engine's modules keep for the backward pass. The functions that clip
gradients are replaced to see the norm before clipping. All hooks are removed when the step ends.
The script's tensors are only read.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

from .. import precision
from ..casts import E4M3, FORMATS, TENSORWISE, Cast
from ..guard import is_the_scripts
from ..layers import matrices_of, measurable, plain
from ..observe import on_calls, register, replaced
from ..precision import GRAD_OUTPUT, INPUT, WEIGHT, Casts
from ..process import captures_graph, on_autograd_thread
from ..stored import is_a, items_of, stored, unseen
from .figures import Measurements
from .scales import gradient_norm

MOST_LAYERS = 4096
NAMED = 3  # layers that a note names
LEAST_BYTES = 1 << 10  # smaller ones hold scales
# `clip_grad_norm_` looks up the first one, from whatever module it was imported; torchtitan and
# others call the second one: torch/nn/utils/clip_grad.py and __init__.py, from 2.6 on.
CLIPPING = (
    (clip_grad, "_clip_grads_with_norm_"),
    (torch.nn.utils, "clip_grads_with_norm_"),
)
_AGAINST_ZERO = 1e-6  # as clip_grad.py has it
CLIPPED = ("parameters", "max_norm", "total_norm")


def watch_calls(
    module: Any,
    name: str,
    parameters: Sequence[str],
    seen: Callable[..., object],
) -> Callable[[], None]:
    """Give `seen` the first arguments of each call of a function; returns what undoes it.

    `parameters` are the names of these arguments, by which any of them may be given.
    """

    def wrap(original: Any) -> Any:
        def fp8verify_call(*args: Any, **kwargs: Any) -> Any:
            by_place = args[: len(parameters)]
            by_name = map(kwargs.get, parameters[len(args) :])
            seen(*by_place, *by_name)
            return original(*args, **kwargs)

        return fp8verify_call

    return replaced(module, name, wrap)


def clip_ratio(calls: list[tuple[Any, Any]]) -> float | None:
    """Return what clipping left of the norm; None if not clipped once. Waits for the GPU."""
    if len(calls) != 1:
        return None
    limit, norm = calls[0]
    # The norm of sharded gradients may be spread too: to add it up takes a collective.
    if type(norm) is not Tensor or norm.numel() != 1:
        return None
    if not isinstance(limit, (int, float)):
        return None
    known = float(norm)
    if not math.isfinite(known):
        return None
    left = float(limit) / (known + _AGAINST_ZERO)
    return min(1.0, left)


class Pass:
    """One forward pass of a layer, with the hooks on the tensors that it saves."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_recompute = on_autograd_thread()
        self.saved_tensors = ExitStack()


class NumericsHooks:
    """Hooks on modules, by name, for one step.

    None of the modules is hooked if none is in FP8, or for the reason `why_not`.

    Attributes:
        measured: what was measured.
        unseen: notes on what could not be measured.
        recomputed_high: layers whose forward pass was in FP8, but not its recomputation.
    """

    def __init__(
        self, modules: Sequence[tuple[str, Any]], why_not: str | None = None
    ) -> None:
        self.measured = Measurements()
        self.unseen: list[str] = []
        self.recomputed_high: dict[str, None] = {}
        self._first_was_fp8: set[str] = set()
        self._clipped: list[tuple[Any, Any]] = []
        self._undo: list[Callable[[], None]] = []
        self._passes: defaultdict[int, list[Pass]] = defaultdict(list)  # by thread
        self._seen: set[str] = set()
        self._empty: set[str] = set()
        self._unknown: defaultdict[str, set[str]] = defaultdict(set)  # by recipe
        self._active = True
        self._lock = threading.RLock()  # data-parallel threads share the table
        modules = modules[:MOST_LAYERS]
        self._hooked = {name for name, _ in modules}
        self._modules = modules
        self._why_not = why_not
        self._expected = {name for name, module in modules if _casts(module)}
        may_be_fp8 = any(_casts(module) is not None for _, module in modules)
        if why_not is None and may_be_fp8:
            before = self._guard(self._before)
            after = self._guard(self._after)
            self._undo.append(on_calls(modules, before, after))
        clips = self._guard(self._on_clipping)
        for module, name in CLIPPING:
            if hasattr(module, name):
                self._undo.append(watch_calls(module, name, CLIPPED, clips))

    def remove(self) -> None:
        """Take all hooks off; what is still to come is not measured."""
        self._active = False
        for undo in self._undo:
            undo()
        self._undo.clear()
        for thread in list(self._passes):
            for left in self._passes.pop(thread):
                left.saved_tensors.close()

    def result(self, step: int, optimizers: Iterable[Any]) -> dict[str, Any]:
        """Return what was measured in a step of that number; copies it from the GPU."""
        if self._why_not is not None:
            for name, module in self._modules:
                self._add_weights(name, module, _casts(module) or {})
        rows = self.measured.records()
        gradient = gradient_norm(optimizers)
        if gradient is not None:
            gradient |= {"step": step, "clip_ratio": clip_ratio(self._clipped)}
        return {
            "step": step,
            "time": round(time.time(), 3),
            "rows": rows,
            "recomputed_high": list(self.recomputed_high),
            "gradient": gradient,
            "notes": list(self.notes(rows)),
        }

    def notes(self, rows: Sequence[object]) -> Iterator[str]:
        """Yield notes on layers that were not measured, beside those of the rows."""
        missed = self._expected - self._seen
        if missed and self._why_not is not None:
            yield (
                f"inputs and output gradients of {_layers(missed, 'FP8 ')} are not measured: "
                f"{self._why_not}"
            )
        elif missed:
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
        if self.measured.is_full:
            yield "more layers, or passes of layers, than there is room for"
        yield from dict.fromkeys(self.unseen)
        is_explained = missed or self._empty or self._unknown or self.unseen
        if not rows and not is_explained:
            yield (
                f"no FP8 cast was seen: none of {_layers(self._hooked)} is of a class whose casts "
                "are known and in FP8"
            )

    def _guard(self, method: Callable[..., None], *first: Any) -> Any:
        """Let no error of ours into the script; the first one ends the measuring."""

        def fp8verify_measure(*args: Any) -> None:
            if not self._active or captures_graph():
                return
            try:
                with self._lock:
                    unseen(method, *first, *args)
            except Exception as error:
                self._active = False
                if is_the_scripts(error):
                    raise
                note = f"measuring ended early: {type(error).__name__}: {error}"
                self.unseen.append(note[:300])

        return fp8verify_measure

    def _before(
        self,
        name: str,
        module: Any,
        args: Any,
    ) -> None:
        run = Pass(name)
        self._passes[threading.get_ident()].append(run)
        if run.is_recompute or not _casts(module):
            return
        if not precision.normalizes_input(module):
            return
        x = plain(first_tensor(args))
        if not self._watch_bytes(run, module, x):
            self.unseen.append(
                f"the normalized input of {name} cannot be seen under activation checkpointing"
            )

    def _watch_bytes(
        self,
        run: Pass,
        module: Any,
        x: Any,
    ) -> bool:
        """Count the tensors of bytes that the pass of `x` saves; return False if not possible.

        Not possible while other hooks are active, as in activation checkpointing: hooks nest,
        and the outer ones would miss what goes to the inner ones.
        """
        seen = self._guard(self._bytes, run.name, module)
        least = LEAST_BYTES
        if isinstance(x, Tensor):
            # Scales of MXFP8 are bytes too, one for 32 values.
            least = max(least, x.numel() // 2)

        def pack(tensor: Tensor) -> Tensor:
            if tensor.dtype == torch.uint8 and tensor.numel() >= least:
                seen(tensor)
            return tensor

        top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
        if top is None or top(False) is not None:
            return False
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        try:
            run.saved_tensors.enter_context(hooks)
        except RuntimeError:  # the script has forbidden them
            return False
        return True

    def _bytes(
        self,
        name: str,
        module: Any,
        data: Tensor,
    ) -> None:
        casts = _casts(module) or {}
        cast = casts.get(INPUT, Cast(E4M3, TENSORWISE))
        self.measured.add_bytes(name, INPUT, data, cast)

    def _after(
        self,
        name: str,
        module: Any,
        args: Any,
        kwargs: Any,
        out: Any,
    ) -> None:
        passes = self._passes[threading.get_ident()]
        # After an error in a layer further in, its pass is still there.
        while passes and passes[-1].name != name:
            passes.pop().saved_tensors.close()
        if not passes:
            return
        run = passes.pop()
        run.saved_tensors.close()
        casts = _casts(module)
        in_fp8 = precision.runs_fp8(module)
        if not run.is_recompute:
            x = plain(first_tensor([*args, *kwargs.values()]))
            self._add_operands(name, module, x, casts)
            if in_fp8:
                self._first_was_fp8.add(name)
        elif name in self._first_was_fp8 and not in_fp8:
            self.recomputed_high[name] = None  # it runs outside of the autocast
        out = first_tensor(out)
        if out is None or out.grad_fn is None:
            return
        if casts or in_fp8:
            self._measure_gradient(name, module, out)

    def _measure_gradient(
        self,
        name: str,
        module: Any,
        out: Tensor,
    ) -> None:
        at = out.output_nr
        measure = self._guard(self._on_gradient, name, module)

        def fp8verify_gradient(gradients: Any) -> None:
            if gradients[at] is not None:
                measure(gradients[at])

        # Not on the tensor: torch warns of hooks on one that is saved.
        node: Any = out.grad_fn
        register(node.register_prehook, fp8verify_gradient)

    def _add_operands(
        self,
        name: str,
        module: Any,
        x: Any,
        casts: Casts | None,
    ) -> None:
        if casts is None:
            return
        if not casts and not precision.is_transformer_engine(module):
            return
        if not casts and precision.runs_fp8(module):
            recipe = items_of(stored(module, "fp8_meta")).get("recipe")
            self._unknown[precision.recipe_class(recipe)].add(name)
        self._seen.add(name)
        if isinstance(x, Tensor) and not x.numel():
            self._empty.add(name)
        if INPUT in casts and not precision.normalizes_input(module):
            as_type = _autocast_type(x, module)
            self._add(name, INPUT, x, casts[INPUT], as_type)
        self._add_weights(name, module, casts)

    def _add_weights(
        self,
        name: str,
        module: Any,
        casts: Casts,
    ) -> None:
        if WEIGHT not in casts:
            return
        for part, weight in matrices_of(module):
            layer = f"{name}{part}"
            self._add(layer, WEIGHT, plain(weight), casts[WEIGHT])

    def _on_gradient(
        self,
        name: str,
        module: Any,
        gradient: Tensor,
    ) -> None:
        casts = _casts(module) or {}
        if GRAD_OUTPUT in casts:
            self._add(name, GRAD_OUTPUT, plain(gradient), casts[GRAD_OUTPUT])

    def _on_clipping(
        self,
        _: Any,
        limit: Any,
        norm: Any,
    ) -> None:
        self._clipped.append((limit, norm))

    def _add(
        self,
        layer: str,
        tensor: str,
        x: Any,
        cast: Cast | None,
        as_type: Any = None,
    ) -> None:
        are_bytes = isinstance(x, Tensor) and x.element_size() == 1
        if are_bytes and cast is not None:
            if x.dtype in FORMATS or x.dtype == torch.uint8:
                self.measured.add_bytes(layer, tensor, x, cast)
        elif measurable(x):
            self.measured.add(layer, tensor, x, cast, as_type)


def _casts(module: Any) -> Casts | None:
    weights = matrices_of(module)
    weight = None
    if weights:
        _, weight = weights[0]
    return precision.casts_of(module, weight)


def _autocast_type(x: Any, module: Any) -> torch.dtype | None:
    """Return to what Float8Linear converts its input: torchao/float8/float8_linear.py, forward."""
    if not torch.is_autocast_enabled() or not measurable(x):
        return None
    if precision.is_transformer_engine(module):
        return None
    kind = torch.get_autocast_dtype("cuda")
    if x.dtype == kind:
        return None
    return kind


def first_tensor(args: Any) -> Any:
    """Return the first tensor of a call's arguments, or of what it returned."""
    candidates = args if isinstance(args, (tuple, list)) else [args]
    for value in candidates:
        if is_a(value, Tensor):
            return value
    return None


def _layers(names: Iterable[str], kind: str = "") -> str:
    count = len(set(names))
    ending = "" if count == 1 else "s"
    return f"{count} {kind}layer{ending}"


def _named(names: Iterable[str]) -> str:
    ordered = sorted(names)
    text = ", ".join(ordered[:NAMED])
    if len(ordered) > NAMED:
        text += " …"
    return text
