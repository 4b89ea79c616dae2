"""Layer by layer: the linear modules of the list, joined with the GEMMs of their shapes.

A trace does not name modules, so they are joined by shape: all linears of N outputs and K inputs
are one class, and so are all products of (tokens, K) by (K, N).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple, TypeAlias

from fp8verify.analysis.gemms import GemmRow, gemm_totals, known_flops
from fp8verify.analysis.kinds import Kind, Kinds
from fp8verify.analysis.purpose import purpose_of
from fp8verify.capture.schema import ModuleRecord
from fp8verify.model.layers import LayerRow
from fp8verify.terms import CERTAIN_LEGS, Leg, Precision, Role
from fp8verify.text import patterns
from fp8verify.trace import Trace

# What tells Transformer Engine's modules, also below classes of Megatron-LM or a script's own:
# common/recipe/__init__.py, the recipe that the module ran under.
_RECIPES = (
    "DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling",
    "NVFP4BlockScaling", "CustomRecipe",
)  # fmt: skip
# Its FP8 parameters, of fp8_model_init: transformer_engine/pytorch/tensor.
FP8_PARAMETERS = ("Float8Tensor", "Float8BlockwiseQTensor", "MXFP8Tensor")


# N outputs by K inputs, and whether it is Transformer Engine's: its layers and others of the same
# size are two classes.
_Size: TypeAlias = "tuple[int, int, bool]"


class LayerClass(NamedTuple):
    """All linears of one size, and the GEMMs of that size.

    Attributes:
        row: what the report says of them.
        modules: modules of the module list, if there is one.
        converted: those that compute fprop in low precision, by the list.
        flops: of all GEMMs of this size.
    """

    row: LayerRow
    modules: tuple[ModuleRecord, ...]
    converted: tuple[ModuleRecord, ...]
    flops: int


class Layers(NamedTuple):
    """The classes of a rank, the largest first, and what could not be joined.

    Attributes:
        flops: of all GEMMs, None unless (nearly) all are known.
        apart: modules without a GEMM of their size, for example under tensor parallelism or if they
            did not run.
    """

    classes: tuple[LayerClass, ...] = ()
    flops: float | None = None
    apart: tuple[ModuleRecord, ...] = ()

    def share_of(self, names: Collection[str]) -> float:
        """Share of GEMM FLOPs of some modules, 0 if not known; modules of a size share evenly."""
        whole = 0.0
        for layer_class in self.classes:
            modules = layer_class.modules
            if not modules:
                continue
            named = sum(module.fqn in names for module in modules)
            share = layer_class.row.share_of_flops or 0
            whole += share * named / len(modules)
        return whole


def join_by_size(
    gemms: Sequence[GemmRow],
    modules: Sequence[ModuleRecord] | None,
    steps: int,
) -> Layers:
    """Join the modules of a rank's module list to its GEMMs by size.

    Args:
        gemms: GEMMs of the rank.
        modules: its module list; None if there is none: then the forward GEMMs give the sizes.
        steps: of its windows.
    """
    modules_by_size: dict[_Size, list[ModuleRecord]] = defaultdict(list)
    for module in modules or ():
        for size in _sizes_of(module):
            modules_by_size[size].append(module)
    rows = [row for row in gemms if row.flops and _is_linear(row)]
    sizes = modules_by_size.keys() if modules is not None else _forward_sizes(rows)
    rows_by_size = _rows_by_size(rows, sizes)
    whole = known_flops(gemm_totals(gemms))
    classes = []
    for size, alike in rows_by_size.items():
        layer_class = _class_of(
            size,
            modules_by_size[size],
            alike,
            whole,
            steps,
        )
        classes.append(layer_class)
    classes.sort(key=_largest_first)
    apart = []
    for module in modules or ():
        own = _sizes_of(module)
        if own and rows_by_size.keys().isdisjoint(own):
            apart.append(module)
    return Layers(
        classes=tuple(classes),
        flops=whole,
        apart=tuple(apart),
    )


def _forward_sizes(rows: Iterable[GemmRow]) -> Set[_Size]:
    """Return the sizes that layers may have, by their forward GEMMs."""
    sizes: set[_Size] = set()
    for row in rows:
        if row.leg is Leg.FPROP:
            sizes.update(_fitting(row))
    return sizes


def _rows_by_size(
    rows: Iterable[GemmRow],
    sizes: Set[_Size],
) -> dict[_Size, list[GemmRow]]:
    """Return GEMMs by the first of some sizes that their layer may have."""
    by_size: dict[_Size, list[GemmRow]] = defaultdict(list)
    for row in rows:
        for size in _fitting(row):
            if size in sizes:
                by_size[size].append(row)
                break
    return by_size


def _largest_first(layer_class: LayerClass) -> tuple[int, int, int]:
    return (-layer_class.flops, layer_class.row.n, layer_class.row.k)


def _class_of(
    size: _Size,
    modules: list[ModuleRecord],
    rows: list[GemmRow],
    whole: float | None,
    steps: int,
) -> LayerClass:
    """Return the linears of a size; how often each ran is known if all ran equally often."""
    converted = []
    trained = 0
    for module in modules:
        is_low = module.state in ("fp8", "fp4")
        if is_low and module.format_of("fprop") != "high_precision":
            converted.append(module)
        trained += not module.frozen
    observed = Counter[str]()
    in_fp8 = Counter[str]()
    flops = 0
    for row in rows:
        leg = row.leg.value
        observed[leg] += row.calls
        in_fp8[leg] += row.calls * row.precision.is_low
        flops += row.flops or 0
    passes = _passes(observed["fprop"], len(modules))
    expected = {}
    if passes:
        expected = {
            "fprop": passes * len(modules),
            "dgrad": passes * len(modules),
            "wgrad": passes * trained,
        }
    row_of_report = LayerRow(
        n=size[0],
        k=size[1],
        modules=len(modules),
        converted=len(converted),
        names=tuple(patterns(module.fqn for module in modules)),
        passes=passes,
        passes_per_step=passes / steps if passes and steps else None,
        observed=dict(+observed),
        in_fp8=dict(+in_fp8),
        expected=expected,
        share_of_flops=round(flops / whole, 6) if whole else None,
    )
    return LayerClass(row_of_report, tuple(modules), tuple(converted), flops)


def _passes(runs: int, modules: int) -> int | None:
    """Return how often each of some modules ran; None unless all ran equally often."""
    if not modules or not runs:
        return None
    each, rest = divmod(runs, modules)
    return None if rest else each


def sizes_of(module: ModuleRecord) -> list[tuple[int, int]]:
    """Return (outputs, inputs) of the linear layers of a module, nothing if not known."""
    if module.kind != "linear":
        return []
    own = (module.out_features, module.in_features)
    sizes = module.sizes or (own,)
    return [(n, k) for n, k in sizes if n and k]


def _sizes_of(module: ModuleRecord) -> list[_Size]:
    engine = module.state == "fp8_module_off" or is_transformer_engine(module)
    return [(n, k, engine) for n, k in sizes_of(module)]


def is_transformer_engine(module: ModuleRecord) -> bool:
    """Whether a module is Transformer Engine's, by its recipe, its weight or its class."""
    if module.recipe in _RECIPES or module.weight_class in FP8_PARAMETERS:
        return True
    return package_of(module) == "transformer_engine"


def package_of(module: ModuleRecord) -> str:
    """Return the package of a module's class, empty if not known."""
    package, *_ = (module.source or "").split(".")
    return package


def _is_linear(row: GemmRow) -> bool:
    """Whether a row can be a linear layer's: one GEMM, of known types and leg."""
    if row.kind.role is not Role.GEMM or not row.kind.multiplies:
        return False
    if row.precision is Precision.UNKNOWN:
        return False
    return row.leg in CERTAIN_LEGS


def _fitting(row: GemmRow) -> Iterator[_Size]:
    """Yield the sizes that the layer of a GEMM may have."""
    engine = row.kind.layer_inputs is not None
    return ((n, k, engine) for n, k in row.layer_sizes)


class NamedLayers(NamedTuple):
    """What ran for each layer.

    Attributes:
        rows: the GEMMs of layers; `layer` is empty for GEMMs that certainly belong to none.
        casts: ns in kernels that FP8 needs in addition to its GEMMs, by layer.
        source: "window", or "step" for the eager step after the windows of compiled code, whose
            times are not the run's.
        step: the number of that step, None if there is none.
        note: what is missing, or None.
    """

    rows: Sequence[GemmRow] = ()
    casts: Mapping[str, int] = {}
    source: str = "window"
    step: int | None = None
    note: str | None = None

    def by_layer(self) -> dict[str, list[GemmRow]]:
        """Return the GEMMs of each layer, in the order in which the layers ran first."""
        rows: dict[str, list[GemmRow]] = defaultdict(list)
        for row in self.rows:
            if row.layer:
                rows[row.layer].append(row)
        return rows


def name_casts(trace: Trace, kinds: Kinds) -> Counter[str]:
    """Return the ns that each layer's casts, scales and copies for FP8 took."""
    times = Counter[str]()
    columns = trace.kernels
    if not columns.layer:
        return times  # the trace names none
    for index in kinds.started(_serves_fp8):
        layer = columns.layer[index]
        if layer >= 0:
            times[trace.layers[layer]] += columns.duration_ns[index]
    return times


def _serves_fp8(kind: Kind) -> bool:
    return not kind.is_gemm and purpose_of(kind) is not None
