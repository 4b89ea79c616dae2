"""A training that failed with a known message is told its cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fp8verify.doctor.afterwards import failure_notes
from fp8verify.doctor.causes import causes, failures
from scripts.docs.doctor_codes import examples


@pytest.mark.parametrize("row", failures(), ids=lambda row: row["evidence"])
def test_each_message_is_told_its_own_cause(row: dict[str, Any]) -> None:
    for message in examples()["failures"][row["cause"]]:  # ⏎ ends a line of a traceback
        lines = ["step 1 | loss 2.0\n", *(f"{line}\n" for line in message.split(" ⏎ "))]
        (found,) = causes(lines)
        assert (found.cause, found.line) == (row["cause"], len(lines))


@pytest.mark.parametrize(
    "message",
    [
        "torch.OutOfMemoryError: CUDA out of memory.",
        "RuntimeError: GET was unable to find an engine to execute this computation",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED",
        "CUDA error: no kernel image is available for execution on the device",
        "torch._subclasses.functional_tensor.FunctionalTensor",
    ],
)
def test_messages_of_many_causes_need_fp8_near_them(message: str) -> None:
    assert causes(["  File model.py, in forward\n", message]) == []


def test_a_cause_is_told_once() -> None:
    message = "RuntimeError: Rowwise scaling is not currently supported on your device\n"
    assert [cause.line for cause in causes([message] * 8)] == [1]


def test_only_a_run_that_failed_has_notes(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("x\nValueError: FP8 + Tensor Parallelism is not yet supported\n")
    assert failure_notes(tmp_path, 0) == ()
    assert failure_notes(tmp_path / "gone", 1) == ()
    (note,) = failure_notes(tmp_path, 1)
    assert note.startswith("the training failed, log.txt line 2: mixed_precision")
    assert note.endswith("(doctor: fp8-with-tensor-parallel)")
