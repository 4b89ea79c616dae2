"""Finding one's way on the command line: help, suggestions, completion."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from fp8verify.cli.group import COMMANDS
from tests.command_line import fp8verify


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help_with_an_example(command: str) -> None:
    done = fp8verify(command, "--help")
    assert done.returncode == 0
    assert re.search(rf"^ +.*fp8verify {command} ", done.stdout, re.MULTILINE)
    assert COMMANDS[command] in " ".join(fp8verify("--help").stdout.split())


@pytest.mark.parametrize(
    ("typed", "meant"), [("inspekt", "inspect"), ("explian", "explain"), ("anotate", "annotate")]
)
def test_a_command_that_is_none_is_answered_with_the_nearest(typed: str, meant: str) -> None:
    done = fp8verify(typed, "x")
    assert done.returncode == 2
    assert f"No such command '{typed}'.\nhint: Did you mean '{meant}'?" in done.stderr


def test_a_file_instead_of_a_command_is_answered_with_inspect(tmp_path: Path) -> None:
    done = fp8verify(str(tmp_path))
    assert done.returncode == 2
    assert f"Did you mean `fp8verify inspect {tmp_path}`?" in done.stderr


def test_an_option_that_is_none_is_answered_with_the_nearest() -> None:
    done = fp8verify("inspect", "x", "--min-shar", "0.5")
    assert done.returncode == 2
    assert "--min-share" in done.stderr


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("fp8verify ins", "inspect"),
        ("fp8verify inspect --base", "--baseline"),
        ("fp8verify inspect --format g", "github"),
    ],
)
def test_the_shell_completes_commands_options_and_forms(words: str, wanted: str) -> None:
    done = fp8verify(
        _FP8VERIFY_COMPLETE="bash_complete",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split()) - 1),
    )
    assert f"plain,{wanted}" in done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_is_printed(shell: str) -> None:
    if shell == "bash":
        version = subprocess.run(["bash", "--version"], capture_output=True, check=False)
        if version.returncode:
            pytest.skip("no bash here")
    assert "fp8verify" in fp8verify(_FP8VERIFY_COMPLETE=f"{shell}_source").stdout
