"""The GitHub Action and the pre-commit hook, run step by step as their runners run them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as Xml

import pytest

from tests.shown import OF_GITHUB, run, without_pip

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "traces"
yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")


class Job(NamedTuple):
    code: int
    outputs: dict[str, str]
    log: str
    summary: str
    folder: Path


def uses(folder: Path, environment: dict[str, str] | None = None, **given: str) -> Job:
    """Run the steps of action.yml as GitHub does, with inputs filled in and `if` heeded."""
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    known = {name: about.get("default", "") for name, about in action["inputs"].items()}
    unknown = set(given) - set(known)
    assert not unknown
    inputs = {**known, **given}
    files = {name: folder / name for name in ("outputs", "summary")}
    for path in files.values():
        path.touch()
    shared = {
        "GITHUB_ACTION_PATH": str(ROOT),
        "GITHUB_OUTPUT": str(files["outputs"]),
        "GITHUB_STEP_SUMMARY": str(files["summary"]),
        **(environment or {}),
    }
    code, log = 0, ""
    for step in action["runs"]["steps"]:
        if code or not _wanted(step, inputs):
            continue
        env = {
            name: _filled(value, inputs) for name, value in step.get("env", {}).items()
        }
        done = run(step["run"], folder, *OF_GITHUB, **shared, **env)
        code, log = done.returncode, log + done.stdout + done.stderr
    outputs = dict(
        line.split("=", 1) for line in files["outputs"].read_text().splitlines()
    )
    return Job(code, outputs, log, files["summary"].read_text(), folder)


def _wanted(step: dict[str, Any], inputs: dict[str, str]) -> bool:
    condition = re.fullmatch(r"inputs\.([\w-]+) == '(\w+)'", step.get("if", ""))
    return condition is None or inputs[condition[1]] == condition[2]


def _filled(text: str, inputs: dict[str, str]) -> str:
    return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found[1]], text)


@pytest.mark.parametrize(
    ("capture", "code", "verdict", "said"),
    [
        ("fp8_compiled", 0, "ACTIVE", "::notice title=FP8 ACTIVE::"),
        (
            "bf16_filter_rejects_all",
            1,
            "CONTRADICTED",
            "::error title=FP8 CONTRADICTED%3A claimed",
        ),
    ],
)
def test_the_action_installs_judges_and_leaves_page_and_results(
    tmp_path: Path, capture: str, code: int, verdict: str, said: str
) -> None:
    """Settings of pip keep it offline; `scripts/release.sh` runs the step with a network."""
    pytest.importorskip(
        "hatchling", reason="hatchling is not installed (the test extra)"
    )
    installed, programs = tmp_path / "fp8verify", tmp_path / "programs"
    programs.mkdir()
    (programs / "python3").write_text(without_pip(sys.executable))
    (programs / "python3").chmod(0o755)
    environment = {
        "PATH": f"{programs}{os.pathsep}/usr/bin:/bin",
        "PYTHONPATH": sysconfig.get_path("purelib"),  # for what it depends on
        "RUNNER_TEMP": str(tmp_path),
        "PIP_NO_DEPS": "1",
        "PIP_FORCE_REINSTALL": "1",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
    }
    given = (
        {"install": "false"} if verdict == "ACTIVE" else {"environment": environment}
    )
    job = uses(tmp_path, path=str(TRACES / capture), **given)  # type: ignore[arg-type]
    assert (installed / "bin" / "fp8verify").is_file() is (verdict != "ACTIVE")
    assert (job.code, job.outputs) == (
        code,
        {"verdict": verdict, "exit-code": f"{code}"},
    ), job.log
    assert said in job.log
    assert f"FP8 {verdict}" in job.summary
    assert (tmp_path / "fp8.html").stat().st_size
    assert _failures(tmp_path) == code


@pytest.mark.parametrize(
    ("capture", "given", "code"),
    [
        ("fp8_accelerate", {"min-share": "90%", "strict": "true"}, 1),
        ("fp8_compiled", {"min-share": "90%", "strict": "true"}, 0),
    ],
)
def test_the_inputs_reach_the_judge(
    tmp_path: Path, capture: str, given: dict[str, str], code: int
) -> None:
    job = uses(
        tmp_path,
        path=str(TRACES / capture),
        install="false",
        html="",
        junit="",
        **given,
    )
    assert job.code == code, job.log
    assert not (tmp_path / "fp8.html").exists()


def test_the_log_and_the_baseline_reach_the_judge(tmp_path: Path) -> None:
    capture = TRACES / "fp8_rowwise_gw_hp"
    (tmp_path / "b.json").write_text('{"fp8verify_baseline": 1, "fp8_share": 1.0}')
    fell = uses(tmp_path, path=str(capture), install="false", baseline="b.json")
    assert (fell.code, "fell from 100.0%" in fell.log) == (1, True), fell.log
    trace = TRACES / "bf16_filter_rejects_all" / "rank0.json.gz"
    log = str(trace.with_name("log.txt"))
    assert uses(tmp_path, path=str(trace), install="false", log=log).code == 1


def test_a_value_is_never_read_as_shell_code_nor_a_wrong_one_left_out(
    tmp_path: Path,
) -> None:
    job = uses(tmp_path, path="$(touch made); touch made #", install="false")
    assert (job.code, job.outputs) == (2, {"verdict": "", "exit-code": "2"})
    assert not (tmp_path / "made").exists()
    assert "::error title=fp8verify::error: $(touch made)" in job.log
    assert "%0Ahint: " in job.log
    job = uses(
        tmp_path, path=str(TRACES / "fp8_compiled"), install="false", strict="yes"
    )
    assert job.code == 2
    assert "::error::strict is true or false, not 'yes'" in job.log


def test_every_input_is_documented() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    assert [name for name in action["inputs"] if f"`{name}`" not in page] == []


def _failures(folder: Path) -> int:
    suite = Xml.parse(folder / "fp8.xml").find("testsuite")
    assert suite is not None
    return int(suite.get("failures", "0"))


def hook(folder: Path, *files: str) -> subprocess.CompletedProcess[str]:
    """Run the hook as pre-commit does: its entry, then the files that changed and match."""
    (about,) = yaml.safe_load(
        (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    )
    matching = [name for name in files if re.search(about["files"], name)]
    return run(f"{about['entry']} {shlex.join(matching)}", folder)


def test_the_hook_passes_good_configurations_and_fails_bad_ones(tmp_path: Path) -> None:
    good = (ROOT / "examples" / "kempnerforge" / "7b.toml").read_text(encoding="utf-8")
    (tmp_path / "good one.toml").write_text(good)
    (tmp_path / "bad.toml").write_text(good.replace('"fp8"', '"FP8"'))
    (tmp_path / "notes.md").write_text("not a configuration")
    passed = hook(tmp_path, "good one.toml", "notes.md")
    assert passed.returncode == 0, passed.stdout + passed.stderr
    failed = hook(tmp_path, "bad.toml", "good one.toml")
    assert failed.returncode == 1
    assert "Did you mean 'fp8'?" in failed.stdout
    assert "good one.toml" not in failed.stdout
    assert "torch" not in failed.stdout  # of the machine that commits
    assert hook(tmp_path, "missing.toml").returncode == 2
