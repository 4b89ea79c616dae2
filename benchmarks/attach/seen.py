"""Trainings that look at themselves in every step, and print what they see: `seen.py CASE`."""

import copy
import ctypes
import faulthandler
import hashlib
import io
import multiprocessing
import os
import pickle
import signal
import sys
import warnings

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

warnings.simplefilter("ignore")
torch.manual_seed(0)
torch.set_num_threads(1)
CASE = sys.argv[1]
x = torch.randn(8, 16)


def scale(_, __, out):  # a hook of the script's own, which is pickled with its number
    return out * 1


model = torch.nn.Sequential(
    torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def digest(data):
    return hashlib.sha256(data).hexdigest()[:12]


def saved(what):
    file = io.BytesIO()
    torch.save(what, file)
    return digest(file.getvalue())


def step():
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def saves(number):
    """Whole models, copies and outputs."""
    if number == 1:
        model.register_forward_hook(scale)
    step()
    average, again = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    print(saved(model), saved(average), saved(again), saved(optimizer), saved(model(x)))
    print(copy.copy(model)(x).sum().item(), list(model._forward_hooks))


def scripts(number):
    """TorchScript, tracing, export and FX."""
    step()
    if 2 <= number <= 6:
        scripted, traced = torch.jit.script(model), torch.jit.trace(model, x)
        print(str(scripted.graph).count("\n"), str(traced.inlined_graph))
        print(torch.export.export(model, (x,)).graph_module.code)
        print(torch.fx.symbolic_trace(model).code)
        print(torch.fx.experimental.proxy_tensor.make_fx(model)(x).code)


def compiles_late(number):
    """A model that is compiled inside the window."""
    step()
    if number == 3:
        model.compile(backend="eager")


def child(how):
    loss = step().item()
    if how == "profiles":
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU]
        ) as profile:
            step()
        loss = sum(event.key == "aten::addmm" for event in profile.key_averages())
    print(how, loss, flush=True)
    if how == "raises":
        os.close(2)
        raise ValueError
    if how == "leaves":
        os._exit(4)
    if how == "execs":
        os.execv(sys.executable, [sys.executable, "-c", "print('other')"])
    ctypes.CDLL(None).printf(b"from C\n")
    sys.exit(3)


def forks(number):
    """Children that go on from here, in all ways in which a process ends."""
    step()
    for how in (
        ("exits", "raises", "leaves", "profiles", "execs") if 2 <= number <= 5 else ()
    ):
        sys.stdout.flush()
        forked = os.fork()
        if not forked:
            child(how)
        print(how, os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]))
    if number in (4, 6):
        sys.stdout.flush()
        process = multiprocessing.get_context("fork").Process(
            target=child, args=("exits",)
        )
        process.start()
        process.join()
        print(process.exitcode)


def raw():
    from torch._C._autograd import (
        _disable_profiler,
        _enable_profiler,
        _prepare_profiler,
    )

    state, none = (
        torch._C._profiler.ProfilerState.KINETO,
        torch._C._profiler._ExperimentalConfig(),
    )
    made = torch._C._profiler.ProfilerConfig(
        state, False, False, False, False, False, none
    )
    activities = {torch.profiler.ProfilerActivity.CPU}
    _prepare_profiler(made, activities)
    _enable_profiler(made, activities)
    print(step().item(), torch.autograd._profiler_enabled())
    print(sum(event.name() == "aten::addmm" for event in _disable_profiler().events()))


def observes(number):
    """Other front ends of torch's profiler, and what lies below them."""
    if number in (3, 7):
        with torch.autograd.profiler.emit_itt():
            print(step().item())
    elif number in (4, 9):
        raw()
    elif number == 5:
        observer = torch.profiler.ExecutionTraceObserver().register_callback(
            "trace.json"
        )
        observer.start()
        step()
        observer.stop()
        observer.unregister_callback()
        with open("trace.json") as file:
            print(file.read().count('"name"'))
        os.remove("trace.json")
    elif number == 6:
        with torch.autograd.profiler.profile(use_kineto=True) as profile:
            step()
        print(sum(event.key == "aten::addmm" for event in profile.key_averages()))
    else:
        print(step().item())


class Calls(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        seen.append(str(function))
        return function(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        seen.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


seen = []


def modes(number):
    """All operators and functions that are called, in all steps and between them."""
    if number == 1:
        Calls().__enter__()
        Functions().__enter__()
    print(step().item(), len(seen), digest(" ".join(seen).encode()))
    seen.clear()


null = os.open(os.devnull, os.O_WRONLY)


def signals(number):
    """Handlers of all kinds, one after the other."""
    if number < 5:
        print(
            signal.getsignal(signal.SIGTERM),
            signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        )
    if number == 4:
        faulthandler.register(signal.SIGTERM, null, chain=False)
        os.kill(os.getpid(), signal.SIGTERM)
        print(faulthandler.unregister(signal.SIGTERM))
    if number == 5:
        before = signal.signal(signal.SIGTERM, lambda *_: print("heard"))
        print(before)
    step()
    if number > 5:
        os.kill(os.getpid(), signal.SIGTERM)


def descriptors(_):
    """Close all that a daemon closes, and look at the numbers of new ones."""
    os.closerange(3, 200)
    step()
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]
    print(files, sorted(map(int, os.listdir("/proc/self/fd")))[:12])


def ends(number):
    """End by a signal inside the window."""
    print(step().item(), flush=True)
    if number == 4:
        os.kill(os.getpid(), int(sys.argv[2]))


for number in range(1, 13):
    globals()[CASE](number)
print(saved(model.state_dict()))
