"""What the doctor adds to the report of a run in which no FP8 ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8verify import Report, inspect
from fp8verify.preflight import explain_missing
from tests import doctor_files as files
from tests.captures import ROOT
from tests.doctor_files import write
from tests.hand_built import BF16, BF16_KERNEL, TraceBuilder


@pytest.fixture
def silent_bf16() -> Report:
    return inspect(ROOT / "bf16_compiled")


def added(report: Report, *command: str) -> dict[str, str]:
    old = set(report.findings)
    return {
        f.code: f.message
        for f in explain_missing(report, command).findings
        if f not in old
    }


SILENT_TRAP = files.TORCHTITAN_TOML.replace('converters = ["float8"]', "")
FP8_MODEL = (
    'model = from_pretrained("Qwen/Qwen3-4B-FP8")\nTrainer(model=model).train()\n'
)


@pytest.mark.parametrize(
    ("name", "text", "codes"),
    [
        ("7b.toml", files.KEMPNERFORGE, ["fp8-asked"]),
        ("t.toml", SILENT_TRAP, ["config-section-inert"]),
        ("7b.toml", files.KEMPNERFORGE.replace('"fp8"', '"bf16"'), []),
        # What a source mentions explains nothing where the modules are known.
        ("train.py", FP8_MODEL, []),
    ],
)
def test_what_a_file_of_the_command_explains(
    silent_bf16: Report, tmp_path: Path, name: str, text: str, codes: list[str]
) -> None:
    config = write(tmp_path, name, text)
    found = added(silent_bf16, "torchrun", "train.py", config)
    assert list(found) == codes
    asked = f"{config} requests FP8, and no GEMM ran in it"
    assert found.get("fp8-asked", asked) == asked


def test_a_run_that_asks_for_nothing_gets_nothing(silent_bf16: Report) -> None:
    assert (
        added(silent_bf16, "python", str(ROOT.parent / "examples" / "train_gpt.py"))
        == {}
    )
    assert added(silent_bf16, "./run_train.sh", "--dump_folder", "out/float8") == {}


def test_a_gpu_without_fp8_units_explains_it(tmp_path: Path) -> None:
    a100 = TraceBuilder(gpu="NVIDIA A100-SXM4-80GB", capability=(8, 0))
    report = inspect(
        a100.launch(BF16_KERNEL, types=(BF16, BF16)).write(tmp_path / "t.json")
    )
    found = added(report, "python", write(tmp_path, "7b.toml", files.KEMPNERFORGE))
    assert "no-fp8-units" in found
    assert "NVIDIA A100-SXM4-80GB (8.0)" in found["no-fp8-units"]


def test_a_run_in_fp8_is_left_alone(tmp_path: Path) -> None:
    report = inspect(ROOT / "fp8_compiled")
    config = write(tmp_path, "7b.toml", files.KEMPNERFORGE)
    assert explain_missing(report, ["python", config]) is report
