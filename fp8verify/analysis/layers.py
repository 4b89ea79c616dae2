"""Layer by layer: the linear modules of the list, joined with the GEMMs of their shapes.

A trace does not name modules, so they are joined by shape: all linears of N outputs and K inputs
are one class, and so are all products of (tokens, K) by (K, N).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from fp8verify.analysis.gemms import GemmRow, gemm_totals, known_flops
from fp8verify.analysis.kinds import Kinds, grouped
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
        named = (
            (x.row.share_of_flops, [m.fqn in names for m in x.modules])
            for x in self.classes
        )
        return sum(
            (share or 0) * sum(which) / len(which) for share, which in named if which
        )


def join_by_size(
    gemms: Sequence[GemmRow], modules: Sequence[ModuleRecord] | None, steps: int
) -> Layers:
    """Join the modules of a rank's module list to its GEMMs by size.

    Args:
        gemms: GEMMs of the rank.
        modules: its module list; None if there is none: then the forward GEMMs give the sizes.
        steps: of its windows.
    """
    by_size: dict[_Size, list[ModuleRecord]] = defaultdict(list)
    of_size: dict[_Size, list[GemmRow]] = defaultdict(list)
    of_modules = [(module, _sizes_of(module)) for module in modules or ()]
    for module, own in of_modules:
        for size in own:
            by_size[size].append(module)
    rows = [row for row in gemms if row.flops and _is_linear(row)]
    forward = (row for row in rows if row.leg is Leg.FPROP)
    if modules is None:
        sizes = {size for row in forward for size in _fitting(row)}
    else:
        sizes = {*by_size}
    for row in rows:
        fitting = next((size for size in _fitting(row) if size in sizes), None)
        if fitting is not None:
            of_size[fitting].append(row)
    whole = known_flops(gemm_totals(gemms))
    classes = [
        _class_of(size, by_size[size], of_size[size], whole, steps) for size in of_size
    ]
    return Layers(
        classes=tuple(
            sorted(classes, key=lambda layer: (-layer.flops, layer.row.n, layer.row.k))
        ),
        flops=whole,
        apart=tuple(
            m for m, own in of_modules if own and of_size.keys().isdisjoint(own)
        ),
    )


def _class_of(
    size: _Size,
    modules: list[ModuleRecord],
    rows: list[GemmRow],
    whole: float | None,
    steps: int,
) -> LayerClass:
    """Return the linears of a size; how often each ran is known if all ran equally often."""
    low = [module for module in modules if module.state in ("fp8", "fp4")]
    converted = tuple(m for m in low if m.format_of("fprop") != "high_precision")
    observed = Counter[str]()
    in_fp8 = Counter[str]()
    for row in rows:
        observed[row.leg.value] += row.calls
        in_fp8[row.leg.value] += row.calls * row.precision.is_low
    runs, rest = divmod(observed["fprop"], len(modules) or 1)
    passes = runs if modules and runs and not rest else None
    trained = sum(not module.frozen for module in modules)
    needed = {"fprop": len(modules), "dgrad": len(modules), "wgrad": trained}
    flops = sum(row.flops or 0 for row in rows)
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
        expected={leg: passes * count for leg, count in needed.items()}
        if passes
        else {},
        share_of_flops=round(flops / whole, 6) if whole else None,
    )
    return LayerClass(row_of_report, tuple(modules), converted, flops)


def sizes_of(module: ModuleRecord) -> list[tuple[int, int]]:
    """Return (outputs, inputs) of the linear layers of a module, nothing if not known."""
    sizes = module.sizes or ((module.out_features, module.in_features),)
    if module.kind == "linear":
        return [(n, k) for n, k in sizes if n and k]
    return []


def _sizes_of(module: ModuleRecord) -> list[_Size]:
    engine = module.state == "fp8_module_off" or is_transformer_engine(module)
    return [(n, k, engine) for n, k in sizes_of(module)]


def is_transformer_engine(module: ModuleRecord) -> bool:
    """Whether a module is Transformer Engine's, by its recipe, its weight or its class."""
    told = module.recipe in _RECIPES or module.weight_class in FP8_PARAMETERS
    return told or package_of(module) == "transformer_engine"


def package_of(module: ModuleRecord) -> str:
    """Return the package of a module's class, empty if not known."""
    return (module.source or "").split(".")[0]


def _is_linear(row: GemmRow) -> bool:
    """Whether a row can be a linear layer's: one GEMM, of known types and leg."""
    single = row.kind.classification.role is Role.GEMM and row.kind.multiplies
    return single and row.precision is not Precision.UNKNOWN and row.leg in CERTAIN_LEGS


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
        return grouped(
            (row for row in self.rows if row.layer), lambda row: row.layer or ""
        )


def name_casts(trace: Trace, kinds: Kinds) -> Counter[str]:
    """Return the ns that each layer's casts, scales and copies for FP8 took."""
    times = Counter[str]()
    columns = trace.kernels
    if columns.layer:  # empty if the trace names none
        for place in kinds.started(
            lambda kind: not kind.is_gemm and purpose_of(kind) is not None
        ):
            if columns.layer[place] >= 0:
                times[trace.layers[columns.layer[place]]] += columns.duration_ns[place]
    return times
