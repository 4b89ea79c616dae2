"""`fp8verify.compare` and `fp8verify.table`, in Python and on the command line: every form."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

import fp8verify
from fp8verify import comparison
from fp8verify.cli.group import cli
from fp8verify.comparison import apply_gate, parse_gap
from fp8verify.errors import UsageError
from fp8verify.model.comparison import LossPair
from fp8verify.report.forms import render
from fp8verify.report.payoff import payoff
from tests.captures import CAPTURES, ROOT, report_of, schema_errors

BASELINE, CANDIDATE = ROOT / "bf16_width4096", ROOT / "fp8_width4096"


def call(*args: object) -> Result:
    return CliRunner().invoke(cli, [*map(str, args)], catch_exceptions=True)


@pytest.fixture(scope="module", autouse=True)
def _captures_are_read_once() -> Iterator[None]:
    """Give out reports of captures that ship; what is read with a log of its own is read."""

    def read(run: Path | str, **options: object) -> fp8verify.Report:
        if Path(run).parent == ROOT and options.get("log") is None:
            return report_of(Path(run).name)
        return fp8verify.inspect(run, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "inspect", read)
        yield


@pytest.fixture(scope="module")
def found() -> fp8verify.Comparison:
    return fp8verify.compare(BASELINE, CANDIDATE)


# -- compare ------------------------------------------------------------------------------------


def test_results_name_their_runs(found: fp8verify.Comparison) -> None:
    names = ("bf16_width4096", "fp8_width4096")
    assert found.baseline is not None
    assert found.candidate is not None
    assert found.names == (found.baseline.name, found.candidate.name) == names
    table = fp8verify.table([BASELINE, str(CANDIDATE)])  # a list is runs of their own
    assert tuple(row.name for row in table.runs) == names


def test_captures_that_ship_give_steps_gemms_and_losses(
    found: fp8verify.Comparison,
) -> None:
    assert (found.outcome.value, found.work_ratio, found.findings) == (
        "FASTER",
        1.0,
        (),
    )
    assert found.gemm_speedup == pytest.approx(1.99, abs=0.01)
    assert {pair.leg for pair in found.gemms} == {"fprop", "dgrad", "wgrad"}
    assert all(
        pair.speedup is not None and 1.6 < pair.speedup < 2.3 for pair in found.gemms
    )
    assert found.loss is not None
    assert (found.loss.steps, found.loss.last_step) == (18, 18)


def test_compare_takes_paths_and_reports(found: fp8verify.Comparison) -> None:
    reports = [fp8verify.inspect(path) for path in (BASELINE, CANDIDATE)]
    again = fp8verify.compare(*reports)
    assert (again.outcome, again.speedup) == (found.outcome, found.speedup)
    assert again.loss is None  # a report has no log
    assert found.loss is not None


def test_the_json_keeps_to_its_own_schema(found: fp8verify.Comparison) -> None:
    document = json.loads(found.to_json())
    assert schema_errors(document, "comparison") == []
    del document["outcome"]
    assert schema_errors(document, "comparison") == ["'outcome' is a required property"]


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ("text", "43.67 ms per step, baseline 58.71 ms: 1.34x"),
        ("json", '"outcome": "FASTER"'),
        ("markdown", "| candidate | ACTIVE | 100.0% | 4 | 43.67 |"),
        ("github", "::notice title=FP8 FASTER::43.67 ms per step"),
        ("html", "FASTER · 1.34x"),
    ],
)
def test_each_form_says_the_outcome(form: str, says: str) -> None:
    output = call("compare", BASELINE, CANDIDATE, "--format", form).output
    assert says in output
    assert form != "text" or max(map(len, output.splitlines())) <= 80


@pytest.mark.parametrize(
    ("demands", "code", "finding"),
    [
        (("--min-speedup", "1.3"), 0, None),
        (("--min-speedup", "1.4"), 1, "speedup-below-minimum"),
        (("--max-loss-gap", "0.01"), 0, None),
        (("--max-loss-gap", "1%"), 0, None),
    ],
)
def test_demands_decide_the_exit_code(
    demands: tuple[str, ...], code: int, finding: str | None
) -> None:
    done = call("compare", BASELINE, CANDIDATE, *demands, "--format", "json")
    assert done.exit_code == code
    codes = [one["code"] for one in json.loads(done.output)["findings"]]
    assert codes == ([finding] if finding else [])


def _with_gap(found: fp8verify.Comparison, **changes: object) -> LossPair:
    assert found.loss is not None
    return replace(found.loss, **changes)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"mean_gap": 0.04}, 0), ({"mean_gap": 0.06}, 1), ({"mean_gap": -1.0}, 0),
        ({"first_bad_step": 9, "first_bad_run": "candidate"}, 1),
        ({"first_bad_step": 9, "first_bad_run": "both"}, 0), ({"mean_gap": None}, 1),
    ],
)  # fmt: skip
def test_losses_may_lie_so_far_above_the_baselines(
    found: fp8verify.Comparison, changes: dict[str, object], code: int
) -> None:
    changed = replace(found, loss=_with_gap(found, **changes))
    assert apply_gate(changed, max_loss_gap=(0.05, False)).exit_code == code


def test_a_gap_that_nobody_can_know_is_not_met(found: fp8verify.Comparison) -> None:
    held = apply_gate(replace(found, loss=None), max_loss_gap=(0.5, False))
    assert (held.exit_code, held.findings[0].code) == (1, "loss-gap-unknown")


@pytest.mark.parametrize("text", ["", "%", "-1", "-5%", "inf", "nan", "5 percent"])
def test_what_is_no_gap_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_gap(text)


def test_a_share_is_held_against_the_relative_gap(found: fp8verify.Comparison) -> None:
    changed = replace(found, loss=_with_gap(found, relative_gap=0.04, mean_gap=9.0))
    assert apply_gate(changed, max_loss_gap=parse_gap("5%")).exit_code == 0
    held = apply_gate(changed, max_loss_gap=parse_gap("3%"))
    assert held.exit_code == 1
    assert "+4.00%" in held.findings[0].message
    assert "3 %" in held.findings[0].message


def test_three_steps_of_which_one_is_the_first_decide_nothing() -> None:
    found = fp8verify.compare(ROOT / "bf16_compiled", ROOT / "fp8_compiled")
    assert (found.outcome.value, found.findings) == ("UNDECIDED", ())
    assert (found.interval or (2,))[0] < 1 < (found.interval or (0, 0))[1]
    assert f"Record {found.steps_needed} steps of each run." in found.to_text()


def test_ranks_and_layers_that_both_runs_have_are_paired() -> None:
    same = fp8verify.compare(ROOT / "ddp_one_rank_bf16", ROOT / "ddp_one_rank_bf16")
    assert [(pair.rank, pair.step_speedup) for pair in same.ranks] == [
        (0, 1.0),
        (1, 1.0),
    ]
    layers = fp8verify.compare(
        ROOT / "fp8_layers_compiled", ROOT / "fp8_layers_compiled"
    ).layers
    assert {pair.layer: pair.candidate_precision for pair in layers}["head"] == "bf16"
    assert all(
        pair.baseline_us is None for pair in layers
    )  # an eager step's times are not its own
    report = fp8verify.inspect(ROOT / "fp8_layers_compiled")
    (rank,) = report.ranks
    assert rank.named_layers is not None
    named = replace(rank.named_layers, source="window")
    whole = replace(report, ranks=(replace(rank, named_layers=named),))
    us = {
        row.layer: sum(sum(leg.time_us.values()) for leg in row.legs)
        for row in named.rows
    }
    found = {
        pair.layer: pair.candidate_us for pair in fp8verify.compare(whole, whole).layers
    }
    assert found == {layer: round(us[layer] / len(rank.steps), 3) for layer in found}


def test_logs_beside_the_captures_are_compared(tmp_path: Path) -> None:
    for name, offset in (("a.log", 0.0), ("b.log", 0.5)):
        lines = [f"step {step} loss {3.0 - step + offset}\n" for step in range(3)]
        (tmp_path / name).write_text("".join(lines))
    result = call(
        "compare", "--format", "json",
        ROOT / "bf16_compiled", ROOT / "fp8_compiled",
        "--baseline-log", tmp_path / "a.log", "--candidate-log", tmp_path / "b.log",
    )  # fmt: skip
    loss = json.loads(result.output)["loss"]
    assert (loss["steps"], loss["mean_gap"]) == (3, 0.5)


def test_different_models_exit_with_3() -> None:
    result = call("compare", ROOT / "bf16_compiled", ROOT / "fp8_accelerate")
    assert result.exit_code == 3
    head = "NOT COMPARABLE  fp8_accelerate against bf16_compiled"
    assert result.output.splitlines()[0] == head


def test_a_file_whose_name_asks_for_a_form_there_is_not_is_a_usage_error(
    tmp_path: Path,
) -> None:
    pair = ROOT / "bf16_compiled", ROOT / "fp8_compiled"
    result = call("compare", *pair, "-o", tmp_path / "out.xml")
    assert isinstance(result.exception, UsageError)
    assert "which this result does not have" in result.exception.fact
    assert ".html .htm .json" in result.exception.hint


# -- table --------------------------------------------------------------------------------------


def test_a_table_has_a_row_for_each_run() -> None:
    done = call("table", ROOT / "fp8_compiled", ROOT / "ddp_one_rank_bf16")
    lines = done.output.splitlines()
    assert lines[1].split()[:3] == ["fp8_compiled", "ACTIVE", "100.0%"]
    assert lines[2].split()[1:6] == ["PARTIAL,", "1", "error", "19.6%", "0.0%"]
    assert lines[-1] == "exit 1: ddp_one_rank_bf16 is PARTIAL with 1 error"
    assert done.exit_code == 1
    assert call("table", ROOT / "ddp_one_rank_bf16", "--exit-zero").exit_code == 0


def test_a_table_says_no_gain_where_the_reports_do() -> None:
    for row, report in (
        (row, report_of(row.name))
        for row in fp8verify.table(*map(report_of, CAPTURES)).runs
    ):
        said = payoff(report)
        assert row.speed == (said.text if said else "")
        shown = render(fp8verify.table(report), "text").splitlines()[1].split()[-1]
        is_none = row.speed.startswith("no gain")
        assert (shown == "none") is is_none
        assert (shown[-1] == "x") is (row.speedup_estimate is not None)


def test_the_exit_line_of_a_table_names_the_run_that_makes_it() -> None:
    names = ("fp8_compiled", "fp8_pinned_layer", "bf16_compiled", "fp8_forward_only")
    table = fp8verify.table(*map(report_of, names))
    last = table.to_text().splitlines()[-1]
    assert last == "exit 3: fp8_forward_only is INCONCLUSIVE; 2 other runs failed too"


@pytest.mark.parametrize(
    ("runs", "tone"),
    [
        (["fp8_compiled", "fp8_accelerate"], "good"),
        (["fp8_compiled", "fp8_te_recompute_bf16"], "fair"),
        (["fp8_compiled", "fp8_te_recompute_bf16", "ddp_one_rank_bf16"], "bad"),
    ],
)
def test_a_table_has_the_color_of_its_worst_run(runs: list[str], tone: str) -> None:
    found = fp8verify.table(*map(report_of, runs))
    assert f'<header class="{tone}">' in found.to_html()


def test_every_result_has_every_form(found: fp8verify.Comparison) -> None:
    report = fp8verify.inspect(ROOT / "fp8_compiled")
    for result in (report, found, fp8verify.table(report)):
        assert result.to_html().startswith("<!DOCTYPE html>")
        assert json.loads(result.to_json())["schema_version"]
        assert re.search(r"^\| ?---", result.to_markdown(), re.MULTILINE)
        assert "\x1b" not in result.to_text(width=100)
        assert result._repr_html_().startswith("<div>")
        assert len(repr(result).splitlines()) <= 6


def test_all_captures_fit_one_table(tmp_path: Path) -> None:
    table = fp8verify.table(*map(report_of, CAPTURES))
    frame = table.to_pandas()
    assert frame.verdict.tolist() == [run.verdict.value for run in table.runs]
    assert frame.name.is_unique
    assert schema_errors(json.loads(table.to_json()), "run_table") == []
    assert len(repr(table).splitlines()) >= len(CAPTURES)
    done = call(
        "table", *(ROOT / name for name in CAPTURES[:4]), "-o", tmp_path / "week.csv"
    )
    assert done.output == f"{tmp_path / 'week.csv'}: 0 of 4 runs ACTIVE, exit 1\n"
    rows = list(csv.DictReader(io.StringIO((tmp_path / "week.csv").read_text())))
    assert [row["name"] for row in rows] == frame.name.tolist()[:4]


# -- what spreadsheets and notebooks take ---------------------------------------------------------


def test_a_comparison_as_csv_has_a_row_for_each_pair(
    found: fp8verify.Comparison,
) -> None:
    result = call("compare", "--format", "csv", BASELINE, CANDIDATE)
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    kinds = {"budget": found.budget, "leg": found.legs, "layer": found.layers}
    for kind, pairs in kinds.items():
        assert len([row for row in rows if row["kind"] == kind]) == len(pairs)
    gemms = [row for row in rows if row["kind"] == "gemm"]
    assert len(gemms) == len(found.gemms)
    first, pair = gemms[0], found.gemms[0]
    assert first["name"] == f"{pair.n}x{pair.k}"
    assert (first["baseline_precision"], first["leg"]) == ("bf16", pair.leg)
    each = float(first["baseline_us_each"])
    assert each == pair.baseline_us
    assert float(first["baseline_us"]) == pytest.approx(each * pair.baseline_calls)


def test_a_comparison_is_a_frame_of_the_same_rows(found: fp8verify.Comparison) -> None:
    pytest.importorskip("pandas")
    frame = found.to_pandas()
    of_gemms = frame[frame.kind == "gemm"]
    assert list(of_gemms.speedup) == [pair.speedup for pair in found.gemms]


def test_an_expression_of_ones_own_finds_the_losses(tmp_path: Path) -> None:
    for name, offset in (("a.log", 0.0), ("b.log", 0.5)):
        lines = [f"it={step} nll={3.0 - step + offset}\n" for step in range(3)]
        (tmp_path / name).write_text("".join(lines))
    command = (
        *("compare", "--format", "json", ROOT / "bf16_compiled", ROOT / "fp8_compiled"),
        *("--baseline-log", tmp_path / "a.log", "--candidate-log", tmp_path / "b.log"),
    )
    own = ("--loss-regex", r"it=(?P<step>\d+) nll=(?P<loss>\S+)")
    loss = json.loads(call(*command, *own).stdout)["loss"]
    assert (loss["steps"], loss["mean_gap"]) == (3, 0.5)
    assert loss["frameworks"] == ["--loss-regex", "--loss-regex"]
    assert json.loads(call(*command).stdout)["loss"] is None


@pytest.mark.parametrize("text", ["(", r"step (?P<step>\d+)", "(a+)+ (?P<loss>b)"])
def test_an_expression_without_a_loss_or_an_end_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        fp8verify.compare(BASELINE, CANDIDATE, loss_regex=text)
    assert "--loss-regex" in str(caught.value)
