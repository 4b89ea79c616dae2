"""Transformer Engine's debug logs: BioNeMo's figures of a healthy and a sick layer, as logged."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import fp8verify
from fp8verify.analysis.te_debug import read_stats
from fp8verify.cli import main
from fp8verify.cli.group import cli
from fp8verify.errors import InputError, UsageError

# bionemo-recipes/recipes/fp8_analysis, summary_fl4.csv: healthy layers and layer 28.
HEALTHY, SICK, SICK_GRADIENT = 0.02, 17.0, 9.2


def line(name: str, step: int, value: float) -> str:
    return f"2025-11-22 10:00:00,123 - INFO - {name} iteration={step:06d} value={value}\n"


def write(folder: Path, steps: int = 6) -> Path:
    logs = folder / "nvdlfw_inspect_statistics_logs"
    logs.mkdir()
    text = "2025-11-22 10:00:00,000 - INFO - Feature LogFp8TensorStats is enabled\n"
    for step in range(0, 100 * steps, 100):
        for block in range(24, 29):
            fc2 = f"model.layers.{block}.mlp.fc2_activation_fp8_block_scaling"
            sick = block == 28
            grown = SICK * (step + 100) / (100 * steps) if sick else HEALTHY
            text += line(f"{fc2}_underflows%", step, grown)
            text += line(f"{fc2}_underflows%_columnwise", step, 99.0)
            text += line(f"{fc2}_scale_inv_max", step, 2048 if sick else 2)
            fc1 = f"model.layers.{block}.mlp.fc1_gradient_fp8_block_scaling_underflows%"
            text += line(fc1, step, SICK_GRADIENT if sick else 0.05)
    (logs / "nvdlfw_inspect_globalrank-0.log").write_text(text)
    return logs


def test_the_sick_layer_is_found_and_no_other(tmp_path: Path) -> None:
    report = fp8verify.inspect([], stats=write(tmp_path))

    (finding,) = [f for f in report.findings if f.code == "underflow-high"]
    assert finding.layers == ("model.layers.28.mlp.fc2", "model.layers.28.mlp.fc1")
    assert "input of model.layers.28.mlp.fc2 flushes 17.0%" in finding.message
    assert report.verdict.value == "INCONCLUSIVE"


def test_the_folder_above_will_do_and_the_trend_is_kept(tmp_path: Path) -> None:
    write(tmp_path)
    series = read_stats(tmp_path)[0].series
    assert [one.step for one in series] == [0, 100, 200, 300, 400, 500]
    place = series[-1].layer.index("model.layers.28.mlp.fc2")
    assert series[-1].flushed[place] == pytest.approx(0.17)
    assert series[-1].scale[place] == pytest.approx(1 / 2048)


def test_the_largest_value_has_a_sign_and_the_amax_none(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.fc1_activation"
    both = {"cur_amax": 4.0, "max": -0.5}
    for order in (list(both), list(reversed(both))):
        lines = "".join(line(f"{name}_{stat}", 1, both[stat]) for stat in order)
        (tmp_path / "nvdlfw_inspect_globalrank-0.log").write_text(lines)
        (row,) = read_stats(tmp_path)[0].rows
        assert row.amax == 4.0


def test_the_command_needs_no_trace(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["inspect", "--stats", str(write(tmp_path))])
    assert done.exit_code == 3
    assert "underflow-high" in done.output
    assert isinstance(CliRunner().invoke(cli, ["inspect"]).exception, UsageError)
    assert callable(main)


def test_other_folders_are_told_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "nvdlfw_inspect_globalrank-0.log").write_text("nothing\n")
    with pytest.raises(InputError, match="no statistics of Transformer Engine"):
        read_stats(tmp_path)


@given(st.lists(st.text(max_size=80), max_size=8))
def test_any_text_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("stats")
    text = "\n".join([line(name, 1, 2.0) for name in lines] + lines)
    (folder / "nvdlfw_inspect_globalrank-0.log").write_text(text, errors="replace")
    try:
        read_stats(folder)
    except InputError:
        return
