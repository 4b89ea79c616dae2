"""Numbers on the command line, in variables and in files: none is taken that means nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fp8verify.cli.group import COMMANDS, cli
from fp8verify.errors import UsageError
from fp8verify.record import runner
from fp8verify.record.settings import RunSettings

HUGE = "9" * 40


def _numbers() -> Iterator[tuple[str, str, bool]]:
    """Yield the command and the name of every option that takes a number, and if it is whole."""
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        for option in command.params:
            if isinstance(
                option.type, (click.types.FloatParamType, click.types.IntParamType)
            ):
                yield (
                    name,
                    option.opts[-1],
                    isinstance(option.type, click.types.IntParamType),
                )


NUMBERS = list(_numbers())


def test_all_numbers_are_seen() -> None:
    seen = {option for _, option, _ in NUMBERS}
    assert {"--timeout", "--every", "--min-speedup", "--workers"} <= seen


@pytest.mark.parametrize(("command", "option", "whole"), NUMBERS)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "1e400", HUGE])
def test_a_number_that_means_nothing_is_refused_in_two_lines(
    command: str, option: str, whole: bool, value: str
) -> None:
    if value == HUGE and not whole and command == "compare":
        value = "nan"  # a ratio has no upper bound
    with pytest.raises(UsageError) as caught:
        cli.main([command, f"{option}={value}", "x", "y"], standalone_mode=False)
    assert option in caught.value.fact
    assert "\n" not in caught.value.fact
    assert caught.value.hint.endswith(f"{command} --help lists its options.")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("option", ["--min-share", "--tolerance"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1", "nan%", "101%"])
def test_a_share_is_between_nothing_and_all(option: str, value: str) -> None:
    with pytest.raises(UsageError, match="is not between 0 and 1"):
        cli.main(["inspect", f"{option}={value}", "x"], standalone_mode=False)


def test_a_variable_may_hold_no_such_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FP8VERIFY_TIMEOUT", "nan")
    with pytest.raises(UsageError, match="It is the value of FP8VERIFY_TIMEOUT"):
        cli.main(["doctor", "--static"], standalone_mode=False)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("nan", "not a finite number"),
        ("0x" + "f" * 5000, "below 10"),
        ("[1, 0xfffffffffffffffffff]", "below 10"),
    ],
)
def test_a_settings_file_may_hold_no_such_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, said: str
) -> None:
    (tmp_path / "fp8verify.toml").write_text(f"max-window-seconds = {value}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=said):
        cli.main(["run", "--steps", "3-4", "train.py"], standalone_mode=False)


def test_a_number_that_fits_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    started: list[RunSettings] = []
    monkeypatch.setattr(
        runner, "run_training", lambda _, settings, *__: started.append(settings)
    )
    words = ["run", "--after-seconds", "0.5", "--max-window-seconds", "0", "train.py"]
    CliRunner().invoke(cli, words)
    assert started[0].max_window_seconds == 0
