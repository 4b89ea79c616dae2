"""What is run for what the user typed, and where the capture goes."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from fp8verify.errors import Fp8VerifyError, InputError, UsageError
from fp8verify.record.command import resolve_command
from fp8verify.record.injection import boot_folder, child_environment
from fp8verify.record.runner import run_training
from fp8verify.record.settings import RunSettings


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("command", "runs"),
    [
        ("train.py --lr 1", [sys.executable, "train.py", "--lr", "1"]),
        ("-- train.py", [sys.executable, "train.py"]),
        ("-m pkg.train x", [sys.executable, "-m", "pkg.train", "x"]),
        ("sh -c true", ["sh", "-c", "true"]),
    ],
)
def test_scripts_and_modules_run_under_this_python(
    command: str, runs: list[str]
) -> None:
    Path("train.py").touch()
    assert resolve_command(command.split()) == runs


@pytest.mark.parametrize(
    ("command", "error", "fact"),
    [
        ([], UsageError, "nothing to run"),
        (["--"], UsageError, "nothing to run"),
        (["-m"], UsageError, "names no module"),
        (["missing.py"], InputError, "no script missing.py"),
        (["folder.py"], InputError, "is a folder"),
        (["no-such-program-anywhere"], InputError, "no program"),
        (["./plain"], InputError, "not executable"),
    ],
)
def test_what_cannot_be_run_is_told_before_anything_is_made(
    command: list[str], error: type[Fp8VerifyError], fact: str
) -> None:
    Path("folder.py").mkdir()
    Path("plain").touch()

    with pytest.raises(error, match=fact) as caught:
        run_training(command, RunSettings())
    assert caught.value.hint
    assert not list(Path.cwd().glob("fp8verify-capture-*"))


@pytest.mark.parametrize(
    ("before", "after"), [({}, "{boot}"), ({"PYTHONPATH": "a:b"}, "{boot}:a:b")]
)
def test_the_boot_folder_leads_pythonpath(before: dict[str, str], after: str) -> None:
    environment = child_environment({"HOME": "/h", **before}, Path("/boot"))

    assert environment == {"HOME": "/h", "PYTHONPATH": after.format(boot="/boot")}


def test_the_boot_folder_is_private_and_does_not_stay(tmp_path: Path) -> None:
    with boot_folder(tmp_path, {}) as boot:
        assert stat.S_IMODE(boot.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in boot.iterdir()} == {0o600}
    assert not list(tmp_path.iterdir())
