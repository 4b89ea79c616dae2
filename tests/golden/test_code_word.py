"""The capture whose kernels only the machine code beside it explains."""

from __future__ import annotations

import shutil
from pathlib import Path

from fp8verify import inspect
from fp8verify.terms import Verdict
from tests.captures import ROOT, report_of

NAME = "fp8_triton_code"


def test_the_kept_machine_code_decides(tmp_path: Path) -> None:
    told = report_of(NAME)
    assert told.verdict is Verdict.ACTIVE
    assert "the compiled code agrees on 24 of 24" in " ".join(told.to_text().split())

    bare = tmp_path / NAME
    shutil.copytree(ROOT / NAME, bare)
    (bare / "rank0.code.json").unlink()
    untold = inspect(bare)
    assert untold.verdict is Verdict.INCONCLUSIVE
    assert untold.exit_code == 3
    (finding,) = [one for one in untold.findings if one.code == "unknown-gemm"]
    assert "--code " in finding.hint
