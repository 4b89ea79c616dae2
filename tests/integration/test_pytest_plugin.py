"""The pytest plugin in a pytest run of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8verify import inspect
from fp8verify.pytest_plugin import session_reports
from fp8verify.verdict.gates import write_baseline
from tests.captures import ROOT
from tests.shared_torch import python_with_torch

pytest_plugins = ["pytester"]

TEST = """
from fp8verify.pytest_plugin import assert_fp8_active

def test_it(fp8_report):
    assert_fp8_active(fp8_report({path!r}), min_share={share})
"""


def _pytest(
    pytester: pytest.Pytester, code: str, *args: str | Path, alone: bool = False
) -> pytest.RunResult:
    """Run pytest on `code`; `alone` in a process that has loaded nothing else."""
    pytester.makepyfile(code)
    run = pytester.runpytest_subprocess if alone else pytester.runpytest_inprocess
    # Hypothesis, whose plugin is loaded wherever it is installed, takes a second to import.
    plugins = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    # Else the root is above the paths of our options too, and all of /tmp is looked at.
    here = ("--rootdir", pytester.path, "--confcutdir", pytester.path)
    return run(*plugins, *here, *args)


def _marked(
    pytester: pytest.Pytester, mark: str, capture: str, *args: str | Path
) -> pytest.RunResult:
    code = f"import pytest\n\n@pytest.mark.fp8({mark})\ndef test_it():\n    pass\n"
    return _pytest(pytester, code, "--fp8-trace", ROOT / capture, *args)


def test_an_assertion_fails_with_the_reason_the_share_and_the_findings(
    pytester: pytest.Pytester,
) -> None:
    result = _pytest(
        pytester, TEST.format(path=f"{ROOT / 'bf16_filter_rejects_all'}", share=0.5)
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([
        "E * FP8 is CONTRADICTED: the log claims FP8 (line 7), *",
        "E * share: 0.0% of GEMM time ran in FP8, 50.0% required",
        "E * error [[]claimed-not-active[]] *",
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("mark", "capture", "says"),
    [
        ("min_share=0.6", "fp8_rowwise_gw_hp", "share: 51.*, 60.0% required"),
        (
            "forbid_legs=['wgrad']",
            "fp8_rowwise_gw_hp",
            "100.0% of wgrad GEMM time ran in *",
        ),
        (
            "layers='*.0'",
            "fp8_accelerate",
            "*2 of 6 layers are not in FP8: 0.0 (high_precision)*",
        ),
        (
            "layers='decoder.*'",
            "fp8_compiled",
            "*no linear layer of the model is called like that",
        ),
    ],
)
def test_a_demand_that_is_not_met_fails_with_what_was_found(
    pytester: pytest.Pytester, mark: str, capture: str, says: str
) -> None:
    result = _marked(pytester, mark, capture, "--fp8-min-share", "30%")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([says])


def test_the_mark_judges_what_the_test_itself_obtained(
    pytester: pytest.Pytester,
) -> None:
    code = f"""
import pytest

@pytest.mark.fp8
class TestRecipes:
    @pytest.mark.parametrize("name", ["fp8_compiled", "fp8_te_delayed", "bf16_compiled"])
    def test_it(self, fp8_report, name):
        fp8_report({str(ROOT)!r} + "/" + name)

    def test_that_never_looks(self, fp8_report):
        pass
"""
    result = _pytest(pytester, code)
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*marked fp8, but the test requested no report*"])


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        ("share=0.5", "*the mark fp8 takes min_share, forbid_legs, layers by name"),
        (
            "min_share=90",
            "*90 is not between 0 and 1 (0% and 100%). Did you mean 90%?*",
        ),
        ("forbid_legs='backwards'", "*unknown leg 'backwards': one of *wgrad*"),
    ],
)
def test_a_mark_that_means_nothing_is_refused_before_any_test(
    pytester: pytest.Pytester, mark: str, says: str
) -> None:
    result = _marked(pytester, mark, "fp8_compiled")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.assert_outcomes()
    result.stderr.fnmatch_lines([f"ERROR: *::test_it: {says[1:]}"])


def test_no_test_is_skipped_where_a_gpu_is_required(pytester: pytest.Pytester) -> None:
    code = """
import pytest

@pytest.mark.fp8(min_share="80%")
def test_without_a_trace():
    pass

def test_without_a_path(fp8_report):
    fp8_report()

def test_that_trains(fp8_run):
    pass
"""
    hidden = pytest.MonkeyPatch()
    hidden.setenv("CUDA_VISIBLE_DEVICES", "")
    with hidden.context():
        _pytest(pytester, code).assert_outcomes(skipped=3)
        result = _pytest(pytester, code, "--fp8-require-gpu")
    hidden.undo()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    outcomes = result.parseoutcomes()
    assert "skipped" not in outcomes
    assert outcomes.get("failed", 0) + outcomes.get("errors", 0) == 3


def test_no_marked_test_falls_below_the_baseline(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    baseline = tmp_path / "fp8.json"
    write_baseline(inspect(ROOT / "fp8_compiled"), baseline)
    good = _marked(pytester, "", "fp8_compiled", "--fp8-baseline", baseline)
    good.assert_outcomes(passed=1)
    fallen = _marked(pytester, "", "fp8_rowwise_gw_hp", "--fp8-baseline", baseline)
    fallen.assert_outcomes(failed=1)
    fallen.stdout.fnmatch_lines(["*the FP8 share of wgrad fell from 100.0% to 0.0%*"])


@pytest.mark.parametrize("option", ["--fp8-trace", "--fp8-baseline"])
def test_an_unreadable_file_fails_with_two_lines(
    pytester: pytest.Pytester, option: str
) -> None:
    result = _marked(pytester, "", "fp8_compiled", option, "missing.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*missing.json*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*During handling of the above exception*")


def test_the_summary_lists_verdicts_and_junit_keeps_them(
    pytester: pytest.Pytester,
) -> None:
    code = TEST.format(path=str(ROOT / "fp8_compiled"), share=0.9)
    result = _pytest(pytester, code, "--junit-xml=out.xml")
    result.stdout.fnmatch_lines(
        ["*= fp8verify =*", "ACTIVE * 100.0% * fp8_compiled *::test_it"]
    )
    assert 'name="fp8verify" value="ACTIVE' in (pytester.path / "out.xml").read_text()


def test_each_rank_of_torchrun_is_named_in_its_lines(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks print to one terminal, each with the lowest rank of what it judged."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = _marked(pytester, "", "ddp_one_layer_bf16")
    result.stdout.fnmatch_lines(
        ["[[]rank1[]] FAILED PARTIAL * 74.2% * (rank 1, the lowest of 2)  *::test_it"]
    )
    assert "    " not in {line.removeprefix("E   ") for line in result.outlines}


def test_the_summary_is_whole_under_xdist(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    code = f"""
import pytest

@pytest.mark.parametrize("name", ["fp8_compiled", "bf16_compiled", "fp8_te_delayed"])
def test_it(fp8_report, name):
    fp8_report({str(ROOT)!r} + "/" + name)

@pytest.mark.fp8
def test_the_trace():
    pass
"""
    result = _pytest(
        pytester, code, "-n", "2", "--fp8-trace", ROOT / "fp8_experts", alone=True
    )
    result.assert_outcomes(passed=4)
    lines = [line for line in result.outlines if "of GEMM time in FP8" in line]
    assert sorted(line.split()[0] for line in lines) == [
        "ACTIVE",
        "ACTIVE",
        "ACTIVE",
        "INACTIVE",
    ]


RUN = """
import pytest

@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    from fp8verify.pytest_plugin import session_reports
    monkeypatch.setattr(session_reports, "why_not", lambda: None)

def test_it(fp8_run):
    report = fp8_run(*{command}, steps="2-3", timeout={timeout})
    assert report.verdict.value == "INCONCLUSIVE"
    assert "no GPU kernels" in report.reason
"""
SCRIPT = """
import sys, time

if "fail" in sys.argv:
    sys.exit("the loss is NaN")
if "hang" in sys.argv:
    time.sleep(600)
import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


@pytest.mark.train
@pytest.mark.parametrize(
    ("word", "timeout", "says"),
    [
        ("train", 120, []),
        ("fail", 120, ["the script exited with 1:", "*the loss is NaN*"]),
        ("hang", 1, ["the script took more than 1 s:"]),
    ],
)
def test_a_script_runs_under_a_window_and_its_failure_is_the_test_s(
    pytester: pytest.Pytester, word: str, timeout: int, says: list[str]
) -> None:
    script = pytester.path / "train.py"
    script.write_text(SCRIPT)
    command = [str(python_with_torch()), str(script), word]
    result = _pytest(pytester, RUN.format(command=command, timeout=timeout))
    result.assert_outcomes(failed=1) if says else result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(says)


def test_without_a_gpu_a_run_is_skipped_with_the_reason(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
def test_it(fp8_run):
    fp8_run("train.py")
"""
    monkeypatch.setattr(session_reports, "_GPU_DEVICES", ("/nowhere",))
    result = _pytest(pytester, code, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * no NVIDIA GPU here"])


def test_an_unused_plugin_stays_unloaded_through_a_whole_run(
    pytester: pytest.Pytester,
) -> None:
    code = """
import sys

def test_it():
    heavy = ("torch", "pandas", "msgspec", "rich", "fp8verify.model", "fp8verify.verdict")
    assert [name for name in heavy if name in sys.modules] == []
"""
    result = _pytest(pytester, code, alone=True)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*fp8verify*=*")
