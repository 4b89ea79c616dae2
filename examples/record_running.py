"""Record a training process that is already running and was started with KINETO_USE_DAEMON=1.

    python record_running.py PID TRACE.json [MILLISECONDS]

It answers the requests that torch's Kineto sends to dynolog every few seconds, as dynolog's
IPCMonitor does (dynolog/src/tracing/IPCMonitor.cpp, dynolog/src/ipcfabric), with one request for a
trace. Kineto then warms up for five seconds, records and writes TRACE_PID.json. Where dynolog
itself runs, use `dyno gputrace`. A run that ends while this is recorded crashes when Python
exits (torch 2.13.0). KINETO_IPC_SOCKET_DIR is the folder where both meet, for one training or in
containers; without it the whole machine meets at one address.
"""

import errno
import os
import socket
import struct
import sys
import time
from pathlib import Path

HEADER = struct.Struct("<Q32s")  # size of what follows, kind of message
REQUEST = struct.Struct(
    "<iiq"
)  # kind of profile, number of process ids, job; then the ids
ACTIVITIES = 2
PATIENCE_S = 60.0
FOLDER = os.environ.get(
    "KINETO_IPC_SOCKET_DIR", ""
)  # as in dynolog/src/ipcfabric/Endpoint.h
ADDRESS = f"{FOLDER}/dynolog" if FOLDER else "\0dynolog\0"


def wanted(trace: Path, milliseconds: int) -> bytes:
    """Return the request for a trace in Kineto's own words."""
    return (
        f"ACTIVITIES_LOG_FILE={trace}\nPROFILE_START_TIME=0\n"
        f"ACTIVITIES_DURATION_MSECS={milliseconds}\nPROFILE_REPORT_INPUT_SHAPES=true\n"
    ).encode()


def asks(body: bytes, pid: int) -> bool:
    """Whether a message asks what to record in the process."""
    kind, count, _ = REQUEST.unpack_from(body)
    ids = struct.unpack_from(f"<{count}i", body, REQUEST.size)
    return bool(kind & ACTIVITIES) and ids[:1] == (pid,)


def listen(endpoint: socket.socket) -> None:
    """Take dynolog's address, unless somebody answers there."""
    try:
        endpoint.bind(ADDRESS)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        if FOLDER and endpoint.connect_ex(ADDRESS) == errno.ECONNREFUSED:
            Path(ADDRESS).unlink()  # it stayed there from one who has ended
            endpoint.bind(ADDRESS)
            return
        sys.exit(
            "dynolog, or another recorder, answers here already: use `dyno gputrace`"
        )


def main() -> None:
    """Wait until the process asks, and answer it once."""
    pid, trace = int(sys.argv[1]), Path(sys.argv[2]).absolute()
    config = wanted(trace, int(sys.argv[3]) if len(sys.argv) > 3 else 2000)
    deadline = time.monotonic() + PATIENCE_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as endpoint:
        listen(endpoint)
        while (left := deadline - time.monotonic()) > 0:
            endpoint.settimeout(left)
            try:
                message, sender = endpoint.recvfrom(1 << 16)
            except TimeoutError:
                break
            size, kind = HEADER.unpack_from(message)
            body, answer = message[HEADER.size :], b""
            if kind.startswith(b"ctxt"):  # it registers; the answer is how many have
                answer = struct.pack("<i", 1)
            elif size >= REQUEST.size and asks(body, pid):
                answer = config
            endpoint.sendto(HEADER.pack(len(answer), kind) + answer, sender)
            if answer == config:
                print(
                    f"{pid} records to {trace.with_name(f'{trace.stem}_{pid}{trace.suffix}')}"
                )
                return
    os.kill(pid, 0)  # an error if there is no such process
    sys.exit(
        f"{pid} did not ask within {PATIENCE_S:.0f} s: it runs without KINETO_USE_DAEMON=1"
    )


if __name__ == "__main__":
    main()
