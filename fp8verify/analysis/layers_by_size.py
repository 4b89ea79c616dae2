"""Layer by layer: the linear modules of the census against the GEMMs of their shapes.

A trace does not name modules, so they are joined by shape: all linears of N outputs and K inputs
are one class, and so are all products of (tokens, K) by (K, N).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fp8verify.analysis.flops import GemmShape
from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.totals import gemm_totals
from fp8verify.capture.schema import ModuleRecord
from fp8verify.kernels.operators import find, function_of
from fp8verify.report.model import Leg, Precision, Role

TRANSFORMER_ENGINE = "transformer_engine"
_CLASSES = ("LayerNormLinear", "LayerNormMLP", "GroupedLinear")
_PLAIN_CLASSES = ("Linear", "NonDynamicallyQuantizableLinear", "Conv1D")
_BACKWARD = (Leg.DGRAD, Leg.WGRAD)
_RECIPES = (
    "DelayedScaling",
    "Float8CurrentScaling",
    "Float8BlockScaling",
    "MXFP8BlockScaling",
    "NVFP4BlockScaling",
    "CustomRecipe",
)


class Size(NamedTuple):
    """N outputs by K inputs of a linear layer.

    `library` is that of its function where GEMMs tell it by their operator: Transformer Engine's
    layers and others of their size are two classes.
    """

    n: int
    k: int
    library: str | None = None


class LayerClass(NamedTuple):
    """All linears of one size, and the GEMMs of that size; counts by leg.

    Attributes:
        modules: those of the census, none where there is no census.
        observed: GEMMs that ran.
        in_fp8: those of them in FP8 or FP4.
        flops: of all of them, whatever the leg.
    """

    size: Size
    modules: tuple[ModuleRecord, ...]
    observed: dict[Leg, int]
    in_fp8: dict[Leg, int]
    flops: int

    @property
    def converted(self) -> tuple[ModuleRecord, ...]:
        """The modules that compute fprop in low precision by what they say of themselves."""
        return tuple(module for module in self.modules if _is_converted(module))

    @property
    def passes(self) -> int | None:
        """How often each module ran forward, if all ran equally often; None if not."""
        count = self.observed.get(Leg.FPROP, 0)
        if not self.modules or not count or count % len(self.modules):
            return None
        return count // len(self.modules)

    def expected(self, leg: Leg) -> int | None:
        """GEMMs of a leg that the modules should have run in all; None where that is not known."""
        if self.passes is None:
            return None
        needed = [m for m in self.modules if leg is not Leg.WGRAD or not m.frozen]
        return self.passes * len(needed)

    def missing(self, passes: int) -> int:
        """Forward GEMMs that the converted modules lack in low precision, if backward ones do too.

        Args:
            passes: how often each module ran forward, at least.
        """
        leg = Leg.FPROP
        lacking = passes * len(self.converted) - self.in_fp8.get(leg, 0)
        high = self.observed.get(leg, 0) - self.in_fp8.get(leg, 0)
        return max(0, min(lacking, high)) if any(map(self._backward_is_short, _BACKWARD)) else 0

    def _backward_is_short(self, leg: Leg) -> bool:
        promised = all(m.format_of(leg.value) not in (None, "high_precision") for m in self.modules)
        return promised and self.observed.get(leg, 0) > self.in_fp8.get(leg, 0)

    @property
    def never_in_fp8(self) -> bool:
        """Whether GEMMs of this size ran, and none in FP8 or FP4."""
        return sum(self.observed.values()) > 0 and not any(self.in_fp8.values())


class Layers(NamedTuple):
    """The classes of a rank, the largest first, and what could not be joined.

    Attributes:
        flops: of all GEMMs, None unless (nearly) all of them are known.
        apart: modules of which no GEMM has the size, as under tensor parallelism or where they
            did not run.
        experts: 3-D parameters of experts, which no single GEMM has the size of.
    """

    classes: tuple[LayerClass, ...]
    flops: int | None
    apart: tuple[ModuleRecord, ...]
    experts: tuple[ModuleRecord, ...]

    def passes(self, steps: int) -> int:
        """How often each module ran forward, at least; 0 where that is not known.

        Products of no module may have the size of one class: the least of several, or one a step,
        is that of the modules.
        """
        counts = [c.observed.get(Leg.FPROP, 0) // len(c.modules) for c in self.classes if c.modules]
        least = min(counts, default=0)
        return least if len(counts) > 1 or least == steps else 0

    def share(self, classes: Iterable[LayerClass]) -> float | None:
        """FLOPs of some classes over those of all GEMMs; None where these are not known."""
        return sum(found.flops for found in classes) / self.flops if self.flops else None


def join_by_size(gemms: Sequence[GemmRow], modules: Sequence[ModuleRecord] | None) -> Layers:
    """Join the modules of a rank's census to its GEMMs by size.

    Args:
        gemms: those of the rank.
        modules: its census; None where there is none, and the forward GEMMs give the sizes.
    """
    sizes_of_gemms, modules = modules is None, modules or ()
    by_size: dict[Size, list[ModuleRecord]] = defaultdict(list)
    for module in modules:
        for size in sizes_of(module):
            by_size[size].append(module)
    rows = [row for row in gemms if row.flops and _is_linear(row)]
    sizes = _forward_sizes(rows) if sizes_of_gemms else set(by_size)
    found = _classes(rows, sizes, by_size)
    joined = {c.size for c in found if c.observed}
    return Layers(
        classes=tuple(sorted((c for c in found if c.observed), key=_largest_first)),
        flops=_all_flops(gemms),
        apart=tuple(m for m in modules if sizes_of(m) and joined.isdisjoint(sizes_of(m))),
        experts=tuple(module for module in modules if module.kind == "experts"),
    )


def _largest_first(layer: LayerClass) -> tuple[int, int, int, str]:
    return (-layer.flops, *layer.size[:2], layer.size.library or "")


def misjudged(gemms: Sequence[GemmRow], modules: Sequence[ModuleRecord]) -> frozenset[str]:
    """Return the modules that an old census took for high precision, and that ran in FP8 or FP4.

    It knew neither the Python module of a class nor that one may have a `forward` of its own; a
    class of the name that PyTorch's or transformers' linear has is believed.
    """
    suspects = [
        module
        for module in modules
        if module.state == "high_precision"
        and module.source is None
        and module.class_name not in _PLAIN_CLASSES
    ]
    if not suspects:
        return frozenset()
    joined = join_by_size(gemms, suspects)
    ran_low = {layer.size for layer in joined.classes if not layer.never_in_fp8}
    return frozenset(m.fqn for m in suspects if not ran_low.isdisjoint(sizes_of(m)))


def sizes_of(module: ModuleRecord) -> tuple[Size, ...]:
    """Return the sizes of the linear layers of a module, nothing where they are not known."""
    if module.kind != "linear":
        return ()
    library = TRANSFORMER_ENGINE if _is_transformer_engine(module) else None
    if module.sizes:
        return tuple(Size(n, k, library) for n, k in module.sizes)
    known = module.out_features and module.in_features
    return (Size(module.out_features or 0, module.in_features or 0, library),) if known else ()


def _is_transformer_engine(module: ModuleRecord) -> bool:
    """Whether a module is Transformer Engine's; old captures tell by class and recipe alone."""
    by_state = module.state == "fp8_module_off" or module.recipe in _RECIPES
    return by_state or (module.source is None and module.class_name in _CLASSES)


def _is_converted(module: ModuleRecord) -> bool:
    return module.state in ("fp8", "fp4") and module.format_of("fprop") != "high_precision"


def _all_flops(gemms: Sequence[GemmRow]) -> int | None:
    totals = gemm_totals(gemms)
    return totals.flops.total() if totals.knows_flops else None


def _is_linear(row: GemmRow) -> bool:
    """Whether a row can be of a linear layer: one product, of known types."""
    found = row.kind.classification
    single = found.role is Role.GEMM and not found.split_k
    return single and row.precision is not Precision.UNKNOWN


def _forward_sizes(rows: Sequence[GemmRow]) -> set[Size]:
    return {
        Size(row.shape.n, row.shape.k, _library_of(row))
        for row in rows
        if row.leg is Leg.FPROP and row.shape is not None and row.shape.batch == 1
    }


def _library_of(row: GemmRow) -> str | None:
    op = row.kind.op
    name = op.name if op is not None else ""
    inputs = find(function_of(name) or name).layer_inputs
    return TRANSFORMER_ENGINE if inputs is not None else None


def _classes(
    rows: Sequence[GemmRow], sizes: set[Size], modules: dict[Size, list[ModuleRecord]]
) -> list[LayerClass]:
    observed: dict[Size, Counter[Leg]] = defaultdict(Counter)
    in_fp8: dict[Size, Counter[Leg]] = defaultdict(Counter)
    flops: Counter[Size] = Counter()
    for row in rows:
        size = _size_of(row, sizes)
        if size is not None:
            observed[size][row.leg] += row.calls
            flops[size] += row.flops or 0
            if row.precision.is_low:
                in_fp8[size][row.leg] += row.calls
    return [
        LayerClass(
            size,
            tuple(modules.get(size, ())),
            dict(observed[size]),
            dict(in_fp8[size]),
            flops[size],
        )
        for size in sizes
    ]


def _size_of(row: GemmRow, sizes: set[Size]) -> Size | None:
    shape = row.shape
    if shape is None or shape.batch != 1:
        return None
    library = _library_of(row)
    fits = (size._replace(library=library) for size in _candidates(shape, row.leg))
    return next((size for size in fits if size in sizes), None)


def _candidates(shape: GemmShape, leg: Leg) -> tuple[Size, ...]:
    """The sizes that a GEMM's layer may have: wgrad gives the weight's shape or its transpose."""
    if leg in (Leg.FPROP, Leg.RECOMPUTE):
        return (Size(shape.n, shape.k),)
    if leg is Leg.DGRAD:
        return (Size(shape.k, shape.n),)
    return (Size(shape.m, shape.n), Size(shape.n, shape.m)) if leg is Leg.WGRAD else ()
