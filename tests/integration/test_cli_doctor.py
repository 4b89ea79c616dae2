"""`fp8verify doctor` as a user meets it, on a machine that is put together for the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import doctor_files as files
from tests.command_line import fp8verify as run_fp8verify
from tests.command_line import refused
from tests.doctor_files import write

H200 = "NVIDIA H200, 9.0"
A100 = "NVIDIA A100-SXM4-80GB, 8.0"


class Machine:
    """A folder of programs: nvidia-smi and python that say what they are told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.program("python", "echo torch 2.11.0+cu130\necho torchao 0.18.0\n")

    def has(self, *gpus: str, code: int = 0) -> Machine:
        """Give it GPUs."""
        lines = "".join(f"echo '{gpu}'\n" for gpu in gpus)
        self.program("nvidia-smi", f"{lines}exit {code}\n")
        return self

    def program(self, name: str, text: str) -> None:
        """Give it a shell script."""
        program = self.bin / name
        program.write_text(f"#!/bin/sh\n{text}")
        program.chmod(0o755)

    def doctor(self, *args: str | Path) -> subprocess.CompletedProcess[str]:
        """Run the doctor there."""
        return run_fp8verify("doctor", *args, cwd=self.folder, **self.environment)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process there."""
        root = str(Path(__file__).parents[2])
        return {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "VIRTUAL_ENV": "",
            "PYTHONPATH": root,
        }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("gpus", "nvidia_smi", "options", "code", "lines"),
    [
        ([H200, H200], 0, (), 0, ["2 x NVIDIA H200 (9.0) can multiply FP8"]),
        ([A100], 0, (), 1, ["FAIL     no-fp8-units", "Train in BF16 there"]),
        (
            ["NVIDIA-SMI has failed"],
            9,
            (),
            0,
            ["nvidia-smi says: NVIDIA-SMI has failed"],
        ),
        (["NVIDIA-SMI has failed"], 9, ("--require-gpu",), 1, ["no-gpu"]),
    ],
)
def test_what_is_said_of_a_machine(
    machine: Machine,
    gpus: list[str],
    nvidia_smi: int,
    options: tuple[str, ...],
    code: int,
    lines: list[str],
) -> None:
    done = machine.has(*gpus, code=nvidia_smi).doctor(*options)
    assert (done.returncode, done.stderr) == (code, "")
    assert all(line in done.stdout for line in lines)


def test_a_warning_leaves_the_exit_code_and_shows_the_line(machine: Machine) -> None:
    config = write(
        machine.folder, "a.yaml", f"{files.ACCELERATE_AO}  flavour: vanilla\n"
    )
    done = machine.has(H200).doctor("--config", config)
    assert f"{config}:13: 1 unknown key, not checked" in " ".join(done.stdout.split())
    assert done.stdout.splitlines()[-1] == "1 FAULT: 1 warn, 1 not checked"
    assert done.returncode == 0
    assert machine.doctor("--config", config, "--strict").returncode == 1
    sound = write(machine.folder, "sound.yaml", files.ACCELERATE_AO)
    assert machine.doctor("--config", sound, "--strict").returncode == 0


def test_gpus_can_be_named(machine: Machine) -> None:
    names = ("H200", "2x mi300x", "sm_120", "DGX Spark")
    done = machine.has(A100).doctor(
        *(word for name in names for word in ("--gpu", name))
    )
    found = (
        "1 x NVIDIA H200 (9.0), 2 x AMD Instinct MI300X (gfx942), 1 x NVIDIA GPU (12.0), "
        "1 x NVIDIA DGX SPARK (12.1)"
    )
    assert (
        f"{found} can multiply FP8" in " ".join(done.stdout.split()),
        done.returncode,
    ) == (
        True,
        0,
    )
    fact, hint = refused(machine.doctor("--gpu", "H2000"))
    assert "'H2000' is not a GPU" in fact
    assert "--gpu gfx942" in hint


def test_github_shows_each_complaint_at_its_line(machine: Machine) -> None:
    text = files.KEMPNERFORGE.replace("dp_shard = -1", "tp = 2")
    config = write(machine.folder, "k.toml", text)
    done = machine.has(H200).doctor("--config", config, "--format", "github")
    assert done.returncode == 1
    first, *rest = done.stdout.splitlines()
    assert first.startswith("::error title=fp8verify doctor::1 FAULT: 1 fail")
    number = text.splitlines().index("tp = 2") + 1
    (line,) = [line for line in rest if "fp8-with-tensor-parallel" in line]
    assert line.startswith(
        f"::error file={config},line={number},title=FP8 fp8-with-tensor-"
    )


def test_the_function_is_the_command_and_needs_nothing_slow(machine: Machine) -> None:
    config = write(machine.folder, "k.toml", files.KEMPNERFORGE)
    code = (
        f"import sys, fp8verify\nprint(fp8verify.doctor({config!r}).status.value)\n"
        "print({'torch', 'pandas', 'rich', 'click'} & set(sys.modules))"
    )
    environment = {**os.environ, **machine.has(A100).environment}
    said = subprocess.check_output(
        [sys.executable, "-c", code], env=environment, text=True
    )
    assert said == "fail\nset()\n"


def test_a_run_that_failed_with_a_known_message_is_told_its_cause(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "raise ValueError('FP8 + Tensor Parallelism is not yet supported')\n"
    )
    done = run_fp8verify(
        "run",
        "--steps",
        "2-3",
        "--format",
        "json",
        "-o",
        "report.json",
        script,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    notes = json.loads((tmp_path / "report.json").read_text())["notes"]
    assert notes[0].startswith("the run failed, log.txt line ")
    assert "Set tp = 1" in notes[0]


def test_a_configuration_in_the_place_of_a_command_is_told_its_option(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, "fp8.yaml", "mixed_precision: fp8\n")
    fact, hint = refused(run_fp8verify("doctor", path))
    assert fact.endswith("fp8.yaml is no command that trains.")
    assert hint.endswith(f"fp8verify doctor --config {path}")
