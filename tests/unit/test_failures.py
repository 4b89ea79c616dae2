"""A run that failed with a known message is told its cause."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fp8verify.logs.failures import Failure, causes, failure_notes, failures


@pytest.mark.parametrize("row", failures(), ids=lambda row: row.evidence)
def test_each_message_is_told_its_own_cause_alone_too(row: Failure) -> None:
    for message in row.seen:  # ⏎ ends a line of a traceback
        *before, last = message.split(" ⏎ ")
        (found,) = causes(["step 1 | loss 2.0\n", *(f"{line}\n" for line in before), f"{last}\n"])
        assert (found.failure, found.line) == (row, len(before) + 2)
        assert [cause.failure for cause in causes([last], alone=True)] == [row]
    assert row.remedy.endswith(".")
    assert re.search(r"\w+#\d+| [0-9a-f]{7,} |torch[ /]|torchao |kempnerforge|README", row.evidence)


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
    message = "RuntimeError: Rowwise scaling is not currently supported on your device\n"
    assert [cause.line for cause in causes([message] * 8)] == [1]


def test_only_a_run_that_failed_has_notes(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("x\nValueError: FP8 + Tensor Parallelism is not yet supported\n")
    assert failure_notes([log], 0) == ()
    assert failure_notes([tmp_path / "gone"], 1) == ()
    (note,) = failure_notes([log], 1)
    assert note.startswith(
        "the run failed, log.txt line 2; a known cause: KempnerForge does not support"
    )
    assert note.endswith("(doctor: fp8-with-tensor-parallel)")
