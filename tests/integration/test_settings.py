"""Options from settings files and variables, and their order of precedence."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fp8verify.cli.group import COMMANDS, cli, options_of
from fp8verify.record import runner
from fp8verify.record.settings import RunSettings, TimedWindow
from fp8verify.record.trust import OWN_ONLY, find_settings
from tests.command_line import fp8verify, refused


def plan(cwd: Path, *options: str, **variables: str) -> RunSettings:
    """Return how a run would be observed."""
    asked: list[RunSettings] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        patch.setattr(
            runner, "run_training", lambda _, settings, *__: asked.append(settings)
        )
        for name, value in variables.items():
            patch.setenv(name, value)
        CliRunner().invoke(cli, ["run", *options, "true"])
    return asked[0]


def test_the_nearest_file_upwards_holds(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / "fp8verify.toml").write_text('steps = "3-4"\n')
    assert plan(below).windows == ((3, 4),)
    (tmp_path / "a" / "pyproject.toml").write_text(
        "[project]\nname = 'fp8verify-user'\n"
    )
    assert plan(below).windows == ((3, 4),)
    (tmp_path / "a" / "pyproject.toml").write_text('[tool.fp8verify]\nsteps = "5-6"\n')
    assert plan(below).windows == ((5, 6),)
    (tmp_path / "a" / "fp8verify.toml").write_text('steps = ["7", "9-10"]\n')
    assert plan(below).windows == ((7, 7), (9, 10))


def test_the_command_line_is_above_variables_and_these_above_the_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "fp8verify.toml").write_text('steps = "3-4"\ntrace-dir = "file"\n')
    assert plan(tmp_path).windows == ((3, 4),)
    assert plan(tmp_path).trace_dir == Path("file")
    assert plan(tmp_path, FP8VERIFY_STEPS="5-6").windows == ((5, 6),)
    found = plan(
        tmp_path, "--steps", "7-8", FP8VERIFY_STEPS="5-6", FP8VERIFY_TRACE_DIR="there"
    )
    assert (found.windows, found.trace_dir) == (((7, 8),), Path("there"))


def test_a_time_and_a_window_from_different_places_do_not_mix(tmp_path: Path) -> None:
    (tmp_path / "fp8verify.toml").write_text('steps = "3-4"\n')
    assert plan(tmp_path, "--after-seconds", "60").timed_window == TimedWindow(60)
    (tmp_path / "fp8verify.toml").write_text("after-seconds = 60\n")
    assert plan(tmp_path, "--steps", "3-4").windows == ((3, 4),)
    assert plan(tmp_path, "--steps", "5").timed_window == TimedWindow(60, 5)


@pytest.mark.parametrize(
    ("text", "fact", "hint"),
    [
        ('setps = "3"\n', "'setps', which is not an option", "Did you mean steps?"),
        ('layers = "yes"\n', "layers is not true or false", "layers = true"),
        ("[steps]\nfirst = 3\n", "value of steps is not text", "steps = "),
        ("steps = \n", "not TOML", "Fix the file"),
        (
            "[tool.fp8verify]\nevery = 9",
            "'tool', which is not an option",
            "are at the top level",
        ),
    ],
)
def test_a_file_that_is_wrong_is_an_error_of_two_lines(
    tmp_path: Path, text: str, fact: str, hint: str
) -> None:
    (tmp_path / "fp8verify.toml").write_text(text)

    error, advice = refused(fp8verify("run", "true", cwd=tmp_path))
    assert str(tmp_path / "fp8verify.toml") in error
    assert fact in error
    assert hint in advice


def test_a_wrong_value_is_told_with_the_place_where_it_stands(tmp_path: Path) -> None:
    settings = tmp_path / "fp8verify.toml"
    settings.write_text('every = "many"\n')

    in_file = fp8verify("run", "true", cwd=tmp_path)
    in_variable = fp8verify(
        "run", "--every=9", "x", cwd=tmp_path, FP8VERIFY_MIN_SHARE="lots"
    )
    on_the_line = fp8verify("run", "--every", "many", "true", cwd=tmp_path)

    assert "--every" in in_file.stderr
    assert f"It is in {settings}." in in_file.stderr
    assert "'lots' is not a share" in in_variable.stderr
    assert "It is the value of FP8VERIFY_MIN_SHARE." in in_variable.stderr
    assert str(settings) not in on_the_line.stderr
    assert {done.returncode for done in (in_file, in_variable, on_the_line)} == {2}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("owner", "another user"),
        ("mode", "all users"),
        ("link", "a link of another user"),
    ],
)
def test_a_file_that_others_wrote_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, why: str
) -> None:
    settings = tmp_path / "fp8verify.toml"
    settings.write_text('python = "evil"\n')
    if change == "mode":
        settings.chmod(0o666)
    elif os.getuid():
        pytest.skip("only root can give a file away")
    elif change == "owner":
        os.chown(settings, 54321, -1)
    else:
        settings.rename(tmp_path / "mine.toml")
        settings.symlink_to("mine.toml")
        os.chown(settings, 54321, -1, follow_symlinks=False)

    found = find_settings(tmp_path)
    assert (found.path, found.values) == (None, {})
    assert why in found.notes[0]
    monkeypatch.setenv("FP8VERIFY_TRUST", str(tmp_path))
    assert find_settings(tmp_path) == (settings, {"python": "evil"}, ())


def test_a_file_that_a_group_may_write_names_no_programs_and_files(
    tmp_path: Path,
) -> None:
    settings = tmp_path / "fp8verify.toml"
    settings.write_text("".join(f'{key} = "x"\n' for key in (*OWN_ONLY, "min_share")))
    settings.chmod(0o664)

    found = find_settings(tmp_path)
    assert found.values == {"min-share": "x"}
    assert "python, output" in found.notes[0]


def test_the_search_ends_at_the_repository_the_home_and_a_change_of_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fp8verify.toml").write_text("strict = true\n")
    below = tmp_path / "repository" / "package"
    below.mkdir(parents=True)
    assert find_settings(below).values == {"strict": True}
    monkeypatch.setenv("HOME", str(below.parent))
    assert find_settings(below).path is None
    monkeypatch.setenv("HOME", "/nowhere")
    (below.parent / ".git").touch()  # a worktree has a file of that name
    assert find_settings(below).path is None
    (below.parent / ".git").unlink()
    if not os.getuid():
        os.chown(below, 54321, -1)
        assert find_settings(below).path is None


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[tool.fp8verify]\nstrict = true", {"strict": True}),
        ("[tool]\r\nfp8verify = {strict = true}\r\n", {"strict": True}),
        ("[project]\n= no TOML", {}),  # most projects are not parsed
    ],
)
def test_the_table_of_a_project_is_found_however_it_is_written(
    tmp_path: Path, text: str, values: dict[str, bool]
) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    assert find_settings(tmp_path).values == values


def test_every_option_has_a_variable_of_its_name() -> None:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        for option, found in options_of(command).items():
            assert found.envvar == "FP8VERIFY_" + option.upper().replace("-", "_")
