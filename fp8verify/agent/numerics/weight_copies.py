"""Sample FP8 copies of weights, and their master weights, at the start and end of a window.

torchao's dynamic casts keep no copy between steps, so there is nothing to sample.
Transformer Engine keeps copies in `_fp8_workspaces` where `is_first_microbatch` is given
(pytorch/module/base.py), or as the parameters themselves (`fp8_model_init`, with masters in
Megatron-LM's `main_param` or FusedAdam's state); a script's own module may have one as a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..casts import E4M3, E5M2, FORMATS, Format
from ..layers import local, measurable, plain
from ..stored import (
    fields,
    has_values,
    header,
    is_a,
    items_of,
    pairs_of,
    parameters_of,
    shape_of,
    stored,
)

# All scales in use hold for 32 neighbors of a row, of whatever block.
SEGMENT, SEGMENTS, ACROSS = 32, 64, 8
MOST_COPIES = 4096

Samples = dict[str, "Sample"]  # by layer


class Copy(NamedTuple):
    """One FP8 copy as it is kept.

    Attributes:
        kind: the class of its tensor.
        data: its bytes, as a matrix like its weight.
        inverse: the factor of all values; None for scales by row or block and for unknown scales:
            then the scales that fit best are used.
    """

    kind: str
    format: Format
    data: Tensor
    inverse: Tensor | None


class Sample(NamedTuple):
    """A copy of which `data` are some values, and those of its master at the same places.

    Attributes:
        certain: whether the framework itself names it the copy of this weight.
    """

    copy: Copy
    master: Tensor
    certain: bool


def sample_copies(modules: Iterable[tuple[str, Any]], optimizers: Iterable[Any]) -> Samples:
    """Return the samples of this moment."""
    # By id: a tensor class may define `__hash__`.
    pairs = [pairs_of(stored(optimizer, "state")) for optimizer in optimizers]
    states = [{id(key): state for key, state in of_one} for of_one in pairs]
    samples: Samples = {}
    for name, module in modules:
        for part, tensor, parameter, certain in _kept_by(module):
            copy = copy_of(tensor) if len(samples) < MOST_COPIES else None
            master = copy and _master_of(parameter, states, tensor is parameter)
            if copy and master is not None and copy.data.numel() == master.numel():
                values = _segments(master.reshape(copy.data.shape))
                sample = copy._replace(data=_segments(copy.data))
                samples[f"{name}{part}"] = Sample(sample, values, certain)
    return samples


def _kept_by(module: Any) -> Iterator[tuple[str, Any, Any, bool]]:
    """Yield a suffix for the layer's name, a possible FP8 copy, its parameter, if certain."""
    parameters = parameters_of(module)
    matrices = {name: p for name, p in parameters.items() if len(shape_of(p)) >= 2}
    workspaces = items_of(stored(module, "_fp8_workspaces"))
    for name, tensor in (*matrices.items(), *workspaces.items()):
        if name in matrices:
            yield "" if name == "weight" else f".{name}", tensor, matrices[name], True
    if len(matrices) != 1:
        return
    ((name, parameter),) = matrices.items()
    buffers = items_of(stored(module, "_buffers"))
    for tensor in (*buffers.values(), *fields(module).values()):
        if is_a(tensor, Tensor) and len(shape_of(tensor)) >= 2:
            yield "" if name == "weight" else f".{name}", tensor, parameter, False


def copy_of(tensor: Any) -> Copy | None:
    """Return the FP8 copy in a tensor; None if there is none that can be read."""
    tensor = local(tensor)
    kind = type(tensor).__name__
    if type(tensor) in (Tensor, torch.nn.Parameter) and header(tensor, "dtype") in FORMATS:
        return Copy(kind, FORMATS[tensor.dtype], _matrix(tensor.detach()), None)
    # transformer_engine/pytorch/tensor: data are bytes, `_scale_inv` is multiplied by.
    held = (stored(tensor, name) for name in ("_rowwise_data", "_data", "qdata"))
    data: Any = next((candidate for candidate in held if has_values(candidate)), None)
    transposed = data is None and not stored(tensor, "_transpose_invalid", True)
    if transposed:
        data = stored(tensor, "_transpose")
    if not has_values(data):
        return None
    # On AMD GPUs before MI350 the same names stand for other bytes.
    dtype = "" if torch.version.hip else stored(tensor, "_fp8_dtype", "")
    name = _name_of(dtype)
    known = E5M2 if "E5M2" in name else E4M3 if "E4M3" in name else FORMATS.get(data.dtype)
    if known is None or data.element_size() != 1:
        return None
    inverse, scale = stored(tensor, "_scale_inv"), stored(tensor, "_scale")
    if inverse is None and has_values(scale):  # torchao/float8: Float8TrainingTensor
        inverse = scale.float().reciprocal()
    whole = has_values(inverse) and inverse.numel() == 1
    matrix = _matrix(data).t() if transposed else _matrix(data)
    return Copy(kind, known, matrix, inverse.float().reshape(1).clone() if whole else None)


def _matrix(data: Tensor) -> Tensor:
    return data.view(torch.uint8).reshape(-1, data.shape[-1])


def _name_of(dtype: Any) -> str:
    """Return the name of a member of transformer_engine_torch.DType, which pybind11 made."""
    return str(stored(dtype, "_name_") or getattr(dtype, "name", dtype))


def _master_of(parameter: Any, states: list[Any], is_copy: bool) -> Tensor | None:
    """Return the values in high precision that a copy is cast from; None if they are not here."""
    candidates = [stored(parameter, "main_param")]  # megatron/core/optimizer
    for state in states:
        values = items_of(state.get(id(parameter)))
        candidates += [v for k, v in values.items() if is_a(k, str) and "master" in k]
    if not is_copy:
        candidates.append(plain(parameter))
    for candidate in map(local, candidates):
        if measurable(candidate) and candidate.numel() == prod(shape_of(local(parameter))):
            return candidate.detach()
    return None


def _segments(matrix: Tensor) -> Tensor:
    """Copy segments of rows from a grid over a matrix, without waiting for its device.

    A strided copy, since every run has loaded that kernel: the first `take`, `gather` or index
    of a process costs 15 to 25 ms (H200, torch 2.11).
    """
    rows, columns = matrix.shape
    width = min(SEGMENT, columns)
    blocks = columns // width
    right = ceil(blocks / ACROSS)
    across = ceil(blocks / right)
    along = min(SEGMENTS // across, rows)
    to_row, to_column = matrix.stride()
    steps = (rows // along * to_row, right * width * to_column, to_column)
    grid = matrix.as_strided((along, across, width), steps, matrix.storage_offset())
    return grid.clone(memory_format=torch.contiguous_format).reshape(-1)


def compare(before: Samples, after: Samples) -> list[dict[str, Any]]:
    """Return how copies relate to their masters at both ends of a window; waits for the GPU.

    A copy that was not cast again while its master moved differs from what the master gives at
    either end; one that was cast anew is what the master gave in between.
    """
    records = []
    for layer, now in after.items():
        then, copy = before.get(layer), now.copy
        if then is None or then.copy.data.shape != copy.data.shape:
            continue
        # On the CPU: the samples are a few KB per layer.
        data, old = copy.data.cpu(), then.copy.data.cpu()
        master, earlier = now.master.cpu().float(), then.master.cpu().float()
        unchanged, moved = torch.equal(data, old), float((master != earlier).float().mean())
        off_before, off, likeness = 0.0, 0.0, 1.0
        if unchanged and moved:
            values = data.view(copy.format.dtype).float()
            scale, scale_before = (_scale_of(copy, values, one) for one in (master, earlier))
            off_before = _off(copy.format, data, earlier, scale_before)
            off = _off(copy.format, data, master, scale)
            likeness = 1.0 if now.certain else _cosine(values * scale, master)
        records.append({
            "layer": layer, "kind": copy.kind, "format": copy.format.name,
            "sampled": data.numel(), "unchanged": unchanged, "moved": moved,
            "off_before": off_before, "off": off, "likeness": likeness,
        })  # fmt: skip
    return records


def _cosine(a: Tensor, b: Tensor) -> float:
    """Return the cosine of copy and master, which distinguishes a copy from other tensors."""
    cosine = float(torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=0))
    return cosine if -1 <= cosine <= 1 else 0.0


def _scale_of(copy: Copy, values: Tensor, master: Tensor) -> Tensor:
    """Return the scale of all values, or those that fit best, one for each segment."""
    if copy.inverse is not None:
        return copy.inverse.cpu()
    ratio = (master.abs() / values.abs()).view(-1, min(SEGMENT, len(values)))
    return ratio.nanmedian(dim=1, keepdim=True).values.expand_as(ratio).reshape(-1)


def _off(form: Format, data: Tensor, master: Tensor, scale: Tensor) -> float:
    """Return the share of values more than one unit in the last place from the master's cast."""
    scaled = (master / scale).clamp(-form.largest, form.largest)
    units = _ordinal(data) - _ordinal(scaled.to(form.dtype).view(torch.uint8))
    known = torch.isfinite(master) & torch.isfinite(scale) & (scale > 0)
    return float(((units.abs() > 1) & known).float().mean())


def _ordinal(data: Tensor) -> Tensor:
    """Number FP8 bytes by their values: neighbors differ by one, both zeros are 0."""
    number = data.to(torch.int16)
    return torch.where(number < 0x80, number, 0x80 - number)
