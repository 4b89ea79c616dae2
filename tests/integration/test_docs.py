"""What the documentation shows works as written."""

from __future__ import annotations

import ast
import gzip
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import click
import pytest

from fp8verify.cli.explain_command import glossary
from fp8verify.cli.group import cli
from scripts.docs import shell
from scripts.docs.blocks import console_blocks, pages, rewritten
from scripts.docs.pictures import PICTURES, stale_pages, stale_terminals
from scripts.docs.reference import TABLES, finding_pages
from scripts.docs.support import CPU, FEATURES, FRAMEWORKS, TRIALS, Trial
from tests.captures import ROOT, report_of
from tests.shared_torch import FORKS_RUN, python_of_our_commands, python_with_torch
from tests.shown import OF_GITHUB, put, run

REPOSITORY = ROOT.parent
DOCS = REPOSITORY / "docs"
PAGES = [str(path.relative_to(REPOSITORY)) for path in pages()]
_RAN = re.compile(r"<!-- ran \d{4}-\d\d-\d\d: .*(NVIDIA|AMD|CPU|cores).* -->")
_PROGRAMS = r"fp8verify|python3?|pip|bash|torchrun|accelerate|deepspeed|nsys|rocprofv3|jupyter|git"
_ANEW = "; `python -m scripts.docs` writes it anew"
yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")
# These need a package index or a GPU; everything else runs.
_ELSEWHERE = ("pip install", "fp8verify run")


@pytest.fixture(scope="module", autouse=True)
def _commands_are_forks() -> None:
    """Let the commands of pages have imported what they need."""
    program = Path(shell.path(), "fp8verify")
    program.write_text(
        f'#!/bin/sh\nexec "{python_of_our_commands()}" -m fp8verify "$@"\n'
    )


def _blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("capture", "codes", "line"),
    [
        ("fp8_compiled", [0, 0], "::notice title=FP8 ACTIVE::"),
        ("bf16_filter_rejects_all", [1, 0],
         "::error title=FP8 CONTRADICTED%3A claimed-not-active::The log claims FP8"),
    ],
)  # fmt: skip
def test_the_ci_job_is_green_on_fp8_and_red_on_the_silent_failure(
    capture: str, codes: list[int], line: str, tmp_path: Path
) -> None:
    """The steps of the documented job run as GitHub runs them."""
    job = yaml.safe_load(_blocks("ci.md", "yaml")[0])["jobs"]["fp8"]
    assert list(job["env"]) == ["CAPTURE"]
    summary = tmp_path / "summary.md"
    where = {"CAPTURE": str(ROOT / capture), "GITHUB_STEP_SUMMARY": str(summary)}
    ended, output = [], ""
    for step in job["steps"]:
        command: Any = step.get("run")
        wanted = not any(ended) or step.get("if") == "always()"
        if command is not None and wanted and not command.startswith(_ELSEWHERE):
            done = run(command, tmp_path, *OF_GITHUB, **where)
            ended.append(done.returncode)
            output += done.stdout
    assert ended == codes
    assert output.startswith(line)
    verdict = report_of(capture).verdict.value
    assert f"FP8 {verdict}" in summary.read_text(encoding="utf-8")
    assert verdict in (tmp_path / "fp8.html").read_text(encoding="utf-8")
    suite = Xml.parse(tmp_path / "fp8.xml").find("testsuite")
    assert suite is not None
    assert suite.get("failures") == str(codes[0])


@pytest.mark.parametrize(
    ("capture", "says"),
    [
        ("fp8_experts", "exit 0\n"),
        ("bf16_experts", "no GEMM of aten::_scaled_grouped_mm ran"),
    ],
)
def test_the_tests_that_are_shown_pass_on_fp8_and_fail_without(
    tmp_path: Path, capture: str, says: str
) -> None:
    (tmp_path / "test_shown.py").write_text(_blocks("ci.md", "python")[0])
    (tmp_path / "captures").mkdir()
    (tmp_path / "captures" / "moe").symlink_to(ROOT / capture)
    command = (
        f"{shlex.quote(sys.executable)} -m pytest -p no:cacheprovider test_shown.py"
    )
    done = run(command, tmp_path, CUDA_VISIBLE_DEVICES="-1", COLUMNS="200")
    shown = f"exit {done.returncode}\n{done.stdout}"
    assert says in shown
    assert bool(re.search(r"^FAILED [A-Z]+ ", shown, re.MULTILINE)) == (
        says != "exit 0\n"
    )


def stand_ins(folder: Path, *scripts: str) -> None:
    """Put launchers on the PATH, and scripts beside, that write down what they are given."""
    body = "import sys\nwith open('given.txt', 'a') as file:\n    print(*sys.argv, file=file)\n"
    for launcher in ("torchrun", "accelerate", "deepspeed"):
        put(folder, launcher, f"#!{sys.executable}\n{body}")
    for script in scripts:
        place = folder / script
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(body)


LAUNCHES = {
    command
    for page in PAGES
    for block in console_blocks((REPOSITORY / page).read_text(encoding="utf-8"))
    if block.before == "<!-- launch -->"
    for command in block.commands
}


@pytest.mark.parametrize("command", sorted(LAUNCHES))
def test_a_command_that_is_shown_launches_what_it_names(
    tmp_path: Path, command: str
) -> None:
    stand_ins(tmp_path, "train.py", "package/train.py")
    done = run(command, tmp_path, **FORKS_RUN)
    assert done.returncode == 3, (
        done.stderr
    )  # it trained nothing: the evidence cannot decide
    words = shlex.split(command)
    launched = words[words.index("--") + 1 :] if "--" in words else ["train.py"]
    given = (tmp_path / "given.txt").read_text().split()
    assert Path(given[0]).name == Path(launched[0]).name
    assert given[1:] == launched[1:]


@pytest.mark.parametrize("page", PAGES)
def test_nothing_of_a_page_is_stale(page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    assert rewritten(text, TABLES) == text, f"{page} is stale{_ANEW}"


def test_no_picture_is_stale() -> None:
    assert [*stale_terminals(), *stale_pages()] == [], f"stale pictures{_ANEW}"


def test_every_picture_is_shown() -> None:
    shown = "".join((REPOSITORY / page).read_text(encoding="utf-8") for page in PAGES)
    pictures = [path.name for path in PICTURES.iterdir() if path.suffix != ".json"]
    assert [name for name in pictures if f"pictures/{name}" not in shown] == []


# Pages of findings show what to type in somebody else's run; other tests hold their options.
OF_OUR_RUNS = [page for page in PAGES if not page.startswith("docs/findings/")]


@pytest.mark.parametrize("page", OF_OUR_RUNS)
def test_every_command_is_executed_by_a_test_or_says_where_it_ran(page: str) -> None:
    """The fixture `shown`, which a named test takes, fails the test that leaves a command out."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    for block in console_blocks(text):
        assert block.commands, (
            f"{page}: no line begins with a dollar sign:\n{block.text}"
        )
        if block.test is not None:
            assert takes_shown(*block.test.split("::")), f"{page}: {block.before}"
        elif block.before not in ("<!-- output -->", "<!-- launch -->"):
            assert _RAN.search(block.after), (
                f"{page}: neither executed nor dated:\n{block.text}"
            )


def takes_shown(path: str, name: str) -> bool:
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    return any(
        isinstance(node, ast.FunctionDef)
        and node.name == name
        and "shown" in {argument.arg for argument in node.args.args}
        for node in tree.body
    )


@pytest.mark.parametrize("page", PAGES)
def test_no_command_hides_outside_of_a_console_block(page: str) -> None:
    """Indented or in a block without a language, a command would escape the test above."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    outside = re.sub(r"^```\w+$.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert (
        re.findall(
            rf"^ {{4}}(?:\$ +|\w+=\S+ +)*(?:{_PROGRAMS}) .*", outside, re.MULTILINE
        )
        == []
    )


def options_of(name: str) -> set[str]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, name
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("page", PAGES)
def test_options_that_are_named_exist(page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    shown = [command for block in console_blocks(text) for command in block.commands]
    for line in [*shown, *re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]:
        for name, words in re.findall(r"\bfp8verify ([a-z]+)((?: [^|;#]*)?)", line):
            ours = re.split(r" -- | \S+\.py\b", words)[0]
            used = set(re.findall(r"(?<= )--[a-z][a-z0-9-]+", ours))
            assert used <= options_of(name) | {"--help"} if used else True, line


@pytest.mark.parametrize("page", PAGES)
def test_links_and_commands_of_a_page_exist(page: str) -> None:
    from fp8verify.cli.group import COMMANDS

    place = REPOSITORY / page
    text = place.read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (place.parent / link).exists(), link
    used = set(re.findall(r"(?:`|\$ )fp8verify ([a-z]+)(?= )", text))
    assert used <= set(COMMANDS)


@pytest.mark.parametrize(
    "trial", TRIALS, ids=lambda trial: f"{trial.framework} {trial.feature}"
)
def test_what_is_said_to_have_been_tried_has_its_evidence(trial: Trial) -> None:
    assert trial.framework in FRAMEWORKS
    assert trial.feature in FEATURES
    assert (
        re.fullmatch(r"\d{4}-\d\d-\d\d|under 0\.1\.0", trial.date) or trial.where == CPU
    )
    assert trial.evidence or trial.date == "under 0.1.0"
    for place in trial.evidence:
        path, _, test = place.partition("::")
        assert (REPOSITORY / path).exists()
        assert (
            f"def {test}(" in (REPOSITORY / path).read_text(encoding="utf-8")
            if test
            else True
        )


def test_no_page_of_a_finding_is_stale() -> None:
    """Those of the doctor's codes: tests/unit/test_doctor_data.py."""
    pages = finding_pages()
    assert set((DOCS / "findings").iterdir()) == set(pages)
    assert [
        page.name for page, text in pages.items() if page.read_text("utf-8") != text
    ] == []


def test_the_python_page_runs_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed (the pandas extra)")
    monkeypatch.chdir(ROOT.parent)
    blocks = _blocks("python.md", "python")
    assert len(blocks) > 5
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    shown = _blocks("python.md", "text")[0].strip()
    assert repr(names["report"]).startswith(f"{shown}\n")
    assert (names["found"].exit_code, len(names["sweep"].runs)) == (0, 3)


def test_the_python_page_lists_the_public_names() -> None:
    import fp8verify

    listed = (DOCS / "python.md").read_text(encoding="utf-8").split("## Names")[1]
    assert re.findall(r"`(\w+)`", listed) == sorted(
        set(fp8verify.__all__) - {"__version__"}
    )


@pytest.mark.train
def test_the_profiler_snippet_writes_a_trace_with_steps_and_shapes(
    tmp_path: Path,
) -> None:
    (snippet,) = _blocks("recording.md", "python")
    script = (
        "import torch\nrank, steps = 0, 14\nlayer = torch.nn.Linear(8, 8)\n"
        "def train_step():\n    layer(torch.ones(4, 8)).sum().backward()\n" + snippet
    )
    (tmp_path / "train.py").write_text(script)
    put(tmp_path, "python", f'#!/bin/sh\nexec "{python_with_torch()}" "$@"\n')
    assert run("python train.py", tmp_path).returncode == 0
    trace = json.loads(gzip.decompress((tmp_path / "trace_rank0.json.gz").read_bytes()))
    names = [event.get("name", "") for event in trace["traceEvents"]]
    steps = {name for name in names if name.startswith("ProfilerStep#")}
    assert steps == {"ProfilerStep#10", "ProfilerStep#11", "ProfilerStep#12"}
    assert any("Input Dims" in event.get("args", {}) for event in trace["traceEvents"])


def test_the_glossary_has_at_most_fifty_words() -> None:
    assert len(glossary()["words"]) <= 50


def test_a_page_has_one_name_and_a_size_that_is_read() -> None:
    """README calls a page as its title does, and so does the site, whose menu has the titles."""
    table = re.findall(r"\[([^]]+)\]\(([\w/.-]+\.md)\)", _table_of_pages())
    assert len(table) > 15
    for name, page in table:
        assert (
            (REPOSITORY / page).read_text(encoding="utf-8").startswith(f"# {name}\n")
        ), page
    generated = {"docs/api.md", "docs/commands.md", "docs/json.md"}
    generated.add("benchmarks/results/doctor_issues.md")
    long = {
        page
        for page in PAGES
        if len((REPOSITORY / page).read_text().splitlines()) > 400
    }
    assert long <= generated


def _table_of_pages() -> str:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    return text.split("## Documentation\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page: str) -> None:
    """Names in capitals stand for others: `frameworks/NAME.toml`; schemas are the wheel's."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    folders = "fp8verify|tests|scripts|benchmarks|examples|docs|traces"
    named = re.findall(rf"`((?:{folders})/[\w./-]+)`", text)
    gone = [name for name in named if not (REPOSITORY / name).exists()]
    assert [
        name for name in gone if not re.search(r"[A-Z]{4}|\.schema\.json$", name)
    ] == []
