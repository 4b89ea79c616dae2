"""Lost steps and uncompiled code, as logs tell them: which step, which line, how grave."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import pytest

from fp8verify import Report, inspect
from fp8verify.logs.lines import Line
from fp8verify.logs.signs import LogSigns, scan_signs
from tests.captures import ROOT
from tests.hand_built import found

MEGATRON = (
    " iteration {:8d}/ 500 | elapsed time per iteration (ms): 21.0 | lm loss: 2.3E+00 | loss scale:"
    " {} | grad norm: {} | number of skipped iterations: {:3d} | number of nan iterations: {:3d} |"
)
SOUND = "step {} loss 2.5 grad_norm 1.2"
APEX = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {}"
DEEPSPEED = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {}, reducing to {}"


def megatron(step: int, norm: str = "1.2", *, lost: int = 0, scale: str = "1.0") -> str:
    return MEGATRON.format(step, scale, norm, lost, lost)


def signs(*lines: str) -> LogSigns:
    return scan_signs(Line(number, text) for number, text in enumerate(lines, start=1))


@pytest.mark.parametrize(
    ("lines", "line", "place", "says"),
    [
        ([megatron(1), megatron(2, "nan", lost=1)], 2, "at step 2", "norm is nan"),
        ([megatron(1), megatron(10, lost=3)], 2, "at step 10", "3 steps were skipped"),
        (["{'loss': 2.1, 'grad_norm': nan, 'epoch': 0.1}"], 1, "", "norm is nan"),
        (["{'loss': '2.1', 'grad_norm': 'nan'}"], 1, "", "norm is nan"),
        ([SOUND.format(6), "step 7 loss=2.0 grad_norm=nan"], 2, "at step 7", "nan"),
        (
            ["AssertionError: Rank 3: found NaN in local forward loss calculation."],
            1,
            "",
            "not finite",
        ),
        (["WARN: rank 0 grad_norm is not finite: nan"], 1, "", "not finite"),
        (
            ["skipped optimizer step 7 because gradients contained NaN"],
            1,
            "at step 7",
            "skipped",
        ),
        (["optimizer step was skipped (found_inf)"], 1, "", "skipped"),
        (["step: 10  loss:  3.1  grad_norm:  inf"], 1, "at step 10", "norm is inf"),
        (["step 4/9 | loss 2.1 | norm 1.2 |", "step 5/9 | loss 2.1 | norm nan |"], 2,
         "at step 5", "the norm is nan"),
        (["step: 3 loss: 2.1 norm: inf lr: 1e-4"], 1, "at step 3", "the norm is inf"),
        (["steps:   1%|▏     | 10/1600 [00:50<2:13:00,  5.02s/it, avr_loss=nan]"], 1, "at step 10",
         "not finite"),
        ([SOUND.format(6), APEX.format(32768.0)], 2, "after step 6", "skipped"),
        ([SOUND.format(6), DEEPSPEED.format(65536, 32768)], 2, "after step 6", "skipped"),
        (["Grad overflow on iteration 3"], 1, "at step 3", "skipped"),
        ([megatron(1, scale="65536.0"), megatron(2, scale="32768.0")], 2, "at step 2",
         "the loss scale fell from 65536 to 32768"),
    ],
)  # fmt: skip
def test_a_lost_step_is_told_with_line_and_step(
    lines: list[str], line: int, place: str, says: str
) -> None:
    (one,) = signs(*lines).broken
    assert (one.line, one.place) == (line, place)
    assert says in one.text


@pytest.mark.parametrize(
    ("lines", "count", "grave"),
    [
        ([megatron(1), megatron(2, "nan", lost=1), megatron(3)], 1, False),
        ([megatron(1), megatron(2), megatron(3, "nan", lost=1)], 1, True),
        ([megatron(1), *[megatron(n, "nan", lost=1) for n in (2, 3)], megatron(4)], 2, True),
        ([megatron(1), megatron(10, lost=2), megatron(20)], 1, True),
        ([APEX.format(32768), APEX.format(16384), SOUND.format(3)], 2, False),
        ([SOUND.format(1), APEX.format(8), SOUND.format(2), APEX.format(4), SOUND.format(3)],
         2, True),
        # Every rank writes the line of one step.
        ([SOUND.format(1), *[APEX.format(8)] * 4, SOUND.format(2)], 1, False),
        # A scaler tries a larger scale from time to time.
        ([megatron(n, scale=scale) for n, scale in enumerate(["64.0", "128.0", "64.0"] * 3)],
         0, False),
        (["step 5 loss=2.0", "step 5 grad_norm=nan", "step 5 loss=2.0"], 1, True),
        (["step 5 grad_norm=nan", "eval_loss: 2.0"], 1, True),
    ],
)  # fmt: skip
def test_it_is_grave_where_it_repeats_or_stands_last(
    lines: list[str], count: int, *, grave: bool
) -> None:
    told = signs(*lines)
    assert (len(told.broken), told.is_grave) == (count, grave)


@pytest.mark.parametrize(
    "line",
    [
        megatron(7),
        "INFO skipped steps: 0",
        "# grad_norm: nan means trouble",
        "if grad_norm == nan: raise",
        "grad norm information: 3",
        "max_grad_norm: 1.0, skip_nan_grad: true",
        "eval_loss: nan",
        "layer norm: nan of 3 values",
        "step 5 loss 2.0 rms norm: nan",
        "step 5 val | norm nan |",
        "initial_loss_scale: 4294967296, min_loss_scale: 1.0",
    ],
)
def test_what_is_no_lost_step(line: str) -> None:
    assert signs(line).broken == ()


def reported(tmp_path: Path, *lines: str) -> Report:
    log = tmp_path / "train.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    return inspect(ROOT / "fp8_compiled", log=log)


def test_lost_steps_that_repeat_fail_the_run(tmp_path: Path) -> None:
    lines = [megatron(n, "nan" if n in (3, 5) else "1.0") for n in range(1, 8)]
    report = reported(tmp_path, *lines)
    (one,) = found(report, "nan-or-inf")
    assert report.exit_code == 1
    assert one.message == (
        "the gradient norm is nan at step 3 (log line 3), and 1 more step; "
        "the last at step 5 (line 5)"
    )


def test_a_log_that_comes_through_a_pipe_is_read_for_all_that_it_says(
    tmp_path: Path,
) -> None:
    pipe = tmp_path / "train.log"
    os.mkfifo(pipe)
    lines = "".join(f"{megatron(n, 'nan')}\n" for n in (1, 2))
    writer = Thread(target=pipe.write_text, args=(lines,))
    writer.start()
    report = inspect(ROOT / "fp8_compiled", log=pipe)
    writer.join()
    assert found(report, "nan-or-inf")
    assert report.exit_code == 1


def test_one_lost_step_that_the_run_left_behind_is_a_warning(tmp_path: Path) -> None:
    report = reported(tmp_path, megatron(1), megatron(2, "nan", lost=1), megatron(3))
    (one,) = found(report, "nan-or-inf")
    assert (one.severity, report.exit_code) == ("warning", 0)
    assert "at step 2 (log line 2)" in one.message


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("W0101 convert_frame.py:1016] [0/8] torch._dynamo hit config.recompile_limit (8)",
         "warning"),
        ("WON'T CONVERT forward /opt/model.py line 41", "warning"),
        ("V0101 [__graph_breaks] Graph break in user code at /opt/model.py:41", "info"),
    ],
)  # fmt: skip
def test_the_compilers_own_words_are_quoted_with_their_line(
    line: str, severity: str, tmp_path: Path
) -> None:
    report = reported(tmp_path, "step 1 loss 2.0", line)
    (one,) = found(report, "not-compiled")
    assert one.severity == severity
    assert "log line 2" in one.message
    assert line[-20:] in one.message
    assert report.exit_code == 0


FALLBACK = "gemm/cublaslt_gemm.cu:1042 in function g: Warning: Fallback to cuBLAS grouped GEMM."


def test_a_known_warning_is_counted_and_makes_no_verdict(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"step {n} loss 2.0\n{FALLBACK}\n" for n in range(1000)))
    report = inspect(ROOT / "fp8_compiled", log=log)
    (one,) = found(report, "known-warning")
    assert "log line 2, 1,000 times" in one.message
    assert "Fallback to cuBLAS grouped GEMM" in one.message
    assert "still in the same precision" in one.message
    assert report.verdict is inspect(ROOT / "fp8_compiled").verdict


@pytest.mark.parametrize(
    "line", [f"# {FALLBACK}", f'raise ValueError("{FALLBACK}")', "Fallback to eager"]
)
def test_what_only_quotes_a_warning_is_none(line: str) -> None:
    assert signs(line).warned == ()
