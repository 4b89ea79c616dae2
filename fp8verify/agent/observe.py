"""Observe methods and functions of torch and of frameworks, unseen by the script and torch.compile.

A descriptor reports the look-up of a method and returns the original: no frame of ours appears in
the script's tracebacks.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterable
from types import FrameType, ModuleType
from typing import Any, TypeVar

import torch
import torch.nn.modules.module as module_hooks
from torch.utils._python_dispatch import _pop_mode, _push_mode
from torch.utils.hooks import RemovableHandle

from .debug import debug
from .guard import is_the_scripts, quietly

T = TypeVar("T")
_eval_frame: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
_set_eval_frame: Any = getattr(_eval_frame, "set_eval_frame", None)
_get_eval_frame: Any = getattr(_eval_frame, "get_eval_frame_callback", None)


def _eval_frame_callback() -> Any:
    if _get_eval_frame is not None:
        return _get_eval_frame()
    before = _set_eval_frame(None)  # an older torch
    _set_eval_frame(before)
    return before


def hidden(
    function: Callable[..., Any], *, when_traced: Callable[[], None] | None = None
) -> Callable[..., Any]:
    """Hide one of fp8verify's hooks from torch.compile.

    If the caller is traced, `is_compiling()` folds to True, and the hook leaves nothing in
    the graph. If the caller runs between two graphs, torch.compile would compile the hook and
    all that it calls: its callback is removed during the call.

    `when_traced` is called instead while the caller is traced.
    """

    def fp8verify_hook(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return when_traced and when_traced()
        before = _eval_frame_callback()
        try:  # a signal handler may raise right behind the call that removes it
            _set_eval_frame(None)
            return function(*args, **kwargs)
        finally:
            _set_eval_frame(before)

    if _set_eval_frame is None:
        return function
    invisible(fp8verify_hook)
    return fp8verify_hook


def invisible(function: Any) -> None:
    """Keep torch.compile from compiling the frame of a function of ours on its own."""
    with quietly(Exception):  # a torch that has neither
        if hasattr(_eval_frame, "skip_code"):  # before torch 2.7
            _eval_frame.skip_code(function.__code__)
        else:
            skip = _eval_frame._FrameAction.SKIP
            default = _eval_frame._FrameAction.DEFAULT
            strategy = _eval_frame._FrameExecStrategy(skip, default)
            _eval_frame.set_code_exec_strategy(function.__code__, strategy)


def without_modes(function: Callable[..., T], *args: Any) -> T:
    """Call a function; hide its operators from the script's dispatch and function modes.

    Tensor classes and observers see them, unlike with `stored.unseen`: ranges are for the profiler.
    """
    functions: list[Any] = []
    dispatch: list[Any] = []
    try:
        while torch._C._len_torch_function_stack():
            functions.append(torch._C._pop_torch_function_stack())
        while torch._C._len_torch_dispatch_stack():
            dispatch.append(_pop_mode())
        return function(*args)
    finally:
        try:
            while dispatch:
                _push_mode(dispatch.pop())
        finally:
            while functions:
                torch._C._push_on_torch_function_stack(functions.pop())


OWN = __name__.rpartition(".")[0]  # this package
_KEYS = torch._C._TorchDispatchModeKey
TRACERS = (_KEYS.PROXY, _KEYS.FUNCTIONAL, _KEYS.FAKE)


def is_traced() -> bool:
    """Whether the caller runs to be scripted, traced or exported, and not to train."""
    if torch.compiler.is_compiling():
        return True
    if torch._C._get_tracing_state() is not None or _is_exporting():
        return True
    if not torch._C._len_torch_dispatch_stack():
        return False
    return any(torch._C._get_dispatch_mode(key) is not None for key in TRACERS)


# Before torch 2.7 there is none.
_is_exporting: Any = getattr(torch.compiler, "is_exporting", lambda: False)

_own_numbers = itertools.count(-1, -1)


def register(
    how: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Register a hook of torch under a number of ours, and return its handle.

    The numbers of the script's own hooks, which are pickled with its modules, stay what they are.
    """
    following = RemovableHandle.next_id
    handle = how(*args, **kwargs)
    RemovableHandle.next_id = following
    number = next(_own_numbers)
    others = handle.extra_dict_ref or ()
    for reference in (handle.hooks_dict_ref, *others):
        hooks = reference()
        if hooks is not None and handle.id in hooks:
            hooks[number] = hooks.pop(handle.id)
    handle.id = number
    return handle


def on_calls(
    modules: Iterable[tuple[str, Any]],
    before: Callable[[str, Any, Any], None],
    after: Callable[[str, Any, Any, Any, Any], None],
) -> Callable[[], None]:
    """Have the calls of modules reported, with nothing left on them; return what ends it.

    What is on a module is pickled, copied, scripted and exported with it: the hooks are torch's
    global ones.

    Args:
        modules: the modules, by name.
        before: called with the name, the module and the arguments.
        after: called with these, the keyword arguments and what was returned, after an error too.
    """
    names = ModuleNames(modules)

    def report(
        to: Callable[..., None],
        module: Any,
        *seen: Any,
    ) -> None:
        name = names.of(module)
        if name is None or is_traced():
            return
        if to is after and len(seen) == 2:
            # torch gives no keyword arguments after an error.
            args, result = seen
            seen = (args, {}, result)
        try:
            without_modes(to, name, module, *seen)
        except Exception as error:
            if is_the_scripts(error):
                raise
            debug.error("a hook on modules")

    begins = hidden(functools.partial(report, before))
    ends = hidden(functools.partial(report, after))
    before_calls = register(module_hooks.register_module_forward_pre_hook, begins)
    after_calls = register(
        module_hooks.register_module_forward_hook,
        ends,
        always_call=True,
    )
    with_kwargs = module_hooks._global_forward_hooks_with_kwargs
    with_kwargs[after_calls.id] = True  # which torch's handle leaves behind
    undo = replaced(module_hooks, "_has_any_global_hook", _not_counting_ours)

    def end() -> None:
        before_calls.remove()
        after_calls.remove()
        with_kwargs.pop(after_calls.id, None)
        undo()

    return until_compiling(end)


class ModuleNames:
    """The names of modules, found by the dictionary of a module's own hooks.

    Only a replica of `DataParallel` shares that; a module may define `__eq__` and `__hash__`.
    """

    def __init__(self, modules: Iterable[tuple[str, Any]]) -> None:
        # While these live, no other dictionary has the number of one.
        self._hooks = []
        self._names = {}
        for name, module in modules:
            hooks = vars(module).get("_forward_hooks")
            if hooks is not None:
                self._hooks.append(hooks)
                self._names[id(hooks)] = name

    def of(self, module: Any) -> str | None:
        """Return the name of a module, None if it is not one of these."""
        hooks = vars(module).get("_forward_hooks")
        return self._names.get(id(hooks))


_ends: list[Callable[[], None]] = []


def until_compiling(end: Callable[[], None]) -> Callable[[], None]:
    """Return `end`, which is also called before the script first asks torch.compile for anything.

    Compiled code has guards by the hooks and classes of its modules: what is on them for a window
    would have it compiled again behind the window.
    """
    _ends.append(end)
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is not None:
        observe(compiler.OptimizeContext, "__init__", _before_compiling)
    return functools.partial(_end_once, end)


def _end_once(end: Callable[[], None]) -> None:
    if end in _ends:
        _ends.remove(end)
        end()


def _before_compiling(_: Any) -> None:
    for end in tuple(_ends):
        _end_once(end)


def _not_counting_ours(_: Callable[[], bool]) -> Callable[[], bool]:
    """Answer to a compiled module, which runs eagerly in this step and would warn of our hooks."""
    hooks = (module_hooks._global_forward_pre_hooks, module_hooks._global_forward_hooks)
    others = (
        module_hooks._global_backward_pre_hooks,
        module_hooks._global_backward_hooks,
    )

    def fp8verify_has_any_global_hook() -> bool:
        if any(others):
            return True
        return any(_has_script_hook(known) for known in hooks)

    return fp8verify_has_any_global_hook


def _has_script_hook(hooks: Iterable[int]) -> bool:
    return any(number >= 0 for number in hooks)


class Replacement:
    """A function of a module or class that something of ours stands in for."""

    def __init__(
        self,
        owner: Any,
        name: str,
        wrap: Callable[[Any], Any],
    ) -> None:
        self._owner = owner
        self._name = name
        self._original = vars(owner)[name]
        self._ours = wrap(self._original)
        setattr(owner, name, self._ours)
        _replacements.append(self)

    def undo(self) -> None:
        """Put the function back, unless others have replaced it too."""
        if vars(self._owner).get(self._name) is self._ours:
            setattr(self._owner, self._name, self._original)
        if self in _replacements:
            _replacements.remove(self)


_replacements: list[Replacement] = []


def replaced(
    owner: Any,
    name: str,
    wrap: Callable[[Any], Any],
) -> Callable[[], None]:
    """Replace a function of a module or class; what is returned undoes it, unless others have."""
    return Replacement(owner, name, wrap).undo


def unobserve_all() -> None:
    """Undo every `replaced`, `observe` and `observe_function`."""
    for replacement in _replacements[::-1]:
        replacement.undo()


class _Original:
    """Stands in for a function, and is the function to whoever asks."""

    function: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.function)

    def __instancecheck__(self, instance: Any) -> bool:
        """Answer for a class, which a function of C may be."""
        return isinstance(instance, self.function)


def original(thing: Any) -> Any:
    """Return what something of ours stands in for; anything else as it is."""
    return thing.function if issubclass(type(thing), _Original) else thing


class ObservedFunction(_Original):
    """A function that calls `listener()` before each call, and leaves no frame of ours in it.

    It is looked up by Python's own `()`, wherever the script has taken it from.
    """

    def __init__(self, function: Any, listener: Callable[[], None]) -> None:
        self.function = function
        self.listener = hidden(listener)

    def _look_up(self) -> Any:
        self.listener()
        return self.function

    invisible(_look_up)
    __call__ = property(_look_up)


def observe_function(
    module: ModuleType,
    name: str,
    listener: Callable[[], None],
) -> None:
    """Call `listener` before each call of a function of a module; only the first call counts."""
    if not issubclass(type(vars(module)[name]), ObservedFunction):
        replaced(module, name, functools.partial(ObservedFunction, listener=listener))


class Observed(_Original):
    """A method that calls `listener(instance)` whenever it is looked up on an instance.

    The lookup returns the original bound method. Unlike with a wrapper, an error inside it has the
    same traceback as without fp8verify, and `inspect` sees the original. Code that reads
    the class's dictionary must take this for a function too: jsonargparse (LightningCLI)
    refuses a class whose `__init__` is not a function.
    """

    def __init__(self, method: Any, listener: Callable[[Any], None]) -> None:
        functools.update_wrapper(self, method)
        self.function = method
        self.listener = hidden(listener)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if torch.compiler.is_compiling():
            return self.function.__get__(instance)
        # Python 3.13's inspect.signature binds a class's own `__init__` to the class.
        if instance is not None and not isinstance(instance, type):
            self.listener(instance)
        return self.function.__get__(instance, owner)

    invisible(__get__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method, for callers that found it in the class's dictionary."""
        return self.function(*args, **kwargs)


class ObservedCalls(Observed):
    """A method that calls `listener(bound)` with what a look-up on an instance returns.

    The caller keeps the bound method as long as it runs: a weak reference to it dies with the call,
    and leaves no frame of ours in it.
    """

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        found = self.function.__get__(instance, owner)
        if instance is not None and not is_traced():
            self.listener(found)
        return found

    invisible(__get__)


def caller_of_ours() -> FrameType | None:
    """Return the frame of the script, torch or a framework that has led to the code of ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(OWN):
            return frame
        frame = frame.f_back
    return None


def observe(
    owner: type,
    name: str,
    listener: Callable[[Any], None],
) -> None:
    """Call `listener(instance)` at each look-up of `owner.name`; a second call replaces it."""
    method = vars(owner)[name]
    if issubclass(type(method), Observed):
        method.listener = hidden(listener)
    else:
        replaced(owner, name, functools.partial(Observed, listener=listener))
