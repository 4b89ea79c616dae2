"""Which words after the script are ours: predictable, and never one that the script could mean."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8verify.cli.after_script import Taken, take_options
from fp8verify.cli.run_command import command
from fp8verify.cli.script_text import MAX_FILES, ScriptText

OPTIONS = {
    name: param
    for param in command.params
    if isinstance(param, click.Option) and param.name not in ("after_seconds", "module")
    for name in param.opts
}
ARGPARSE = "import argparse\nparser = argparse.ArgumentParser()\n"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('no arguments')\n")


def take(line: str, *, module: bool = False) -> Taken:
    with click.Context(command):
        return take_options(line.split(), OPTIONS, module=module)


@pytest.mark.parametrize(
    ("line", "ours", "script"),
    [
        ("train.py --steps 10-12", "--steps 10-12", "train.py"),
        ("train.py --steps=10-12 a", "--steps=10-12", "train.py a"),
        ("train.py --steps global:5000-5002", "--steps global:5000-5002", "train.py"),
        ("train.py --steps global:batch", "", "train.py --steps global:batch"),
        ("train.py --steps 1,5-6,9", "--steps 1,5-6,9", "train.py"),
        ("train.py --steps 12-10", "--steps 12-10", "train.py"),
        ("train.py --steps 200 --steps 3-4", "--steps 3-4", "train.py --steps 200"),
        ("train.py --steps 10,12", "", "train.py --steps 10,12"),
        ("train.py --steps 10-", "", "train.py --steps 10-"),
        ("train.py --steps", "", "train.py --steps"),
        ("train.py --step 10-12", "", "train.py --step 10-12"),
        ("train.py --ranks all --layers", "", "train.py --ranks all --layers"),
        ("train.py --steps 3-4 -- --steps 5-6 --", "--steps 3-4", "train.py --steps 5-6 --"),
        ("train.py a -- --steps 5-6", "", "train.py a -- --steps 5-6"),
        ("train.py --ranks all --steps 3-4", "--ranks all --steps 3-4", "train.py"),
        ("train.py --ranks some --steps 3-4", "--steps 3-4", "train.py --ranks some"),
        ("train.py --format pdf --steps 3-4", "--steps 3-4", "train.py --format pdf"),
        ("train.py --min-share 7000 --steps 3-4", "--steps 3-4", "train.py --min-share 7000"),
        ("train.py --min-share 50% --steps 3-4", "--min-share 50% --steps 3-4", "train.py"),
        ("train.py --layers 24 --steps 3-4", "--steps 3-4", "train.py --layers 24"),
        ("train.py --layers=24 --steps 3-4", "--steps 3-4", "train.py --layers=24"),
        ("train.py --layers --steps 3-4", "--layers --steps 3-4", "train.py"),
        ("train.py -o r.txt -v --steps 3-4", "-o r.txt -v --steps 3-4", "train.py"),
        ("train.py -m --help --steps 3-4", "--steps 3-4", "train.py -m --help"),
        ("train.py --after-seconds 5 --steps 3-4", "--steps 3-4", "train.py --after-seconds 5"),
        ("torchrun --layers train.py --steps 3-4", "--steps 3-4", "torchrun --layers train.py"),
        ("torchrun --steps 3-4 train.py", "", "torchrun --steps 3-4 train.py"),
        ("./train --layers --steps 3-4", "--steps 3-4", "./train --layers"),
        ("gone.py --layers --steps 3-4", "--steps 3-4", "gone.py --layers"),
    ],
)
def test_words_are_told_apart(line: str, ours: str, script: str) -> None:
    taken = take(line)
    assert (" ".join(taken.options), " ".join(taken.command)) == (ours, script)


@pytest.mark.parametrize(
    ("source", "theirs"),
    [
        (ARGPARSE + "parser.add_argument('--layers')", True),
        (ARGPARSE + "parser.add_argument('--layers-per-stage')", True),
        (ARGPARSE + "parser.add_argument('-l', '--layers')", True),
        (ARGPARSE + "parser.add_argument('--skip-layers')\nlayers = 3", False),
        (
            ARGPARSE + "for name in config:\n    parser.add_argument('--' + name)\nlayers=1",
            True,
        ),
        (ARGPARSE + "for name in fields:\n    parser.add_argument(f'--{name}')\nlayers=1", True),
        (ARGPARSE + "known, rest = parser.parse_known_args()\nlayers = 1", True),
        ("import tyro\nclass Config:\n    layers: int = 3\ntyro.cli(Config)", True),
        ("from transformers import HfArgumentParser\nHfArgumentParser(Training)", True),
        ("import sys\nfor word in sys.argv:\n    globals()['layers'] = word", True),
        ("import sys\nprint(sys.argv)", False),
        ("print('no arguments')", False),
        ("print 'Python 2'", True),
    ],
)
def test_an_option_that_the_script_could_mean_is_the_scripts(source: str, theirs: bool) -> None:
    Path("train.py").write_text(source)
    taken = take("train.py --layers --steps 3-4")
    assert ("--layers" in taken.command) is theirs
    assert ("--layers stays train.py's: its " in taken.told) is theirs
    assert "\n" not in taken.told


@pytest.mark.parametrize("name", ["trace-dir", "trace_dir"])
def test_hyphens_and_underscores_are_alike(name: str) -> None:
    Path("train.py").write_text(f"{ARGPARSE}parser.add_argument('--{name}')")
    assert "--trace-dir" in take("train.py --trace-dir out --steps 3-4").command


def test_options_named_beside_the_script_are_the_scripts() -> None:
    Path("train.py").write_text("def main():\n    from lib.options import parse\n    parse()\n")
    Path("lib").mkdir()
    Path("lib/__init__.py").write_text("from . import options\n")
    Path("lib/options.py").write_text("from lib.more import add\n")
    Path("lib/more.py").write_text(ARGPARSE + "parser.add_argument('--layers')")
    assert "--layers" in take("train.py --layers --steps 3-4").command
    Path("lib/more.py").write_text(ARGPARSE)
    assert "--layers" not in take("train.py --layers --steps 3-4").command


def test_a_module_is_found_and_read_and_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("package").mkdir()
    Path("package/__init__.py").write_text("raise SystemExit('imported')\n")
    Path("package/train.py").write_text(ARGPARSE + "parser.add_argument('--layers')")
    Path("package/__main__.py").write_text(ARGPARSE)
    monkeypatch.setattr(sys, "path", [""])
    assert "--layers" in take("package.train --layers --steps 3-4", module=True).command
    assert take("package --layers --steps 3-4", module=True).command == ["package"]
    assert take("python -m package --layers --steps 3-4").command == ["python", "-m", "package"]
    assert "--layers" in take("no.such --layers --steps 3-4", module=True).command


def test_of_an_installed_package_the_module_and_its_own_files_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = Path("site/package")
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "train.py").write_text("import other\nfrom package.options import parse\n")
    (package / "options.py").write_text(ARGPARSE + "parser.add_argument('--layers')")
    Path("site/other.py").write_text("names = ['--ranks']\n")
    monkeypatch.setattr(sys, "path", ["site"])
    taken = take("package.train --layers --ranks all --steps 3-4", module=True)
    assert taken.command == ["package.train", "--layers"]


def test_every_script_of_a_launcher_is_read() -> None:
    Path("launch.py").write_text(ARGPARSE)
    Path("train.py").write_text(ARGPARSE + "parser.add_argument('--layers')")
    assert "--layers" in take("launch.py train.py --layers --steps 3-4").command


def test_a_script_with_too_many_files_is_not_read_on() -> None:
    names = [f"m{number}" for number in range(MAX_FILES + 1)]
    for name in names:
        Path(f"{name}.py").touch()
    Path("train.py").write_text(f"import {', '.join(names)}\n")
    assert ScriptText(["train.py"], module=False).may_mean("--job") == "its source cannot be read"


@given(
    words=st.lists(
        st.sampled_from(
            ["--steps", "3-4", "--layers", "--ranks", "all", "--", "-o", "x", "--lr", "--steps=5-6"]
        ),
        max_size=8,
    )
)
def test_no_word_is_lost_or_made_up(words: list[str]) -> None:
    taken = take(" ".join(["train.py", *words]))
    all_words = [*taken.options, *taken.command]
    assert taken.command[0] == "train.py"
    if taken.options:
        assert sorted([*all_words, *["--"] * ("--" in words)]) == sorted(["train.py", *words])
    else:
        assert taken.command == ["train.py", *words]
