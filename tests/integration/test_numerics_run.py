"""`run --numerics` on torchao's emulated Float8Linear: rows, findings, and a run left alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import pytest

import fp8verify
import fp8verify.report.forms
from fp8verify.capture.files import read_numerics
from fp8verify.capture.schema import MeasuredRecord, NumericsRecord
from fp8verify.model.numerics import NumericsReport
from fp8verify.model.verdict import Finding
from fp8verify.report.results import Report
from tests.attached import SCRIPTS, Attached, attach, execute, python
from tests.command_line import fp8verify as fp8verify_command
from tests.hand_built import present
from tests.shared_torch import FORKS_RUN, runs_compiled_code_eagerly
from tests.unit.test_agent_contract import compare

if find_spec("torchao") is None:  # imported where a test needs it, which takes seconds
    pytest.skip("needs torchao, from the train extra", allow_module_level=True)
pytestmark = pytest.mark.train

TRAINING = SCRIPTS / "numerics.py"
LAYERS = 10
ENDED = "the run ended before the step to measure was complete"
OURS = {
    "nan-or-inf", "gradient-flushed", "scale-stuck", "scales-differ-between-ranks",
    "mxfp8-e5m2-gradients", "scale-unstable", "underflow-high", "sqnr-low", "outlier-layer",
    "saturates", "amax-spike", "mx-last-bucket", "recompute-not-fp8", "zero-rows",
    "history-unused",
}  # fmt: skip


_folders: list[Path] = []


@pytest.fixture(scope="module", autouse=True)
def _leave_no_folder() -> Iterator[None]:
    """Remove what `run` has made, which its cache keeps for all tests."""
    yield
    for folder in _folders:
        rmtree(folder)
    _folders.clear()
    run.cache_clear()


@cache
def run(
    *arguments: str,
    numerics: tuple[str, ...] = ("--numerics",),
    script: Path = TRAINING,
) -> Attached:
    folder = Path(mkdtemp(prefix="numerics-"))
    _folders.append(folder)
    return attach(folder, "2-3", script, *arguments, options=numerics)


def is_as_without_us(done: Attached, folder: Path, *command: object) -> bool:
    """Whether it ended and printed as it does without us."""
    plain = execute(python(), *command, cwd=folder)
    return (done.run.code, done.run.stdout) == (plain.code, plain.stdout)


def report_of(done: Attached) -> Report:
    return fp8verify.inspect(done.capture)


def numbers(report: Report) -> NumericsReport:
    return present(report.ranks[0].numerics)


def told(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.code in OURS]


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_a_sound_run_has_three_rows_a_layer_and_no_finding(recipe: str) -> None:
    report = report_of(run("--recipe", recipe))

    found = numbers(report)
    assert (found.step, found.reason, found.notes) == (5, None, ())
    rows = [row for row in found.rows if row.source == "replay"]
    assert len(rows) == 3 * LAYERS
    assert {row.tensor for row in rows} == {"input", "weight", "grad_output"}
    for row in rows:
        expected = 25.5 if row.format == "e5m2" else 31.5
        assert row.sqnr_db == pytest.approx(expected, abs=1.5), row
    formats = {row.format for row in rows if row.tensor == "grad_output"}
    assert formats == {"e5m2" if recipe == "tensorwise" else "e4m3"}
    assert told(report) == []


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("weight",), {"outlier-layer": "weight of layers.2.down"}),
        (("gradient",), {"gradient-flushed": "grad_output of layers.2.down"}),
        (
            ("inf",),
            {
                "nan-or-inf": "input of layers.2.up",
                "": "the loss in the log is nan at step 5",
            },
        ),
        # Scales by row keep the gradients of other samples.
        (
            ("gradient", "--recipe", "rowwise"),
            {"outlier-layer": "grad_output of layers.2.down"},
        ),
    ],
)
def test_a_fault_is_found_where_it_was_sown(
    arguments: tuple[str, ...], found: dict[str, str]
) -> None:
    findings = {
        f.code if f.layers else "": f
        for f in told(report_of(run("--fault", *arguments)))
    }
    assert {
        code: found[code] in f.message for code, f in findings.items()
    } == dict.fromkeys(found, True)
    assert all(
        found[code].split()[-1] in f.layers for code, f in findings.items() if code
    )


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(("--compile",), marks=runs_compiled_code_eagerly),
        ("--checkpoint", "reentrant"),
        ("--checkpoint", "not reentrant"),
    ],
    ids=" ".join,
)
def test_compiled_and_checkpointed_layers_are_measured_once(
    how: tuple[str, ...], tmp_path: Path
) -> None:
    done = run("--recipe", "tensorwise", *how, numerics=("--numerics-eager",))

    rows = numbers(report_of(done)).rows
    usual = numbers(report_of(run("--recipe", "tensorwise"))).rows
    figures = {(row.layer, row.tensor): (row.amax, row.sqnr_db) for row in rows}
    assert figures == {
        (row.layer, row.tensor): (row.amax, row.sqnr_db) for row in usual
    }
    record = present(read_numerics(done.capture)[0].record.measured)
    assert {row.calls for row in record.rows} == {1}
    assert is_as_without_us(done, tmp_path, TRAINING, *how)


def test_of_compiled_code_the_weights_and_gradients_are_measured(
    tmp_path: Path,
) -> None:
    done = run("--recipe", "tensorwise", "--compile")

    found = numbers(report_of(done))
    usual = numbers(report_of(run("--recipe", "tensorwise")))
    weights = {row.layer: row.sqnr_db for row in usual.rows if row.tensor == "weight"}
    assert {row.tensor for row in found.rows} == {"weight"}
    assert {row.layer for row in found.rows} == weights.keys()
    assert "--numerics-eager" in found.notes[0]
    assert is_as_without_us(done, tmp_path, TRAINING, "--compile")


def test_a_long_run_leaves_a_line_for_every_measured_step() -> None:
    done = run("--steps", "12", "--clip", "0.001", numerics=("--numerics-every", "2"))

    trend = numbers(report_of(done)).trend
    assert [point.step for point in trend] == [5, 7, 9, 11]
    assert all(point.scalars["fp8/fwd_scale"] > 0 for point in trend)
    assert {"fp8/bwd_scale", "fp8/amax_fwd", "fp8/amax_bwd", "train/grad_norm"} <= set(
        trend[0].scalars
    )
    printed = dict(
        re.findall(r"^step (\d+) loss (\S+)$", done.run.stdout, re.MULTILINE)
    )
    for point in trend:
        assert point.scalars["train/loss"] == float(printed[f"{point.step}"])
        assert point.scalars["train/grad_norm"] == pytest.approx(0.001, rel=0.02)
        assert 0 < point.scalars["train/grad_norm_clip_ratio"] < 0.5


def watched_lines(folder: Path) -> list[dict[str, Any]]:
    """Return what a watch wrote of 33 steps, after a look at the figures."""
    lines = [
        json.loads(line) for line in (folder / "fp8.jsonl").read_text().splitlines()
    ]
    # Every tenth step at the earliest, and before a window: step 14 comes too soon after 6.
    measured = [(line["step"], line.get("numerics_step")) for line in lines]
    assert measured == [(8, 6), (16, None), (24, 22), (32, None)]
    for line in lines[0::2]:
        assert line["fp8/fwd_scale"] * line["fp8/amax_fwd"] > 0
        assert line["fp8/bwd_scale"] > 1
        assert 0 < line["fp8/amax_bwd"] < 1
        assert 0 < line["train/grad_norm_clip_ratio"] < 0.5
    return lines


def test_a_watch_tells_the_figures_of_each_window(tmp_path: Path) -> None:
    done = fp8verify_command(
        "run", "--every", "8", "--window", "1", "--numerics-every", "10",
        "--metrics", "fp8.jsonl",
        "--trace-dir", "capture", "--", python(), TRAINING, "--steps", "33",
        "--clip", "0.001", cwd=tmp_path, OMP_NUM_THREADS="1", **FORKS_RUN,
    )  # fmt: skip

    assert done.returncode == 3, done.stderr  # a CPU has no kernels to judge
    assert "failed" not in done.stdout
    for line in watched_lines(tmp_path):
        assert line["train/grad_norm"] == pytest.approx(0.001, rel=0.02)
        assert not OURS & set(line["findings"])
    # All measured steps stay with the run, though its windows are dropped.
    (series,) = (tmp_path / "capture").glob("*.numerics.jsonl")
    steps = [json.loads(line)["step"] for line in series.read_text().splitlines()]
    assert steps == [6, 22]


def test_a_watch_inside_the_program_tells_them_too(tmp_path: Path) -> None:
    def own(how: str, steps: int) -> tuple[list[str], str]:
        script = (SCRIPTS / "own_numerics.py", how, steps)
        done = execute(python(), *script, cwd=tmp_path)
        assert done.code == 0, done.stderr
        return done.stdout.splitlines(), done.stderr

    plain, _ = own("plain", 33)
    watched, _ = own("watched", 33)

    assert watched == plain
    watched_lines(tmp_path)
    # One that is closed in the step that it measures leaves nothing behind.
    closed, hooks = own("closed", 8)
    assert closed[:8] == plain[:8]
    assert hooks.splitlines()[-1] == "2 0"


def test_without_the_option_nothing_is_measured_and_gradients_are_noted() -> None:
    done = run("--recipe", "tensorwise", numerics=())

    found = numbers(report_of(done))
    assert (found.rows, found.reason) == ((), None)
    assert [norm.step for norm in found.gradients] == [1, 3]
    assert not list(done.capture.glob("*.numerics.json*"))


def test_the_agent_writes_the_fields_that_are_read() -> None:
    done = run("--steps", "12", "--clip", "0.001", numerics=("--numerics-every", "2"))
    (path,) = done.capture.glob("*.numerics.json")
    (series,) = done.capture.glob("*.numerics.jsonl")
    said = compare(NumericsRecord, [json.loads(path.read_text())])
    said += compare(
        MeasuredRecord, list(map(json.loads, series.read_text().splitlines()))
    )
    assert said == []


def test_the_forms_show_the_tensors() -> None:
    report = report_of(run("--fault", "gradient"))
    text = fp8verify.report.forms.render(report, "text")
    assert re.search(r"25\.\d +75\.00% +0\.00% .* grad_output +layers\.2\.down", text)
    frames = report.to_pandas()
    assert frames.numerics.groupby("tensor").size().to_dict() == {
        "grad_output": LAYERS, "input": LAYERS, "weight": LAYERS,
    }  # fmt: skip


@pytest.mark.parametrize(
    "way",
    [
        ("accumulate+scaler+clip+optimizers",), ("lora+evaluate+clip-value+foreach-off",),
        ("raise",), ("interrupt",), ("exit",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_training_is_the_same_bit_for_bit(
    way: tuple[str, ...], tmp_path: Path
) -> None:
    done = run("--way", *way)

    assert is_as_without_us(done, tmp_path, TRAINING, "--way", *way)
    found = numbers(report_of(done))
    if way[0] in ("raise", "interrupt", "exit"):
        assert (found.step, found.reason) == (None, ENDED)
    else:
        assert (found.step, found.notes) == (5, ())
        assert len({(row.layer, row.tensor) for row in found.rows}) == len(found.rows)
        layers = {row.layer for row in found.rows}
        without = {
            "blocks.0.frozen"
        } & layers  # neither its input nor its weight has a gradient
        assert len(found.rows) == 3 * len(layers) - len(without)
        assert told(report_of(done)) == []


def test_every_step_is_measured_and_a_fault_of_a_later_one_found() -> None:
    done = run("--steps", "11", "--fault", "gradient", "--fault-step", "8",
               numerics=("--numerics-every", "1"))  # fmt: skip

    report = report_of(done)
    assert [point.step for point in numbers(report).trend] == [5, 6, 7, 8, 9, 10, 11]
    (finding,) = told(report)
    assert (finding.code, finding.layers) == ("gradient-flushed", ("layers.2.down",))
    assert finding.message.endswith("in 1 of 7 measured steps, first in step 8")
