# Written into a program of its own by `shared_torch`, below lines that define SOCKET and OF_OURS.
# Of the library only modules in C: `os`, `json` and `socket` would take longer than all of this.
import _signal
import _socket
import _stat
import marshal
import posix
import sys


def needs_a_new_interpreter():
    if not OF_OURS:  # noqa: F821
        return sys.argv[1] in ("-c", "-I")  # a question about it, not a script
    settings = {b"PYTHONIOENCODING", b"PYTHONUTF8", b"PYTHONWARNINGS", b"PYTHONDEVMODE"}
    if settings & posix.environ.keys():
        return True
    is_run = sys.argv[3:4] == ["run"]
    if is_run and b"FP8VERIFY_TESTS_FORK_RUN" not in posix.environ:
        return True
    return any(map(is_a_device, range(3)))


def is_a_device(number):
    try:
        found = posix.fstat(number)
    except OSError:
        return True
    is_null = found.st_rdev == posix.makedev(1, 3)
    return _stat.S_ISCHR(found.st_mode) and not is_null


if needs_a_new_interpreter():
    posix.execv(sys.executable, [sys.executable, *sys.argv[1:]])
connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
connection.connect(SOCKET)  # noqa: F821
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)]
connection.sendmsg([b"\n"], rights)
call = {"words": sys.argv[1:], "folder": posix.getcwd(), "environment": posix.environ}
connection.sendall(marshal.dumps(call))
connection.shutdown(_socket.SHUT_WR)
status = int(connection.recv(16))
if posix.WIFSIGNALED(status):
    number = posix.WTERMSIG(status)
    if number != _signal.SIGKILL:
        _signal.signal(number, _signal.SIG_DFL)
    posix.kill(posix.getpid(), number)
posix._exit(posix.WEXITSTATUS(status))
