"""The examples work: trainers on a CPU, attached to by `fp8verify run`, and the recorder."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.command_line import PATIENCE_S
from tests.shared_torch import FORKS_RUN, python_with_torch
from tests.shown import Shown

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.mark.train
def test_the_trainers_of_the_examples_are_attached_to(
    shown: Shown, tmp_path: Path
) -> None:
    for package in ("transformers", "lightning", "torchao"):
        if find_spec(package) is None:
            pytest.skip(f"needs {package}, from the test and train extras")
    (tmp_path / "examples").symlink_to(EXAMPLES)
    for package, folder in (("transformers", "hf-trainer"), ("lightning", "lightning")):
        (command,) = (one for one in shown.commands if folder in one)

        done = shown.run(
            command, FP8VERIFY_PYTHON=str(python_with_torch()), FP8VERIFY_TRACE_DIR=folder,
            FP8VERIFY_FORMAT="json", FP8VERIFY_OUTPUT="report.json", **FORKS_RUN,
        )  # fmt: skip

        assert done.returncode == 3, done.stderr
        report = json.loads((tmp_path / "report.json").read_text())
        assert report["verdict"] == "INCONCLUSIVE"
        (rank,) = report["ranks"]
        assert [step["step"] for step in rank["steps"]] == [5, 6, 7]
        assert rank["modules"]["counts"] == {"fp8": 4}
        window = json.loads((tmp_path / folder / "rank0.meta.json").read_text())[
            "window"
        ][0]
        assert window["framework"]["name"] == package
        assert (window["framework"]["first"], window["framework"]["last"]) == (5, 7)


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of this test alone: by default all of a machine share dynolog's address."""
    with TemporaryDirectory() as folder:  # whose name is short enough for a socket's
        monkeypatch.setenv("KINETO_IPC_SOCKET_DIR", folder)
        yield Path(folder)


def test_a_running_training_is_asked_for_a_trace_as_dynolog_does(
    tmp_path: Path, sockets: Path
) -> None:
    """What Kineto sends, by dynolog/src/ipcfabric/Utils.h, and what it must get."""
    header, pid = struct.Struct("<Q32s"), os.getpid()
    with socket.socket(
        socket.AF_UNIX, socket.SOCK_DGRAM
    ) as former:  # which left its address
        former.bind(str(sockets / "dynolog"))
    script = [
        sys.executable,
        EXAMPLES / "record_running.py",
        f"{pid}",
        "trace.json",
        "800",
    ]
    recorder = subprocess.Popen(script, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as kineto:
        kineto.bind(str(sockets / f"kineto-{pid}"))
        kineto.settimeout(PATIENCE_S)
        answers = []
        for kind, body in (
            (b"ctxt", struct.pack("<iiq", 0, pid, 0)),
            (
                b"req",
                struct.pack("<iiqi", 1, 1, 0, pid),
            ),  # asks for events, not activities
            (b"req", struct.pack("<iiqi", 3, 1, 0, pid + 1)),  # is another process
            (b"req", struct.pack("<iiqii", 3, 2, 0, pid, os.getppid())),
        ):
            send(kineto, header.pack(len(body), kind) + body, recorder, sockets)
            answer = kineto.recv(1 << 16)
            size, said = header.unpack_from(answer)
            assert (said.rstrip(b"\0"), size) == (kind, len(answer) - header.size)
            answers.append(answer[header.size :])
            if kind == b"ctxt":  # it listens: there is no room for a second one
                second = subprocess.run(
                    script, cwd=tmp_path, capture_output=True, text=True
                )
                assert (second.returncode, second.stderr.count("\n")) == (1, 1)
                assert "dyno gputrace" in second.stderr

    assert answers[:3] == [struct.pack("<i", 1), b"", b""]
    assert answers[3].decode().splitlines()[:3] == [
        f"ACTIVITIES_LOG_FILE={tmp_path / 'trace.json'}",
        "PROFILE_START_TIME=0",
        "ACTIVITIES_DURATION_MSECS=800",
    ]
    said, _ = recorder.communicate(timeout=PATIENCE_S)
    assert said == f"{pid} records to {tmp_path / f'trace_{pid}.json'}\n"


def send(
    kineto: socket.socket,
    message: bytes,
    recorder: subprocess.Popen[str],
    sockets: Path,
) -> None:
    """Send a message to the script, which may not listen yet."""
    while kineto.connect_ex(str(sockets / "dynolog")):
        assert recorder.poll() is None
        time.sleep(0.01)
    kineto.send(message)
