"""What the agent writes about one rank into `rankR.meta.json`.

A field that the agent does not write, or writes and no struct has, fails
`tests/unit/test_agent_contract.py`.
"""

from __future__ import annotations

import msgspec

from fp8verify.capture.numerics import GradientRecord
from fp8verify.text import show_window

SCHEMA = 1


class FrameworkSteps(msgspec.Struct, frozen=True, kw_only=True):
    """How the training framework numbers the steps of a window.

    Attributes:
        name: "transformers", "lightning" or "deepspeed"; "log" where lines of the log told them,
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


class WindowRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one window.

    Attributes:
        first: its first step, 1-based.
        last: its last step, inclusive.
        state: "complete"; "cut" (begun, not finished); "dropped" (its trace was lost);
            "skipped" (not begun, for the reason given); "never" (the run did not get there).
        reason: why it is not complete.
        trace: file name of its trace in the capture folder, None if there is none.
        profiler: whose trace it is: "fp8verify", "script" for the script's own profiler, or "nsys"
            and "rocprofv3", which write one for several windows and processes: `trace` is None.
        framework: the framework's own numbers of these steps, if known.
        layers: whether its trace names the layers.
        memory: at its end, None where no GPU was used.
        gradients: before its first step and after its last.
        asked: the framework's numbers by which it was asked for, if it was; where it never opened,
            `first` and `last` are these too.
    """

    first: int
    last: int
    state: str
    reason: str | None = None
    trace: str | None = None
    profiler: str = "fp8verify"
    framework: FrameworkSteps | None = None
    layers: bool = False
    memory: MemoryRecord | None = None
    gradients: tuple[GradientRecord, ...] = ()
    asked: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """How the window is called where it was asked for: "10-12", "global:5000-5002"."""
        if self.asked is None:
            return f"{self.first}-{self.last}"
        return f"global:{show_window(self.asked)}"


class NamingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the eager step that names the layers of compiled code.

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
        weight_class: name of the tensor subclass that wraps the weight, None for a plain one.
        training: whether it was in training mode.
        frozen: whether its weight takes no gradient.
        source: the Python module of its class; None in old captures.
        sizes: (outputs, inputs) of each layer of a module that is two, such as LayerNormMLP.
        state: "fp8", "fp8_emulated", "fp8_module_off" (Transformer Engine outside autocast),
            "fp4", "fp4_emulated", "high_precision" or "unknown" (a class that nobody knows).
        recipe: the casts of each GEMM, or the recipe's name.
        formats: "fp8", "fp8_block", "mxfp8", "nvfp4", "mxfp4" or "high_precision" by leg, as the
            recipe says; a leg that it leaves open is not there.
        scaling: how the recipe scales, in words.
        gradients: the element type of gradients by the recipe, "e4m3" or "e5m2".
        reason: why it cannot be in FP8, where that can be known.
        fp8_legs: those of "fprop", "dgrad" and "wgrad" that it computes in FP8 by its recipe; old
            captures have no `formats`.
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
    fp8_legs: tuple[str, ...] = ()
    formats: dict[str, str] = {}
    scaling: str | None = None
    gradients: str | None = None

    def format_of(self, leg: str) -> str | None:
        """Return what the module promises of a leg: a format, "high_precision", or None."""
        if self.formats or not self.fp8_legs:
            return self.formats.get(leg)
        return "fp8" if leg in self.fp8_legs else "high_precision"


class EnvironmentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU that the process used; None where it used none.

    `sees_gpu` is whether torch found one, None where the profiler did not ask.
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
        median_ns: of `samples_ns`, as are the quartiles.
        p25_ns: 25 % of the steps are at most this long.
        p75_ns: 75 % of the steps are at most this long.
        samples_ns: at most 512 steps at equal distances over the run, in order.
    """

    count: int
    total_ns: int
    median_ns: int
    p25_ns: int
    p75_ns: int
    samples_ns: tuple[int, ...] = ()


class RankMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent of one rank recorded.

    Attributes:
        windows: one record per requested window; JSON "window".
        steps_seen: training steps counted; a killed process may have made a few more.
        steps_skipped: those whose update a GradScaler left out.
        clock: what was counted: "optimizer" steps, or the script's own "explicit" ones.
        leader: class of the optimizer that was counted, such as "AdamW".
        optimizer_updates: calls of `step()` by optimizer class.
        modules_listed: whether the modules were looked for, before a window at the earliest.
        api_calls: APIs by which the script asked for FP8, such as
            "torchao.float8.convert_to_float8_training".
        naming: the eager step after the windows that names layers, None if there was to be none.
        versions: of Python, CUDA, torch and the libraries of FP8 training that are installed.
        environment: the GPU.
        process: its number; None in old captures.
        recording: how the names of the files begin that the profiler around the run wrote, None
            where there was none.
        steps_outside: the times of the steps outside windows, None if there were none.
    """

    schema: int
    rank: int
    steps_seen: int
    windows: tuple[WindowRecord, ...] = msgspec.field(name="window")
    world_size: int = 1
    steps_skipped: int = 0
    clock: str = "optimizer"
    leader: str | None = None
    optimizer_updates: dict[str, int] = {}
    notes: tuple[str, ...] = ()
    modules: tuple[ModuleRecord, ...] = ()
    modules_listed: bool = True
    api_calls: tuple[str, ...] = ()
    naming: NamingRecord | None = None
    versions: dict[str, str] = {}
    environment: EnvironmentRecord = EnvironmentRecord()
    process: int | None = None
    recording: str | None = None
    steps_outside: StepTimes | None = None
