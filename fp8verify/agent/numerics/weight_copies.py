"""Sample the FP8 copies of weights, and the masters that they are cast from, at a window's ends.

Where no copy is kept between steps, as in torchao's dynamic casts, there is nothing to sample.
Transformer Engine keeps copies in `_fp8_workspaces` where `is_first_microbatch` is given
(pytorch/module/base.py), or as the parameters themselves (`fp8_model_init`, with masters in
Megatron-LM's `main_param` or FusedAdam's state); a script's own module may hold one as a tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .cast_reference import E4M3, E5M2, FORMATS, Format
from .module_casts import local, measurable, plain

# All scales in use hold for 32 neighbours of a row, of whatever block.
SEGMENT, SEGMENTS = 32, 64
MOST_COPIES = 4096
_GOLDEN = 0.6180339887498949


class Copy(NamedTuple):
    """One FP8 copy as it is kept.

    Attributes:
        kind: the class of the tensor that holds it.
        data: its bytes, in the shape of its weight or, if `transposed`, the other way around.
        inverse: what all values are multiplied by; None for scales by row or block, or unknown
            ones, for which those that fit best are taken.
    """

    kind: str
    format: Format
    data: Tensor
    transposed: bool
    inverse: Tensor | None


class Sampled(NamedTuple):
    """Values of a copy and its master at the same places; `inverse` is None where not known."""

    kind: str
    format: Format
    data: Tensor
    inverse: Tensor | None
    master: Tensor


class WeightCopies:
    """The samples of one moment, by layer."""

    def __init__(
        self, modules: Iterable[tuple[str, Any]], optimizers: Iterable[Any], places: Places
    ) -> None:
        states = [optimizer.state for optimizer in optimizers]
        self.samples: dict[str, Sampled] = {}
        for name, module in modules:
            for part, tensor, parameter in _kept_by(module):
                copy = copy_of(tensor)
                master = _master_of(parameter, states, tensor is parameter)
                if copy is None or master is None or copy.data.numel() != master.numel():
                    continue
                if len(self.samples) < MOST_COPIES:
                    self.samples[f"{name}{part}"] = _sample(copy, master, places)


class Places:
    """Which values of a weight are sampled, kept by its shape."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Tensor, Tensor]] = {}

    def of(self, shape: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
        """Return rows and columns of segments that are spread over a matrix."""
        if (shape, device) not in self._known:
            rows, columns = shape
            width = min(SEGMENT, columns)
            of_row = columns // width
            count = min(SEGMENTS, rows * of_row)
            part = torch.arange(count, device=device, dtype=torch.float64)
            start = ((part + ((part + 1) * _GOLDEN).frac()) * (rows * of_row / count)).long()
            within = torch.arange(width, device=device)
            row = (start // of_row).unsqueeze(1).expand(-1, width)
            column = (start % of_row * width).unsqueeze(1) + within
            self._known[shape, device] = row.reshape(-1), column.reshape(-1)
        return self._known[shape, device]


def _kept_by(module: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield what to add to the layer's name, a tensor that may be an FP8 copy, its parameter."""
    parameters = {name: p for name, p in module._parameters.items() if p is not None}
    matrices = {name: p for name, p in parameters.items() if p.dim() >= 2}
    for name, parameter in matrices.items():
        yield _part(name), parameter, parameter
    workspaces = getattr(module, "_fp8_workspaces", None)
    for name, tensor in workspaces.items() if isinstance(workspaces, dict) else ():
        if name in matrices:
            yield _part(name), tensor, matrices[name]
    if len(matrices) != 1:
        return
    ((name, parameter),) = matrices.items()
    for tensor in (*module._buffers.values(), *vars(module).values()):
        if isinstance(tensor, Tensor) and tensor.dim() >= 2:
            yield _part(name), tensor, parameter


def _part(name: str) -> str:
    return "" if name == "weight" else f".{name}"


def copy_of(tensor: Any) -> Copy | None:
    """Return the FP8 copy that a tensor holds; None if it holds none that can be read."""
    tensor = local(tensor)
    kind = type(tensor).__name__
    if type(tensor) in (Tensor, torch.nn.Parameter) and tensor.dtype in FORMATS:
        return Copy(kind, FORMATS[tensor.dtype], tensor.detach().view(torch.uint8), False, None)
    # transformer_engine/pytorch/tensor: data are bytes, `_scale_inv` is multiplied by.
    name = next((n for n in ("_rowwise_data", "_data", "qdata") if _tensor(tensor, n)), None)
    transposed = name is None and not getattr(tensor, "_transpose_invalid", True)
    data = getattr(tensor, "_transpose" if transposed else name or "", None)
    if not isinstance(data, Tensor):
        return None
    # On AMD GPUs before MI350 the same names stand for other bytes.
    kept = "" if torch.version.hip else str(getattr(tensor, "_fp8_dtype", ""))
    known = E5M2 if "E5M2" in kept else E4M3 if "E4M3" in kept else FORMATS.get(data.dtype)
    if known is None or data.element_size() != 1:
        return None
    inverse = getattr(tensor, "_scale_inv", None)
    if inverse is None and _tensor(tensor, "_scale"):  # torchao/float8: Float8TrainingTensor
        inverse = tensor._scale.float().reciprocal()
    if inverse is not None and inverse.numel() != 1:
        inverse = None
    return Copy(kind, known, data.view(torch.uint8), transposed, inverse)


def _tensor(holder: Any, name: str) -> bool:
    return isinstance(getattr(holder, name, None), Tensor)


def _master_of(parameter: Any, states: list[Any], is_copy: bool) -> Tensor | None:
    """Return the values in high precision that a copy is cast from; None if they are not here."""
    candidates = [getattr(parameter, "main_param", None)]  # megatron/core/optimizer
    for state in states:
        kept = state.get(parameter) if hasattr(state, "get") else None
        candidates += [v for k, v in (kept or {}).items() if "master" in str(k)]
    if not is_copy:
        candidates.append(plain(parameter))
    for found in candidates:
        found = local(found)
        if measurable(found) and found.numel() == local(parameter).numel():
            return found.detach()
    return None


def _sample(copy: Copy, master: Tensor, places: Places) -> Sampled:
    data = copy.data
    shape = (data.shape[-1], data[..., 0].numel()) if copy.transposed else (
        data[..., 0].numel(), data.shape[-1]
    )  # fmt: skip
    row, column = places.of(shape, data.device)
    place = row * shape[1] + column
    of_copy = column * shape[0] + row if copy.transposed else place
    inverse = copy.inverse
    # `take` reads any strides, and copies.
    return Sampled(
        copy.kind,
        copy.format,
        data.take(of_copy),
        None if inverse is None else inverse.float().reshape(1).expand(len(row)).clone(),
        master.take(place.to(master.device)).to(data.device, torch.float32),
    )


def compare(before: WeightCopies, after: WeightCopies) -> list[dict[str, Any]]:
    """Return how copies relate to their masters at both ends of a window; waits for the GPU.

    A copy that was not cast again while its master moved differs from what the master gives at
    either end; one that was cast anew is what the master gave in between.
    """
    groups: defaultdict[Any, list[str]] = defaultdict(list)
    for layer, now in after.samples.items():
        earlier = before.samples.get(layer)
        if earlier is not None and earlier.data.shape == now.data.shape:
            key = (now.format, now.data.shape, now.data.device, now.inverse is None)
            groups[key].append(layer)
    records = []
    for (format_, *_), layers in groups.items():
        found = [after.samples[layer] for layer in layers]
        figures = _figures(format_, [before.samples[layer] for layer in layers], found).tolist()
        for layer, one, (unchanged, moved, off_before, off, likeness) in zip(
            layers, found, figures, strict=True
        ):
            records.append(
                {
                    "layer": layer,
                    "kind": one.kind,
                    "format": format_.name,
                    "sampled": one.data.numel(),
                    "unchanged": unchanged == 1,
                    "moved": moved,
                    "off_before": off_before,
                    "off": off,
                    "likeness": likeness if -1 <= likeness <= 1 else 0.0,
                }
            )
    return records


def _figures(format_: Format, then: list[Sampled], now: list[Sampled]) -> Tensor:
    """Return for each copy: unchanged, share of the master moved, shares off, likeness."""
    data, old = torch.stack([s.data for s in now]), torch.stack([s.data for s in then])
    master = torch.stack([s.master for s in now])
    earlier = torch.stack([s.master for s in then])
    values = data.view(format_.dtype).float()
    known = [s.inverse for s in now if s.inverse is not None]
    likely = values * (torch.stack(known) if known else _fitted(values, master))
    return torch.stack(
        (
            (data == old).all(dim=1).float(),
            (master != earlier).float().mean(dim=1),
            *(
                _off(format_, data, one, torch.stack(known) if known else _fitted(values, one))
                for one in (earlier, master)
            ),
            torch.nn.functional.cosine_similarity(likely.double(), master.double(), dim=1),
        ),
        dim=1,
    )


def _fitted(values: Tensor, master: Tensor) -> Tensor:
    """Return the scales that fit best, one for each segment."""
    width = min(SEGMENT, values.shape[1])
    ratio = (master.abs() / values.abs()).view(len(values), -1, width)
    return ratio.nanmedian(dim=2, keepdim=True).values.expand_as(ratio).reshape(values.shape)


def _off(format_: Format, data: Tensor, master: Tensor, inverse: Tensor) -> Tensor:
    """Return the share of values more than one unit in the last place from the master's cast."""
    scaled = (master / inverse).clamp(-format_.largest, format_.largest)
    expected = scaled.to(format_.dtype).view(torch.uint8)
    known = torch.isfinite(master) & torch.isfinite(inverse) & (inverse > 0)
    return (((_ordinal(data) - _ordinal(expected)).abs() > 1) & known).float().mean(dim=1)


def _ordinal(data: Tensor) -> Tensor:
    """Number FP8 bytes by their values: neighbours differ by one, both zeros are 0."""
    number = data.to(torch.int16)
    return torch.where(number < 0x80, number, 0x80 - number)
