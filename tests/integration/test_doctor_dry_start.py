"""`fp8verify doctor -- COMMAND` starts a training until its first optimizer is built."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fp8verify.preflight.dry_start import marked
from tests import doctor_files as files
from tests.command_line import PATIENCE_S, fp8verify
from tests.doctor_files import write
from tests.integration.shells import wait_until
from tests.shared_torch import python_with_torch

pytestmark = pytest.mark.train
ROOT = Path(__file__).parents[2]
HEAD = """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4096, 8)
        self.experts = nn.ModuleList([nn.Linear(4096, 2048), nn.Linear(2048, 4096)])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(1024, 4096)
        self.block = Block()
        self.head = nn.Linear(4096, 1024, bias=False)
        self.head.weight = self.tokens.weight


with torch.device("meta"):
    model = Model()
"""
NEEDS_DATA = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.parse_args()
"""
TRAIN = """\
try:
    optimizer = torch.optim.AdamW(model.parameters())
    open("trained", "w")
finally:
    open("checkpoint", "w")
"""


def doctor(folder: Path, *args: str) -> tuple[dict[str, dict[str, str]], int]:
    done = fp8verify(
        "doctor", "--no-require-gpu", "--format", "json", *args, cwd=folder
    )
    assert done.stderr == ""
    checks = json.loads(done.stdout)["checks"]
    assert {tuple(check) for check in checks} == {
        ("code", "status", "message", "hint", "source")
    }
    return {check["code"]: check for check in checks}, done.returncode


def test_it_ends_at_the_optimizer_and_nothing_of_the_training_is_written(
    tmp_path: Path,
) -> None:
    write(tmp_path, "train.py", HEAD + TRAIN)
    accelerate = write(tmp_path, "fp8.yaml", files.ACCELERATE)
    found, _ = doctor(
        tmp_path, "--config", accelerate, "--", str(python_with_torch()), "train.py"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fp8.yaml", "train.py"]
    assert found["model-converted-later"]["message"].startswith(
        "accelerate converts layers after"
    )
    assert "model-layers" not in found
    assert "block.gate 4096 -> 8" in found["dims-not-multiple-of-16"]["message"]
    assert found["te-not-installed"]["status"] == "fail"


def test_a_model_without_a_converted_layer_fails_where_a_file_asks_for_fp8(
    tmp_path: Path,
) -> None:
    write(tmp_path, "train.py", HEAD + TRAIN)
    write(tmp_path, "7b.toml", files.KEMPNERFORGE)
    found, code = doctor(
        tmp_path, "--", str(python_with_torch()), "train.py", "7b.toml"
    )
    assert (found["model-layers"]["status"], code) == ("fail", 1)
    assert found["model-layers"]["message"].startswith("0 of 4 linear layers")


def test_layers_that_torchao_converted_are_counted(tmp_path: Path) -> None:
    convert = (
        "from torchao.float8 import convert_to_float8_training\n"
        "convert_to_float8_training(model, module_filter_fn=lambda m, name: 'experts' in name)\n"
        "model = torch.compile(model)\n"
    )
    write(tmp_path, "train.py", HEAD + convert + TRAIN)
    found, code = doctor(tmp_path, "--", str(python_with_torch()), "train.py")
    message = found["model-layers"]["message"]
    assert message.startswith("2 of 4 linear layers would run in FP8, 80%")
    assert "block.gate" in message
    assert "head" in message
    assert code == 0


def test_layers_that_only_emulate_fp8_fail(tmp_path: Path) -> None:
    convert = (
        "from torchao.float8 import Float8LinearConfig, convert_to_float8_training\n"
        "convert_to_float8_training(model, config=Float8LinearConfig(emulate=True),\n"
        "    module_filter_fn=lambda m, name: 'experts' in name)\n"
    )
    write(tmp_path, "train.py", HEAD + convert + TRAIN)
    found, code = doctor(tmp_path, "--", str(python_with_torch()), "train.py")
    assert found["fp8-emulated"]["message"].startswith("EMULATED: 2 linear layers")
    assert found["model-layers"]["message"].startswith(
        "0 of 4 linear layers would run in FP8"
    )
    assert code == 1


def test_a_script_that_takes_too_long_is_ended_with_its_children(
    tmp_path: Path,
) -> None:
    script = (
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '300'])\n"
        "open('child', 'w').write(str(child.pid))\n"
        "time.sleep(300)\n"
    )
    write(tmp_path, "train.py", script)
    found, _ = doctor(tmp_path, "--timeout", "4", "--", sys.executable, "train.py")
    assert (
        "built no optimizer in 4 s, and was ended" in found["model-not-seen"]["message"]
    )
    pid = (tmp_path / "child").read_text()
    wait_until(lambda: state_of(pid) in ("", "Z"))


def state_of(pid: str) -> str:
    """Return the letter of a process's state, nothing if it has gone."""
    return subprocess.getoutput(f"ps -o stat= -p {pid}").strip()[:1]


REFUSED = "raise ValueError('FP8 + Tensor Parallelism is not yet supported')\n"


@pytest.mark.parametrize(
    ("script", "code", "says"),
    [
        ("raise SystemExit('no data')", "model-not-seen",
         "exit code 1 before it built an optimizer: no data"),
        ("import os\nos.kill(os.getpid(), 9)\n", "model-not-seen", "ended by signal 9"),
        (NEEDS_DATA, "model-not-seen", "the following arguments are required: --data"),
        ("input('really? ')", "model-not-seen", "EOFError"),
        ("print('all is well')", "model-not-seen", "exit code 0"),
        (REFUSED, "known-failure", "KempnerForge does not support"),
    ],
)  # fmt: skip
def test_what_a_script_does_before_an_optimizer_is_told(
    tmp_path: Path, script: str, code: str, says: str
) -> None:
    write(tmp_path, "train.py", script)
    found, exit_code = doctor(tmp_path, "--", str(python_with_torch()), "train.py")
    assert says in found[code]["message"]
    assert exit_code == (code == "known-failure")
    assert code != "model-not-seen" or "--static" in found[code]["hint"]


def test_a_doctor_that_is_ended_ends_what_it_started(tmp_path: Path) -> None:
    started = tmp_path / "started"
    write(
        tmp_path,
        "train.py",
        f"import time\nopen({str(started)!r}, 'w')\ntime.sleep(300)\n",
    )
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "fp8verify", "doctor", "--", sys.executable, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + PATIENCE_S
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    (folder,) = temporary.iterdir()
    assert list(marked(f"FP8VERIFY_DRY_START={folder}"))
    process.terminate()
    assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert list(marked(f"FP8VERIFY_DRY_START={folder}")) == []
    assert list(temporary.iterdir()) == []


def test_static_starts_nothing(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "open('started', 'w')\n")
    found, _ = doctor(tmp_path, "--static", "--", sys.executable, "train.py")
    assert not (tmp_path / "started").exists()
    assert "model-not-seen" not in found
