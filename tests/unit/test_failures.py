"""A run that failed with a known message is told its cause."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from fp8verify.cli.explain_command import UNKNOWN_MESSAGE, explain_command
from fp8verify.logs.failures import causes, failure_notes, failures

MESSAGES = (
    Path(__file__).parent / "failure_messages.csv"
)  # ⏎ ends a line of a traceback


def test_each_message_is_told_its_own_cause_alone_too() -> None:
    told = set()
    with MESSAGES.open(encoding="utf-8", newline="") as table:
        for check, message in list(csv.reader(table))[1:]:
            *before, last = message.split(" ⏎ ")
            (alone,) = causes([last], alone=True)
            log = ["step 1 | loss 2.0\n", *(f"{line}\n" for line in (*before, last))]
            found = causes(log)
            assert alone.failure.check == check, last
            if alone.failure.is_harmless:
                assert found == []
            else:
                (one,) = found
                assert (one.failure, one.line) == (alone.failure, len(before) + 2)
            told.add(alone.failure)
    assert told == set(failures())


def test_every_row_has_evidence_and_a_remedy() -> None:
    for row in failures():
        assert row.remedy.endswith(".")
        assert re.search(
            r"\w+#\d+| [0-9a-f]{7,}\b|torch[ /]|torchao |kempner|README|openxla/xla"
            r"|(?:transformers|lightning) \d",
            row.evidence,
        )


@pytest.mark.parametrize(
    "message",
    [
        "torch.OutOfMemoryError: CUDA out of memory.",
        "RuntimeError: GET was unable to find an engine to execute this computation",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED",
        "CUDA error: no kernel image is available for execution on the device",
        "torch._subclasses.functional_tensor.FunctionalTensor",
        "AssertionError: this kernel takes only bfloat16 inputs",
        "RuntimeError: max(): Expected reduction dim to be specified for input.numel() == 0.",
    ],
)
def test_messages_of_many_causes_need_fp8_near_them(message: str) -> None:
    assert causes(["  File model.py, in forward\n", message]) == []
    assert not any(cause.is_certain for cause in causes([message], alone=True))


def test_a_cause_is_told_once() -> None:
    message = (
        "RuntimeError: Rowwise scaling is not currently supported on your device\n"
    )
    assert [cause.line for cause in causes([message] * 8)] == [1]


def test_a_run_that_failed_is_told_the_causes_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("x\nValueError: FP8 + Tensor Parallelism is not yet supported\n")
    assert list(failure_notes([tmp_path / "gone"])) == []
    (note,) = failure_notes([log])
    assert note.startswith(
        "the run failed, log.txt line 2; a known cause: KempnerForge does not support"
    )
    assert note.endswith("(doctor: fp8-with-tensor-parallel)")


def test_a_warning_that_did_not_end_the_run_is_no_cause_of_a_failure(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log.txt"
    log.write_text("cublaslt_gemm.cu:1042: Warning: Fallback to cuBLAS grouped GEMM.\n")
    assert list(failure_notes([log])) == []


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: the frobnicator is upside down",
        "EXCEPTION",
        "a sentence of words",
    ],
)
def test_an_unknown_message_says_so_and_exits_with_3(message: str) -> None:
    done = CliRunner().invoke(explain_command, [message])
    assert done.exit_code == UNKNOWN_MESSAGE == 3
    assert "not in the list of messages" in done.output
    assert "grammar" not in done.output


@pytest.mark.parametrize(
    ("message", "near"),
    [
        (
            "ValueError: For row-wise scaling, leading dims of B_scale should match those of B",
            "asynchronous tensor parallelism",
        ),
        # A library, a format or an operation in common do not make messages alike.
        ("RuntimeError: self and mat2 must be tensors that have the same device", None),
        ("RuntimeError: the hadamard_transform kernel of nvfp4 did not start", None),
        ("AttributeError: 'Float8Tensor' object has no attribute 'foo'", None),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", None),
        ("ValueError: fp8 training needs at least two GPUs", None),
    ],
)
def test_a_known_message_is_named_only_if_it_is_alike(
    message: str, near: str | None
) -> None:
    done = CliRunner().invoke(explain_command, [message, "--format", "json"])
    assert done.exit_code == UNKNOWN_MESSAGE
    told = json.loads(done.output)
    assert told["known"] is False
    if near is None:
        assert told["nearest"] is None
    else:
        assert told["nearest"].startswith(near)


def test_only_the_message_of_a_traceback_is_explained() -> None:
    shown = (
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "/lingua/float8.py", line 23, in matmul\n'
        "[rank0]:     output = torch._scaled_mm(\n"
        "[rank0]:              ^^^^^^^^^^^^^^^^^\n"
        '[rank0]:   File "<string>", line 4, in backward\n'
        "[rank0]: RuntimeError: cutlass cannot initialize\n"
    )
    done = CliRunner().invoke(explain_command, ["-"], input=shown)
    assert done.exit_code == 0
    assert done.output.startswith("RuntimeError: cutlass cannot initialize\n  a cause:")
    assert "not in the list" not in done.output


def test_the_name_of_a_kernel_is_no_message() -> None:
    names = [
        "void my_kernel<float>(int, int)",
        "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT",
    ]
    assert CliRunner().invoke(explain_command, names).exit_code == 0


def test_a_message_that_says_itself_what_has_no_fp8_is_told_only_if_no_row_knows_more() -> (
    None
):
    (known,) = causes(
        ["AssertionError: FP8 attention is not supported for Y"], alone=True
    )
    assert not known.failure.is_general
    (said,) = causes(["NotImplementedError: X does not support FP8 inputs"], alone=True)
    assert said.failure.is_general
    assert causes(["X does not support tied weights"], alone=True) == []


@pytest.mark.parametrize(
    "message",
    [
        "fp8_autocast is deprecated and will be removed in a future release.",
        "Input and quantizer do not have matching usages. Dequantizing and requantizing.",
    ],
)
def test_warnings_of_sound_runs_are_explained_and_never_reported(
    tmp_path: Path, message: str
) -> None:
    log = tmp_path / "log.txt"
    log.write_text(f"import transformer_engine\nUserWarning: {message}\n")
    assert list(failure_notes([log])) == []
    done = CliRunner().invoke(explain_command, [message])
    assert done.exit_code == 0
    assert "Nothing has to be changed" in done.output


@pytest.mark.parametrize(
    "line",
    [
        "  fp8_amax_compute_algo ........................... most_recent",
        "fp8_gemm_kernel: true",
        "fp8_quantize_kernel = off",
    ],
)
def test_a_setting_that_begins_as_a_kernel_does_is_none(line: str) -> None:
    result = CliRunner().invoke(explain_command, [line])
    assert result.exit_code == 3
    assert "not in the list of messages" in result.output


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("RuntimeError: expected scalar type Float but found Half", "no word of it is about FP8"),
        ("RuntimeError: rocblas_invoke: rocBLAS call failed with status 2", ""),
        ("error: HIPBLAS_STATUS_INTERNAL_ERROR when calling hipblasLtMatmul abType 0 cType 0",
         "operands of its GEMM are FP32"),
        ("error: CUBLAS_STATUS_INVALID_VALUE when calling cublasLtMatmul abType 28 cType 14",
         "operands of its GEMM are FP8 (E4M3)"),
    ],
)  # fmt: skip
def test_what_the_words_of_a_message_tell_about_its_format(
    message: str, told: str
) -> None:
    shown = CliRunner().invoke(explain_command, [message]).output
    if told:
        assert told in shown
    else:
        assert "no word" not in shown
        assert "operands" not in shown


def test_a_step_whose_loss_is_nan_ends_no_run(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("fp8 training\nsteps: 1%| | 10/1600 [00:50<2:13:00, avr_loss=nan]\n")
    assert list(failure_notes([log])) == []
    (cause,) = causes(["fp8", "loss is nan"])
    assert not cause.ends_run
