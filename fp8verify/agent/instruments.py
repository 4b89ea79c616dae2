"""What is recorded in addition to the profiler's trace: one instrument for each kind of evidence.

To record a new kind, write an `Instrument` here or in a file of its own, and add it to `KINDS` of
`windows/manager.py`; the fields that it returns get a struct in `fp8verify/capture/schema.py`.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch.profiler import record_function

from .census import stored_in_fp8, take_census
from .config import Config
from .debug import MORE, debug, describe
from .framework_counters import StepCounter, counters
from .guard import is_the_scripts, quietly
from .layers import linear_modules
from .observe import (
    ModuleNames,
    ObservedCalls,
    caller_of_ours,
    replaced,
    until_compiling,
    without_modes,
)
from .process import allocated, can_look, device_properties
from .stored import unseen

PREFIX = "fp8verify:"  # of the ranges that name layers
VARIABLES = ("CUBLASLT_LOG_LEVEL", "CUBLASLT_LOG_MASK", "CUBLASLT_LOG_FILE")
OFF, TRACE = 0, 2  # masks: nothing, and a line for each product
NOWHERE = b"/dev/null"
LIBRARY = "/libcublasLt.so"
MAPS = Path("/proc/self/maps")


class InstrumentContext(NamedTuple):
    """What an instrument can see of the script.

    Attributes:
        config: the boot folder's `config.json`.
        optimizers: returns those that have stepped and are still alive.
        record: returns the rank's `RankRecord`, whose files an instrument may write into.
        may_measure: whether a step may be measured after this number of steps: all windows are
            recorded, or under a watch the next window is near and not open.
        own: returns the optimizers whose values this thread may read: no other one trains them.
    """

    config: Config
    optimizers: Callable[[], list[Any]]
    record: Callable[[], Any] = lambda: None
    may_measure: Callable[[int], bool] = lambda _: False
    own: Callable[[], list[Any]] = list


class Instrument:
    """One kind of evidence; a subclass overrides what it needs.

    One that raises is put away with a note in the record, and the window goes on without it.

    Attributes:
        measures: whether it slows the running step down, outside of windows too.
    """

    measures = False

    def __init__(self, context: InstrumentContext) -> None:
        self.context = context

    def before_window(self) -> None:
        """Look at the script before a window begins, on ranks that are not profiled too."""

    def begin(self) -> None:
        """Get ready: the profiler is about to start."""

    def after_step(self, step: int, /) -> None:
        """Look at the script when `step` steps are complete, inside a window or not."""

    def end(self) -> dict[str, Any]:
        """Return fields for the window's record, `WindowRecord`: the profiler has stopped."""
        return {}

    def drop(self) -> None:
        """Undo what `begin` did: the window is lost, or this instrument raised."""

    def record(self) -> dict[str, Any]:
        """Return fields for the rank's record, `RankMeta`."""
        return {}


class InstrumentSet:
    """The instruments of a process that still work."""

    def __init__(
        self, context: InstrumentContext, kinds: Iterable[type[Instrument]]
    ) -> None:
        self._context = context
        self._instruments = [kind(context) for kind in kinds]

    @property
    def measures(self) -> bool:
        """Whether an instrument slows the running step down."""
        return any(instrument.measures for instrument in self._instruments)

    def call(self, method: str, *args: Any) -> dict[str, Any]:
        """Call a method of `Instrument` on all, and return the fields that they have."""
        fields: dict[str, Any] = {}
        # Most of them do nothing after a step, of which there are many.
        nothing = getattr(Instrument, method)
        for instrument in tuple(self._instruments):
            if getattr(type(instrument), method) is nothing:
                continue
            try:
                fields |= unseen(getattr(instrument, method), *args) or {}
            except Exception as error:
                if is_the_scripts(error):
                    raise
                what = f"{type(instrument).__name__}.{method}"
                debug.error(what)
                self._instruments.remove(instrument)
                self._context.record().note(f"{what} failed: {describe(error)}; {MORE}")
                with quietly(Exception):
                    instrument.drop()
        return fields


class ModuleList(Instrument):
    """Lists the modules at both ends of each window: the later list shows what ran in it.

    Layers may be converted between the end of a step and the forward pass of the next one, and no
    optimizer is known before step 1. The list at the beginning is for a process that is killed.
    Under a watch only the first window has a list, because a list visits the whole model.
    """

    def __init__(self, context: InstrumentContext) -> None:
        super().__init__(context)
        self._record: dict[str, Any] = {
            "modules": [],
            "modules_listed": False,
            "storage": [],
        }
        self._windows = 0

    def before_window(self) -> None:
        """List the modules that `context.optimizers` train."""
        self._windows += 1
        self._list()

    def _list(self) -> None:
        if (
            self._windows > 1
            and self.context.config["live"]
            and self._record["modules"]
        ):
            return
        optimizers = self.context.optimizers()
        modules = take_census(optimizers)
        storage = stored_in_fp8(optimizers)
        debug.event(f"{len(modules)} linear modules found")
        # The model may be gone by now.
        if modules:
            self._record["modules"] = modules
        if storage:
            self._record["storage"] = storage
        has_modules = bool(self._record["modules"])
        self._record["modules_listed"] = has_modules or can_look()

    def end(self) -> dict[str, Any]:
        """List them as the window leaves them."""
        self._list()
        return {}

    def record(self) -> dict[str, Any]:
        """Return one `ModuleRecord` for each module, and what is only kept in FP8."""
        return self._record


class FrameworkNumbers(Instrument):
    """Reads the framework's step counter at the first and last step of each window."""

    def __init__(self, context: InstrumentContext) -> None:
        super().__init__(context)
        # Before the window's first step, after it, and after the last one; none outside of windows.
        self._shown: list[dict[StepCounter, int]] = []

    def begin(self) -> None:
        """Read what the counters show before the window's first step."""
        self._shown = [counters.shown()]

    def after_step(self, _: int, /) -> None:
        """Read the counters."""
        if self._shown:
            self._shown[2:] = [counters.shown()]

    def end(self) -> dict[str, Any]:
        """Return the window's `FrameworkSteps`, by the first counter that moved, if any did."""
        shown = self._shown
        self._shown = []
        if len(shown) < 2:
            return {"framework": None}
        before = shown[0]
        first = shown[1]
        last = shown[-1]
        known = [counter for counter in last if counter in first]
        moved = []
        for counter in known:
            was = before.get(counter, first[counter])
            if last[counter] > was:
                moved.append(counter)
        best_first = (*moved, *known)
        if not best_first:
            return {"framework": None}
        shows = best_first[0]
        numbers = {
            "name": shows.shown,
            "counter": shows.name,
            "first": first[shows] + (not shows.early),
            "last": last[shows] + (not shows.early),
        }
        return {"framework": numbers}

    def drop(self) -> None:
        """Read the counters no more."""
        self._shown = []


class MemoryPeak(Instrument):
    """Reads the counters when a window ends; never resets them, they may be the script's."""

    def end(self) -> dict[str, Any]:
        """Return the window's `MemoryRecord`; None if no GPU is used."""
        if not torch.cuda.is_initialized():
            return {"memory": None}
        return {
            "memory": {
                "allocated_peak": allocated("allocated_bytes", "peak"),
                "reserved_peak": allocated("reserved_bytes", "peak"),
                "total": int(device_properties().total_memory),
            }
        }


class WindowLayers(Instrument):
    """Names the layers of an eager model during a window."""

    def __init__(self, context: InstrumentContext) -> None:
        super().__init__(context)
        self._end: Callable[[], None] | None = None

    def begin(self) -> None:
        """Observe the modules, unless the script uses torch.compile."""
        if self.context.config["layers"] and not compiles():
            self._end = name_layers(linear_modules(self.context.optimizers()))

    def end(self) -> dict[str, Any]:
        """Observe them no more and say whether they were observed until now."""
        named = self._end is not None and not compiles()
        self.drop()
        return {"layers": named}

    def drop(self) -> None:
        """Observe them no more."""
        end = self._end
        self._end = None
        if end is not None:
            end()


def name_layers(modules: Sequence[tuple[str, Any]]) -> Callable[[], None]:
    """Have a range "fp8verify:NAME" around each call of modules; what is returned ends it.

    A forward hook would put a frame of torch's into tracebacks, and show warnings twice. Instead
    the look-up of `forward` by torch's `Module._call_impl` is observed. A range ends when its record
    is freed, which the death of the bound method does, when the call is over: by `dict.pop`, since
    what a signal handler raises in a callback of Python code would be lost.
    """
    names = ModuleNames(modules)
    ranges: dict[
        weakref.ref[Any], Any
    ] = {}  # records by weak references to what is called

    def opens(bound: Any) -> None:
        name = names.of(bound.__self__)
        caller = caller_of_ours()
        if name is None or caller is None or caller.f_code is not CALL.__code__:
            return
        with quietly(Exception):
            annotation = record_function(f"{PREFIX}{name}")
            without_modes(annotation.__enter__)
            ranges[weakref.ref(bound, ranges.pop)] = annotation.record

    owners = {_owner_of_forward(module): None for _, module in modules}
    undo = [
        replaced(owner, "forward", partial(ObservedCalls, listener=opens))
        for owner in owners
        if owner is not None
    ]

    def end() -> None:
        for one in undo:
            one()
        ranges.clear()

    return until_compiling(end)


CALL: Any = torch.nn.Module._call_impl


def _owner_of_forward(module: Any) -> type | None:
    """Return the class whose `forward` a module has, if it is a function."""
    for cls in type(module).__mro__:
        if "forward" in vars(cls):
            return cls if type(vars(cls)["forward"]) is FunctionType else None
    return None


def compiles() -> bool:
    """Return whether torch.compile was asked to compile anything in this process."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    utils = sys.modules.get("torch._dynamo.utils")
    backends = getattr(eval_frame, "cached_backends", {})
    if any(backend is not None for backend in backends.values()):  # None is `disable`
        return True
    if utils is None:
        return False
    frames = utils.counters.get("frames", {})
    return bool(frames.get("ok"))


class BlasLog(Instrument):
    """Switches the logger of the cuBLASLt that the process has loaded on for each window.

    It has a line for each product, with its types and sizes, in the order of calls. The library
    writes to the file itself: a callback would take the GIL while the library holds its lock, which
    a thread that holds the GIL may wait for. (cuBLASLt 13.1; the same API since 11.5.)
    """

    def __init__(self, context: InstrumentContext) -> None:
        super().__init__(context)
        self._library: Any = None  # while its logger is on
        self._path: Path | None = None
        self._windows = 0

    def begin(self) -> None:
        """Switch it on, unless the script uses it."""
        if not self.context.config["blas_log"]:
            return
        self._windows += 1
        why = _why_not()
        if why is not None:
            self.context.record().note(f"no log of cuBLASLt: {why}")
            return
        files = self.context.record().files
        self._path = files.folder / f"{files.stem}.w{self._windows}.cublaslt.log"
        flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
        os.close(os.open(self._path, flags, 0o600))
        library = open_loaded(loaded()[0])
        if library.cublasLtLoggerOpenFile(os.fsencode(self._path)):
            raise OSError("cublasLtLoggerOpenFile refused the file")
        self._library = library
        if library.cublasLtLoggerSetMask(TRACE):
            raise OSError("cublasLtLoggerSetMask refused the mask")

    def end(self) -> dict[str, Any]:
        """Switch it off and return the name of the file, None if nothing was logged."""
        self._switch_off()
        path = self._path
        self._path = None
        if path is None or path.stat().st_size:
            return {"blas_log": None if path is None else path.name}
        path.unlink()
        self.context.record().note(
            "cuBLASLt logged no product in the window: what a CUDA graph replays was logged when "
            "it was captured, and other libraries' kernels never are"
        )
        return {"blas_log": None}

    def drop(self) -> None:
        """Switch it off and remove the file."""
        self._switch_off()
        path = self._path
        self._path = None
        if path is not None:
            with quietly(OSError):
                path.unlink()

    def _switch_off(self) -> None:
        library = self._library
        self._library = None
        if library is not None:
            library.cublasLtLoggerSetMask(OFF)
            library.cublasLtLoggerOpenFile(NOWHERE)


def _why_not() -> str | None:
    """Return why the logger is not to be touched, None if it may be."""
    asked = next((name for name in VARIABLES if os.environ.get(name)), None)
    if asked is not None:
        return f"{asked} is set, so the log is the script's own; give its file to inspect too"
    libraries = loaded()
    if not libraries:
        return "this process has not loaded the library (hipBLASLt: set HIPBLASLT_LOG_MASK=2)"
    if libraries[1:]:
        return f"this process has loaded {len(libraries)} copies of it"
    return None


def loaded() -> list[str]:
    """Return the files of cuBLASLt that are mapped into this process."""
    with MAPS.open(encoding="utf-8", errors="surrogateescape") as maps:
        lines = [line.rstrip("\n") for line in maps if LIBRARY in line]
    return sorted({line[line.index("/") :] for line in lines})


def open_loaded(path: str) -> Any:
    """Return a loaded library; it is never loaded for us.

    Raises:
        OSError: it is not loaded.
        AttributeError: while calling, it has no such function.
    """
    return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
