"""Fork for each call that arrives on the socket; the fork becomes the script. See `__init__.py`."""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import threading
import types
import warnings
from pathlib import Path
from typing import NamedTuple, NoReturn

STREAMS = 3
PATIENCE_S = 1.0


class Call(NamedTuple):
    """What a process is started with."""

    words: list[str]
    folder: str
    environment: dict[str, str]


def serve(listener: socket.socket, tests: int) -> Call:
    """Answer every call while the process of the tests lives; return in those that run one."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            if not selector.select(PATIENCE_S):
                if not is_alive(tests):
                    shutil.rmtree(
                        Path(listener.getsockname()).parent, ignore_errors=True
                    )
                    os._exit(0)
                continue
            connection, _ = listener.accept()
            call = answer(connection)
            connection.close()
            if call is not None:
                listener.close()
                return call


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def answer(connection: socket.socket) -> Call | None:
    """Fork a process that runs the call and one that waits for it; return the call in the first."""
    if fork():
        return None
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    call, streams = receive(connection)
    child = fork()
    if not child:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    if not child:
        return call
    for number in range(STREAMS):  # the call's output ends when the call does
        os.close(number)
    _, status = os.waitpid(child, 0)
    connection.sendall(str(status).encode())
    os._exit(0)


def fork() -> int:
    with (
        warnings.catch_warnings()
    ):  # Python 3.12 warns, since torch has a thread that sleeps
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def receive(connection: socket.socket) -> tuple[Call, list[int]]:
    _, streams, _, _ = socket.recv_fds(connection, 1, STREAMS)
    with connection.makefile("rb") as file:
        return Call(**json.load(file)), streams


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
    """Run it and exit as an interpreter would, but for a second that it takes to free torch."""
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
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    imports = importlib.import_module(sys.argv[3])
    imports.before_the_forks()
    gc.collect()
    gc.freeze()  # else the first collection in each fork copies all of this memory
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(Path(sys.argv[1], "socket")))
        listener.listen()
        print("ready", flush=True)
        call = serve(listener, int(sys.argv[2]))
    prepare(call)
    run_to_its_end(call.words)
