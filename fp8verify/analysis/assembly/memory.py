"""Lay out the GPU memory of a rank, and what its FP8 modules have to do with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8verify.capture.schema import ModuleRecord, RankMeta
from fp8verify.report.model.numerics import MemoryReport
from fp8verify.text import gib

# What tells Transformer Engine's modules, also below classes of Megatron-LM or a script's own:
# common/recipe/__init__.py, the recipe that the module ran under.
_RECIPES = (
    "DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling",
    "NVFP4BlockScaling", "CustomRecipe",
)  # fmt: skip
# Of captures that recorded neither recipe nor source: transformer_engine/pytorch/module.
_CLASSES = ("LayerNormLinear", "LayerNormMLP", "GroupedLinear")
# Its FP8 parameters, of fp8_model_init: transformer_engine/pytorch/tensor.
_PARAMETERS = ("Float8Tensor", "Float8BlockwiseQTensor", "MXFP8Tensor")


def memory_report(meta: RankMeta | None) -> MemoryReport | None:
    """Lay out the peak of a rank's GPU memory at its last window, and what FP8 adds to it."""
    windows = meta.windows if meta is not None else ()
    found = [window.memory for window in windows if window.memory is not None]
    if not found or meta is None or not found[-1].allocated_peak:
        return None
    return MemoryReport(
        allocated_peak=found[-1].allocated_peak,
        reserved_peak=found[-1].reserved_peak,
        total=found[-1].total,
        why=tuple(_why(meta.modules)),
    )


def _why(modules: Sequence[ModuleRecord]) -> Iterator[str]:
    """Say where FP8 costs and saves memory, by the classes of the converted modules."""
    converted = [module for module in modules if module.state == "fp8"]
    engine = [module for module in converted if _is_transformer_engine(module)]
    dynamic = [module for module in converted if _casts_dynamically(module)]
    parameters = [module for module in engine if module.weight_class in _PARAMETERS]
    cached = [module for module in engine if module.weight_class not in _PARAMETERS]
    if dynamic:
        yield (
            f"{_weights(dynamic)} stay in high precision, and so do the inputs saved for the "
            "backward pass: FP8 saves nothing there, and its copies (1 byte a value) come on top "
            "for as long as a product takes"
        )
    if cached:  # pytorch/module/base.py, get_weight_workspace
        yield (
            f"{_weights(cached)} stay in high precision, with an FP8 copy beside them and where "
            f"the GPU needs it a transposed one: {_bytes(cached)} more, which "
            "fp8_model_init would save"
        )
    if parameters:
        yield f"{_weights(parameters)} are kept in FP8 alone: 1 byte each, 2 with a transpose"
    if engine and any(_saves_inputs_in_fp8(module) for module in engine):
        yield "Transformer Engine saves inputs for the backward pass in FP8: 1 byte a value, not 2"


def _is_transformer_engine(module: ModuleRecord) -> bool:
    if module.recipe in _RECIPES or module.weight_class in _PARAMETERS:
        return True
    if module.source is None:
        return module.class_name in _CLASSES
    return _package(module) == "transformer_engine"


def _casts_dynamically(module: ModuleRecord) -> bool:
    """Whether a module casts values in high precision anew in each pass, as torchao's do.

    A class that is not known may save anything.
    """
    if _is_transformer_engine(module):
        return False
    wraps = (module.weight_class or "").startswith(("Float8Training", "MXFP8Training", "Scaled"))
    return bool(module.recipe) or wraps or _package(module) in ("torchao", "torchtitan")


def _saves_inputs_in_fp8(module: ModuleRecord) -> bool:
    """Whether wgrad, which reads the saved input, reads it in FP8: `backward_override`."""
    return module.format_of("wgrad") != "high_precision" or "dequantized" in (module.scaling or "")


def _package(module: ModuleRecord) -> str:
    return (module.source or "").split(".")[0]


def _weights(modules: Sequence[ModuleRecord]) -> str:
    values, layers = _values(modules), f"{len(modules)} FP8 layer{'s' * (len(modules) != 1)}"
    if values is None:
        return f"the weights of {layers}"
    size = f"{values / 1e9:.2f} billion" if values >= 1e9 else f"{values / 1e6:.1f} million"
    return f"the weights of {layers} ({size} values)"


def _bytes(modules: Sequence[ModuleRecord]) -> str:
    values = _values(modules)
    if values is None:
        return "1 or 2 bytes a value"
    return f"{gib(values)} or {gib(2 * values)}"


def _values(modules: Sequence[ModuleRecord]) -> int | None:
    """Return how many weights they have; None where one does not tell, as experts' number."""
    total = 0
    for module in modules:
        sizes = module.sizes or ((module.out_features or 0, module.in_features or 0),)
        own = sum(rows * columns for rows, columns in sizes)
        if not own or module.kind == "experts":
            return None
        total += own
    return total
