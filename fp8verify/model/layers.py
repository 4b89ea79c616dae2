"""The linear layers of a rank: the list of modules, and what ran for each of them."""

from __future__ import annotations

import msgspec

from fp8verify.model.kernels import LegRow


class ModulesReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the model's linear modules were.

    Attributes:
        counts: modules by state.
        names: names of the modules of each state.
        recipes: recipes that the modules say.
        scalings: how their recipes scale, as configured.
        unknown_classes: classes of modules whose precision the module list cannot tell: their GEMMs
            decide.
        storage: what is only kept or sent in FP8, in words.
    """

    counts: dict[str, int]
    names: dict[str, tuple[str, ...]]
    recipes: tuple[str, ...]
    scalings: tuple[str, ...] = ()
    unknown_classes: tuple[str, ...] = ()
    storage: tuple[str, ...] = ()


class LayerRow(msgspec.Struct, frozen=True, kw_only=True):
    """Linear layers of one size, and the GEMMs of that size by leg.

    Attributes:
        n: outputs.
        k: inputs.
        modules: modules of the list.
        converted: those of them that are set for FP8.
        names: their names, shortened.
        passes: how often each module ran forward in the window, null where not known.
        passes_per_step: the same in a step, once for each micro-batch.
        observed: GEMMs that ran, by leg.
        in_fp8: those of them in FP8 or FP4, by leg.
        expected: GEMMs that the modules should have run, by leg; empty if
            unknown.
        share_of_flops: over the FLOPs of all GEMMs of layers, null unless (nearly) all are known.
    """

    n: int
    k: int
    modules: int
    converted: int
    names: tuple[str, ...]
    passes: int | None
    passes_per_step: float | None
    observed: dict[str, int]
    in_fp8: dict[str, int]
    expected: dict[str, int]
    share_of_flops: float | None


class LayersReport(msgspec.Struct, frozen=True, kw_only=True):
    """The layers of a rank by size.

    Attributes:
        rows: the sizes, the most FLOPs first.
        not_joined: modules whose size no GEMM has.
        experts: 3-D parameters of experts.
        note: where modules and kernels could not be joined, else null.
    """

    rows: tuple[LayerRow, ...]
    not_joined: tuple[str, ...]
    experts: tuple[str, ...]
    note: str | None


class NamedLayerRow(msgspec.Struct, frozen=True, kw_only=True):
    """What ran for one linear layer.

    Attributes:
        layer: its name in the model.
        n: outputs, null where the module list does not know the layer.
        k: inputs.
        state: what the module list says of it.
        legs: its GEMMs.
        casts_us: µs that FP8 cost in addition to the GEMMs, null where it did not run.
    """

    layer: str
    n: int | None
    k: int | None
    state: str | None
    legs: tuple[LegRow, ...]
    casts_us: float | None


class NamedLayersReport(msgspec.Struct, frozen=True, kw_only=True):
    """The GEMMs of each layer by name, as `fp8verify run --layers` records them.

    Attributes:
        source: window, or step for the eager step after the windows of compiled code: its kernels
            and times are not the run's, its precisions are.
        step: the number of that step.
        rows: the layers in the order in which they ran.
        gemms: GEMMs seen.
        unjoined: those that belong to no layer, or to none for certain.
        note: what is missing, else null.
    """

    source: str
    step: int | None
    rows: tuple[NamedLayerRow, ...]
    gemms: int
    unjoined: int
    note: str | None
