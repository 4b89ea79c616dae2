# Written into a program of its own by `shared_torch`, below a line that defines SOCKET.
import array
import json
import os
import signal
import socket
import sys

if sys.argv[1] in ("-c", "-I"):  # a question about the interpreter, not a script
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
