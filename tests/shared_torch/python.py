# Written into a program of its own by `shared_torch`, below lines that define SOCKET and OF_OURS.
import array
import json
import os
import signal
import socket
import stat
import sys


def needs_a_new_interpreter():
    if not OF_OURS:  # noqa: F821
        return sys.argv[1] in ("-c", "-I")  # a question about it, not a script
    settings = {"PYTHONIOENCODING", "PYTHONUTF8", "PYTHONWARNINGS", "PYTHONDEVMODE"}
    if settings & os.environ.keys():
        return True
    if sys.argv[3:4] == ["run"] and "FP8VERIFY_TESTS_FORK_RUN" not in os.environ:
        return True
    return any(map(is_a_device, range(3)))


def is_a_device(number):
    try:
        found = os.fstat(number)
    except OSError:
        return True
    is_null = found.st_rdev == os.makedev(1, 3)
    return stat.S_ISCHR(found.st_mode) and not is_null


if needs_a_new_interpreter():
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(SOCKET)  # noqa: F821
    streams = array.array("i", [0, 1, 2])
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)]
    connection.sendmsg([b"\n"], rights)
    folder = os.getcwd()  # noqa: PTH109  (pathlib takes longer to import than all of this to run)
    call = {"words": sys.argv[1:], "folder": folder, "environment": dict(os.environ)}
    connection.sendall(json.dumps(call).encode())
    connection.shutdown(socket.SHUT_WR)
    status = int(connection.makefile().read())
if os.WIFSIGNALED(status):
    number = os.WTERMSIG(status)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
os._exit(os.WEXITSTATUS(status))
