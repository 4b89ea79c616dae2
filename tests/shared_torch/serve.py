"""Fork for each call that arrives on the socket; the fork becomes the script. See `__init__.py`."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import marshal
import os
import runpy
import selectors
import shutil
import socket
import sys
import threading
import types
import warnings
import weakref
from pathlib import Path
from typing import NamedTuple, NoReturn

STREAMS = 3
PATIENCE_S = 1.0
SENDING_S = 60.0
LARGE_PAGE = 1 << 21
MADV_COLLAPSE = 25
WHOLE_EXIT = "FP8VERIFY_TESTS_WHOLE_EXIT"


class Call(NamedTuple):
    """What a process is started with."""

    words: list[str]
    folder: str
    environment: dict[str, str]


class Running(NamedTuple):
    """A process that runs a call, and to whom to tell its end."""

    process: int
    connection: socket.socket


def serve(listener: socket.socket, tests: int) -> Call:
    """Answer every call while the process of the tests lives; return in those that run one."""
    running: dict[int, Running] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            ready = selector.select(PATIENCE_S)
            if not ready and not is_alive(tests):
                shutil.rmtree(Path(listener.getsockname()).parent, ignore_errors=True)
                os._exit(0)
            for key, _ in ready:
                if key.fd in running:
                    selector.unregister(key.fd)
                    tell_the_end(key.fd, running.pop(key.fd))
                    continue
                connection, _ = listener.accept()
                call = answer(connection, running)
                if call is not None:
                    listener.close()
                    return call
                for end in running.keys() - selector.get_map().keys():
                    selector.register(end, selectors.EVENT_READ)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def answer(connection: socket.socket, running: dict[int, Running]) -> Call | None:
    """Fork a process that runs the call, and note that it runs; return the call in the fork."""
    try:
        call, streams = receive(connection)
    except (OSError, ValueError, EOFError):  # who called was killed
        connection.close()
        return None
    child = fork()
    if not child:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        connection.close()
        for end, other in running.items():
            os.close(end)
            other.connection.close()
    for stream in streams:
        os.close(stream)
    if not child:
        return call
    running[os.pidfd_open(child)] = Running(child, connection)
    return None


def tell_the_end(end: int, ended: Running) -> None:
    """Send the status of a process that has ended to who called."""
    _, status = os.waitpid(ended.process, 0)
    os.close(end)
    with contextlib.suppress(OSError), ended.connection:  # who called may be gone
        ended.connection.sendall(str(status).encode())


def fork() -> int:
    with (
        warnings.catch_warnings()
    ):  # Python 3.12 warns, since torch has a thread that sleeps
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def receive(connection: socket.socket) -> tuple[Call, list[int]]:
    connection.settimeout(SENDING_S)
    _, streams, _, _ = socket.recv_fds(connection, 1, STREAMS)
    with connection.makefile("rb") as file:
        call = marshal.loads(file.read())
    environment = {}
    for name, value in call["environment"].items():
        environment[os.fsdecode(name)] = os.fsdecode(value)
    return Call(call["words"], call["folder"], environment), streams


def use_large_pages() -> None:
    """Ask for pages of 2 MB: forking takes a quarter of the time that small ones take.

    Where it cannot be had, all works as well.
    """
    advise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, _, *names = line.split(maxsplit=5)
        if access != "rw-p" or names not in ([], ["[heap]"]):
            continue
        begin, end = (int(address, 16) for address in addresses.split("-"))
        first = -(-begin // LARGE_PAGE) * LARGE_PAGE
        for page in range(first, end - LARGE_PAGE + 1, LARGE_PAGE):
            advise(ctypes.c_void_p(page), ctypes.c_size_t(LARGE_PAGE), MADV_COLLAPSE)


def finalize_at_exit(wanted: bool) -> None:
    """Say whether an exit takes back all that imports gave to C++, such as torch's operators."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = wanted


def prepare(call: Call) -> None:
    """Take over what a new interpreter would begin with."""
    os.chdir(call.folder)
    os.environ.clear()
    os.environ.update(call.environment)
    path = call.environment.get("PYTHONPATH", "")
    sys.path[0:1] = [entry for entry in path.split(os.pathsep) if entry]
    imports.in_the_fork()
    sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise


def run(words: list[str]) -> None:
    """Run `SCRIPT ARGUMENTS…` or `-m MODULE ARGUMENTS…` as the main program, maybe after `-u`."""
    if words[0] == "-u":
        words = words[1:]
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    script, sys.argv = words[0], words
    sys.path.insert(0, str(Path(script).absolute().parent))
    main = types.ModuleType("__main__")
    main.__file__, main.__builtins__ = script, __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = (
        main  # and left there: exit handlers of the script look at it
    )
    exec(compile(Path(script).read_bytes(), script, "exec"), vars(main))


def run_to_its_end(words: list[str]) -> NoReturn:
    """Run it and exit as an interpreter would, but for a second that it takes to free torch.

    It takes that second too where `WHOLE_EXIT` is in the environment.
    """
    if WHOLE_EXIT in os.environ:
        finalize_at_exit(True)
    code = 0
    try:
        run(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        code = 1
        sys.excepthook(*sys.exc_info())
    if WHOLE_EXIT in os.environ:
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    imports = importlib.import_module(sys.argv[3])
    imports.before_the_forks()
    finalize_at_exit(False)  # else each fork copies ten thousand pages to do so
    gc.collect()
    gc.freeze()  # else the first collection in each fork copies all of this memory
    use_large_pages()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(Path(sys.argv[1], "socket")))
        listener.listen()
        print("ready", flush=True)
        call = serve(listener, int(sys.argv[2]))
    prepare(call)
    run_to_its_end(call.words)
