"""What the agent writes about one rank: `rankR.meta.json`, `rankR.numerics.json` and its series.

A field that the agent does not write, or writes and no struct has, fails
`tests/unit/test_agent_contract.py` or `tests/integration/test_numerics_run.py`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from fp8verify.text import show_window

SCHEMA = 1


class FrameworkSteps(msgspec.Struct, frozen=True, kw_only=True):
    """How the training framework numbers the steps of a window.

    Attributes:
        name: "transformers", "lightning", "deepspeed" or "olmo-core"; "log" for lines of the log,
            "script" where `fp8verify.step(number)` did.
        counter: what it calls its counter, such as "global_step".
        first: its number of the window's first step.
        last: its number of the window's last step.
    """

    name: str
    counter: str
    first: int
    last: int


class MemoryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The most bytes of GPU memory that the process had used, since torch's counters were reset.

    `allocated_peak` is of tensors, `reserved_peak` of what torch kept for them; `total` the GPU's.
    """

    allocated_peak: int
    reserved_peak: int
    total: int


class GradientRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The L2 norm of a rank's gradients after clipping, as the optimizer used them.

    Attributes:
        norm: null if it is not finite.
        finite: whether it is finite.
        sharded: whether other ranks have parts of these gradients.
        step: the step that it was read after.
        clip_ratio: norm after clipping over norm before, in measured steps that clip once.
    """

    norm: float | None
    finite: bool
    sharded: bool
    step: int = 0
    clip_ratio: float | None = None


class WindowRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one window.

    Attributes:
        first: its first step, 1-based.
        last: its last step, inclusive.
        state: "complete"; "cut" (begun, not finished); "dropped" (its trace was lost);
            "skipped" (not begun, for the reason given); "never" (the run did not get there).
        reason: why it is not complete.
        trace: file name of its trace in the capture folder, None if there is none.
        framework: the framework's own numbers of these steps, if known.
        layers: whether its trace names the layers.
        memory: at its end, None if no GPU was used.
        gradients: before its first step and after its last.
        blas_log: file name of cuBLASLt's own log of it in the capture folder, if there is one.
        asked: the framework's step numbers, if the window was requested by these; if it never
            opened, `first` and `last` are these too.
    """

    first: int
    last: int
    state: str
    reason: str | None = None
    trace: str | None = None
    framework: FrameworkSteps | None = None
    layers: bool = False
    memory: MemoryRecord | None = None
    gradients: tuple[GradientRecord, ...] = ()
    blas_log: str | None = None
    asked: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """The window as it was requested: "10-12", "global:5000-5002"."""
        if self.asked is None:
            return f"{self.first}-{self.last}"
        return f"global:{show_window(self.asked)}"


class NamingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of the eager step that names the layers of compiled code.

    Attributes:
        step: its number, None if it never began.
        trace: file name of its trace in the capture's folder `layers`, None if there is none.
        reason: why there is none.
    """

    step: int | None = None
    trace: str | None = None
    reason: str | None = None


class ModuleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One linear-like module of the trained model, or one 3-D parameter of its experts.

    Attributes:
        fqn: name in the model, without the wrappers of DDP, FSDP, compile and checkpointing.
        class_name: its class; JSON "class".
        kind: "linear" or "experts".
        in_features: columns of its weight.
        out_features: rows of its weight.
        weight_class: name of the tensor subclass that wraps the weight, None for a plain tensor.
        training: whether it was in training mode.
        frozen: whether its weight takes no gradient.
        source: the Python module of its class; None in old captures.
        sizes: (outputs, inputs) of each layer of a module with two layers, such as LayerNormMLP.
        state: "fp8", "fp8_emulated", "fp8_module_off" (Transformer Engine's, last run outside its
            autocast), "fp4", "fp4_emulated", "high_precision" or "unknown" (an unknown class).
        recipe: the casts of each GEMM, or the recipe's name.
        formats: "fp8", "fp8_block", "mxfp8", "nvfp4", "mxfp4" or "high_precision" by leg, from the
            recipe; legs that it leaves open are missing.
        scaling: how the recipe scales, in words.
        gradients: the element type of gradients by the recipe, "e4m3" or "e5m2".
        reason: why it cannot be in FP8, if known.
    """

    fqn: str
    class_name: str = msgspec.field(name="class")
    kind: str
    state: str
    in_features: int | None = None
    out_features: int | None = None
    source: str | None = None
    sizes: tuple[tuple[int, int], ...] = ()
    weight_class: str | None = None
    training: bool = True
    frozen: bool = False
    recipe: str | None = None
    reason: str | None = None
    formats: dict[str, str] = {}
    scaling: str | None = None
    gradients: str | None = None

    def format_of(self, leg: str) -> str | None:
        """Return what the module requests of a leg: a format, "high_precision", or None."""
        return self.formats.get(leg)


class StorageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors that a process keeps in FP8, whatever its products run in.

    Attributes:
        what: "weights" or "optimizer", for its states.
        dtype: torch's name of their type, such as "float8_e4m3fn".
        count: linear layers whose weights they are, or states.
        elements: their values, of other layers too.
    """

    what: str
    dtype: str
    count: int
    elements: int


class EnvironmentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU that the process used; None if it used none.

    `sees_gpu` is whether torch found a GPU, None if this was not checked.
    """

    gpu: str | None = None
    compute_capability: str | None = None
    sees_gpu: bool | None = None


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Wall time of the steps that ran without a profiler or a measurement, in nanoseconds.

    A step lasts from one count of the optimizer to the next, less the time of the agent's own hook.
    Steps of a window, its warm-up step, measured steps and the two steps after each of these are
    left out; step 1 cannot be timed.

    Attributes:
        count: steps timed.
        total_ns: sum over all of them.
        median_ns: of `samples_ns`.
        samples_ns: at most 512 steps at equal distances over the run, in order.
    """

    count: int
    total_ns: int
    median_ns: int
    samples_ns: tuple[int, ...] = ()


class RankMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent of one rank recorded.

    Attributes:
        windows: one record per requested window; JSON "window".
        steps_seen: training steps counted; a killed process may have made a few more.
        ended: whether the process was about to exit when it wrote this.
        steps_skipped: steps whose update a GradScaler left out.
        clock: what was counted: "optimizer" steps, or "explicit" calls of the script.
        leader: class of the optimizer that was counted, such as "AdamW".
        optimizer_updates: calls of `step()` by optimizer class.
        modules_listed: whether the modules were listed, which happens before a window at the
            earliest.
        storage: what is kept in FP8, by type.
        api_calls: APIs by which the script asked for FP8, such as
            "torchao.float8.convert_to_float8_training".
        naming: the eager step after the windows that names layers, None if none was requested.
        versions: of Python, CUDA, torch and the libraries of FP8 training that are installed.
        environment: the GPU.
        steps_outside: the times of the steps outside windows, None if there were none.
    """

    schema: int
    rank: int
    steps_seen: int
    windows: tuple[WindowRecord, ...] = msgspec.field(name="window")
    world_size: int = 1
    ended: bool = False
    steps_skipped: int = 0
    clock: str = "optimizer"
    leader: str | None = None
    optimizer_updates: dict[str, int] = {}
    notes: tuple[str, ...] = ()
    modules: tuple[ModuleRecord, ...] = ()
    modules_listed: bool = True
    storage: tuple[StorageRecord, ...] = ()
    api_calls: tuple[str, ...] = ()
    naming: NamingRecord | None = None
    versions: dict[str, str] = {}
    environment: EnvironmentRecord = EnvironmentRecord()
    steps_outside: StepTimes | None = None


# --- numerics ---

# What a file may hold: the rules reckon with it.
Positive = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
Single = Annotated[float, Meta(ge=0, le=1e39)]  # a magnitude in float32
Number = Annotated[str, Meta(pattern=r"^(-?\d+(\.\d+)?(e[-+]?\d{1,3})?|-?inf|nan)$")]


class TensorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of one layer in the measured step; shares are of its elements, 0 to 1.

    Attributes:
        layer: the module's name; for a module with two weights also the weight's, "mlp.fc1".
        tensor: "input", "weight" or "grad_output".
        source: "replay" (the cast was repeated), "bytes" (the FP8 bytes were seen, not the values)
            or "values" (the cast is not known).
        format: "e4m3" or "e5m2", None if the cast is not known.
        scaling: "tensorwise", "rowwise", "delayed", "block_1x128", "block_128x128" or "mxfp8".
        calls: passes of the layer in the step that were added up.
        elements: how many values it has, over all passes of the layer.
        amax: the largest magnitude, None if it is not finite.
        rms: root mean square.
        scale: the factor of the values, if the whole tensor has one scale.
        zeros: zeros among the values, or among the bytes if source is "bytes".
        flushed: values that the cast made zero.
        saturated: values that the cast clipped.
        subnormal: values that the cast left with fewer bits.
        nan: NaN among the values.
        inf: infinities among the values.
        rows_not_finite: number of rows with a NaN or infinity.
        zero_rows: share of rows that are all zero.
        sqnr_db: signal to quantization noise.
        top_blocks: share of MX blocks in which more than half of the values are the largest.
        what_if: SQNR in dB under other recipes.
    """

    layer: str
    tensor: Annotated[str, Meta(pattern="^(input|weight|grad_output)$")]
    source: str
    format: str | None = None
    scaling: str | None = None
    calls: Count = 1
    elements: Count = 0
    amax: Positive | None = None
    rms: Positive | None = None
    scale: float | None = None
    zeros: Positive | None = None
    flushed: Positive | None = None
    saturated: Positive | None = None
    subnormal: Positive | None = None
    nan: Positive = 0.0
    inf: Positive = 0.0
    rows_not_finite: Count = 0
    zero_rows: Positive | None = None
    sqnr_db: float | None = None
    top_blocks: Positive | None = None
    what_if: dict[str, float] = {}

    @property
    def finite(self) -> bool:
        """Whether no NaN or infinity was seen in it."""
        return not (self.nan or self.inf or self.rows_not_finite)

    @property
    def not_finite(self) -> float:
        """The share of NaN and infinities."""
        return self.nan + self.inf


class MeasuredRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A measured step; rows are in the order in which the tensors were met."""

    step: int
    time: float
    rows: tuple[TensorRecord, ...]
    recomputed_high: tuple[str, ...]
    gradient: GradientRecord | None
    notes: tuple[str, ...]


class RecipeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe of Transformer Engine as configured; null if it has no such setting.

    Attributes:
        name: its class.
        forward: format of inputs and weights.
        backward: format of gradients.
        margin: octaves that scales leave unused.
        interval: steps between updates of scales.
        history_length: steps of amax that are kept.
        algorithm: max or most_recent: which amax of the history makes the scale.
        reduces_amax: whether the ranks of a group share the largest amax.
    """

    name: str
    forward: str
    backward: str
    margin: Annotated[int, Meta(ge=-64, le=64)] | None
    interval: int | None
    history_length: int | None
    algorithm: str | None
    reduces_amax: bool


class SlotRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One scale that Transformer Engine keeps, at the end of a window and at its beginning.

    Attributes:
        gemm: index of its GEMM in the layer, from 0.
        largest: the largest value of its format.
        recipe: index of its recipe.
        group: index of the ranks that share its amax, -1 if none is known.
        tensor_parallel: index of the ranks that share the layer, -1 if none is known.
        scale: as text, because it may be infinite.
        amax: of the last steps, the newest last.
        staged: the amax that will enter the history; 0 once a step is complete.
        largest_amax: of the whole history.
    """

    layer: str
    tensor: str
    gemm: Count
    format: str
    largest: Annotated[float, Meta(ge=1, le=1e39)]
    recipe: int
    group: int
    tensor_parallel: int
    scale: Number
    scale_before: Number | None
    amax: tuple[Single | None, ...]
    amax_before: Single | None
    staged: Single | None
    staged_before: Single | None
    largest_amax: Single | None
    largest_amax_before: Single | None


class ScalesRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The scales at a window that ended with `last_step`; loss scales are None if infinite."""

    last_step: int
    recipes: tuple[RecipeRecord, ...]
    groups: tuple[tuple[int, ...], ...]
    slots: tuple[SlotRecord, ...]
    loss_scales: tuple[float | None, ...]


class NumericsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a rank's numbers; `reason` is why no step was measured."""

    schema: int
    rank: int
    windows: tuple[ScalesRecord, ...]
    measured: MeasuredRecord | None
    reason: str | None


class RankNumerics(msgspec.Struct, frozen=True, kw_only=True):
    """The numerics of one rank: its record, and the series of a long run."""

    record: NumericsRecord
    series: tuple[MeasuredRecord, ...] = ()


class CompiledKernel(msgspec.Struct, frozen=True, kw_only=True):
    """The machine code that a compiler left on disk for one kernel, without the code itself.

    Attributes:
        name: its function.
        arch: what it was compiled for: "90" (sm_90), "gfx942".
        threads: of a block.
        shared: bytes of shared memory of a block; None if not known.
        registers: of a thread; None if not known.
        instructions: its matrix instructions, FMAs and exponentials, and how many of each.
        dots: products in its intermediate code by the types of A and B ("e4m3 e4m3"), where that
            was there.
        hash: the first digits of the SHA-256 of its code.
    """

    name: Annotated[str, Meta(max_length=512)]
    arch: Annotated[str, Meta(max_length=32)]
    threads: Count
    shared: Count | None = None
    registers: Count | None = None
    instructions: dict[str, Count] = {}
    dots: dict[str, Count] = {}
    hash: str = ""


class CodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the compiled code of a run's kernels holds: `rankR.code.json`.

    Attributes:
        rank: whose kernels were looked for; other ranks launch the same ones.
        kernels: what was found of them.
        notes: why caches were not read, or not wholly.
    """

    schema: int
    rank: int
    kernels: tuple[CompiledKernel, ...] = ()
    notes: tuple[str, ...] = ()
