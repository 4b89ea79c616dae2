"""Every intrusion into the training's process: where it is, when, why, and what compiled code sees.

The table in docs/how-it-works.md is written from this one, and a test compares it with the calls
that put something in. Nothing else is patched: not the model's forward or backward, collectives,
data loaders or `subprocess`. The file named puts it in and takes it off; what is observed is taken
off by `observe.unobserve_all`.
"""

from __future__ import annotations

from typing import NamedTuple

FOLDED = "folded to nothing while traced, never compiled itself"
UNSEEN = "nothing: it is not called by a model's code"
EAGER = "nothing: compiled code runs eagerly in that step"
RUN = "the whole run"
MEASURED = "the step that `--numerics` measures"


class Patch(NamedTuple):
    """One intrusion.

    Attributes:
        target: what is changed. "observed" means that a descriptor reports the look-up of a method
            and returns the original: no frame of ours is in a traceback.
        file: of the agent, that puts it in and takes it off.
        when: from when to when it is there.
        why: what it is for, and why nothing gentler does.
        compiled: what torch.compile sees of it.
    """

    target: str
    file: str
    when: str
    why: str
    compiled: str = UNSEEN


PATCHES = (
    Patch(
        "`sitecustomize` on `PYTHONPATH`", "boot/sitecustomize.py", RUN + ", in every Python of it",
        "It works under any launcher and changes neither `argv` nor `__main__`. Running the script "
        "inside our process would, and launchers could not be followed. A `.pth` file would need "
        "write access to the environment.",
    ),
    Patch(
        "a finder first on `sys.meta_path`", "boot/_fp8verify_boot.py",
        "until torch, torchao's conversions and the frameworks with step counters are imported",
        "Importing torch early would change the script's start and its errors. The wrapped import "
        "has the import system's own file name, so that Python leaves its frame out of tracebacks.",
    ),
    Patch(
        "optimizer step hooks, before and after, for all optimizers (public API)", "hooks.py", RUN,
        "They are called for every optimizer under every framework. Steps of a compiled optimizer "
        "are counted by the versions of its parameters, at each backward pass.", FOLDED,
    ),
    Patch(
        "module registration hook (public API)", "layers.py", RUN,
        "The model is known without a search among all objects; `gc.freeze()` hides modules from "
        "such a search.", FOLDED,
    ),
    Patch(
        "`GradScaler.update` and `GradScaler.__init__` observed", "hooks.py", RUN,
        "A step whose gradients overflowed calls no optimizer. FSDP's scaler has an `update` of "
        "its own, found when it is built.", FOLDED,
    ),
    Patch(
        "`Optimizer.__init__` observed", "hooks.py", RUN,
        "No hook of a step can fire before the first step; an optimizer built later may lead the "
        "next training of the process.", FOLDED,
    ),
    Patch(
        "the look-up of `torch.autograd.backward` observed", "hooks.py",
        "with LBFGS in a window, once optimizers step inside a backward pass or are compiled, or "
        "while a session waits for its thread",
        "A step of LBFGS calls the script back without end, and a window must be able to end "
        "inside it. Optimizers in a backward pass step on autograd's thread; compiled ones call "
        "no hook.", FOLDED,
    ),
    Patch(
        "`capture_begin`, `capture_end` and `replay` of `torch.cuda.CUDAGraph` observed",
        "hooks.py", RUN, "No hook is called when a step is replayed.", FOLDED,
    ),
    Patch(
        "`atexit` and `os.register_at_fork`", "hooks.py", RUN,
        "A window that is open when the process ends is closed and written; a forked data loader "
        "must not touch its parent's profiler.",
    ),
    Patch(
        "`__init__` of the classes that count a framework's steps observed: `Trainer` of "
        "transformers and Lightning, `DeepSpeedEngine`", "framework_counters.py",
        "from their import to the end of the run",
        "Their counters name the steps of a window; a search among all objects would hold the "
        "training up.", FOLDED,
    ),
    Patch(
        "`Trainer.training_step`, `_TrainingEpochLoop.advance` and `DeepSpeedEngine.forward` "
        "observed", "step_numbers.py", "with `--steps global:`",
        "A window may begin with the first step of a resumed run, before any optimizer's hook.",
        FOLDED,
    ),
    Patch(
        "`logging.setLogRecordFactory`, and `write` of `sys.stdout` and `sys.stderr` replaced",
        "step_numbers.py", "with `--steps global:`",
        "Numbers of steps are read from log lines when they are made, between the hooks of two "
        "steps. Records of ranks whose handlers drop them are read too.",
    ),
    Patch(
        "`torch._C._log_api_usage_once` replaced", "process.py",
        "from the import of torchao's conversions to the first conversion",
        "torchao reports each conversion to torch: a request for FP8 that needs no log line. "
        "Wrapping the conversion would put a frame of ours into the traceback of an error in it; "
        "`PYTORCH_API_USAGE_STDERR` makes torch write to stderr in pieces.",
        "a function that it calls without tracing it, as the original; never compiled itself",
    ),
    Patch(
        "`_prepare_trace`, `_start_trace` and `export_chrome_trace` of "
        "`torch.autograd.profiler.profile` observed", "windows/user_profiler.py", RUN,
        "Of two profilers in one process torch 2.11 raises in the first and torch 2.13 crashes: "
        "ours stops before the script's own one starts. The trace that the script exports is "
        "evidence.",
    ),
    Patch(
        "`record_function.__enter__` observed", "windows/session.py",
        "while a profiler is or was on",
        "A range that begins in one profiler session and ends in another crashes torch 2.13. "
        "Ranges still open where a window ends are therefore ended there.",
        "nothing: it leaves ranges out of its graphs",
    ),
    Patch(
        "`_KinetoProfile` in place of `torch.profiler.profile`", "windows/session.py",
        "a window and its warm-up step",
        "The public class counts steps by itself and would disturb a script's own schedule.",
    ),
    Patch(
        "an object local to the recording thread", "windows/session.py",
        "a window on another thread than the main one",
        "torch frees the state of a session when its thread ends: it is stopped before.",
    ),
    Patch(
        "a call on the main thread between two Python instructions (`Py_AddPendingCall`)",
        "observe.py", "after a window whose steps left the main thread",
        "Only the thread that began a session may stop it; a session that is never stopped records "
        "until the process ends and crashes it.",
    ),
    Patch(
        "Kineto's log level raised; C's `stderr` a buffer for one call", "windows/export.py",
        "while a session starts and stops; the buffer only if the process's first session begins "
        "on another thread than torch was imported on",
        "Kineto prints `profiler_start`, `profiler_stop` and a remark about the thread, and has no "
        "setting for one session. Redirecting descriptor 2 would catch other threads' writes.",
    ),
    Patch(
        "a handler for SIGTERM, a descriptor registered with `faulthandler`, and a thread",
        "windows/limits.py", "a window, where the script has no handler",
        "The signal would end the process with the trace unwritten. The window is closed and the "
        "signal sent again; where no Python code runs any more, the thread does so.",
    ),
    Patch(
        "forward hooks on linear modules", "instruments.py", "with `--layers`, in the window",
        "A trace names no modules.", FOLDED,
    ),
    Patch(
        '`torch.compiler.set_stance("force_eager")`', "instruments.py",
        "one step with `--layers` or `--numerics` on compiled code",
        "Compiled code ignores hooks that come after it. The stance keeps what was compiled.",
        EAGER,
    ),
    Patch(
        "forward hooks and gradient hooks on the layers whose casts are measured",
        "numerics/step_hooks.py", MEASURED, "The tensors that are cast to FP8 are in no trace.",
        EAGER,
    ),
    Patch(
        "`torch._scaled_mm` and the functions that clip gradients replaced; saved-tensor hooks",
        "numerics/step_hooks.py", MEASURED,
        "Classes of a script's own that call `_scaled_mm` do not say how they cast, but its "
        "operands do; Transformer Engine's FP8 bytes pass only there; the norm before clipping is "
        "not kept.", EAGER,
    ),
)  # fmt: skip
