"""`fp8verify prove` with an ncu that writes what Nsight Compute writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.command_line import fp8verify
from tests.fake_ncu import FP8, install, log_of

FLOPS = 2 * 4096 * 1024 * 2048
RANGE = (
    "aten::_scaled_mm, seq = 3, op_id = 9, sizes = [[4096, 2048], [2048, 1024], [], []]"
)
RIGHT = log_of(
    ("nvjet_sm90_qqtst_128x128_128x6_2x1_v_bz_TNT", FLOPS, 0, RANGE),
    ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNT", 0, FLOPS, ""),
    ("void at::native::vectorized_elementwise_kernel<4, Copy>(int)", 0, 0, ""),
)
PROGRAM = (sys.executable, "-c", "print('step 1 loss 2.5')")


def test_counters_that_agree_end_with_0(tmp_path: Path) -> None:
    done = fp8verify("prove", "--launches", "5", "--skip", "2", "--", *PROGRAM,
                     **install(tmp_path, RIGHT))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "agree with the class of 2 of 2 GEMM kernels" in done.stdout
    assert f"{FLOPS:,}" in done.stdout
    assert "elementwise" not in done.stdout
    assert "step 1 loss 2.5" in done.stderr
    options = (tmp_path / "options").read_text().splitlines()
    assert options[options.index("--launch-count") + 1] == "5"
    assert options[options.index("--launch-skip") + 1] == "2"
    assert options[options.index("--replay-mode") + 1] == "kernel"
    measured = options[options.index("--metrics") + 1].split(",")
    assert f"{FP8}.sum" in measured
    assert not any("realtime" in name or "cycles" in name for name in measured)


def test_kernels_that_multiplied_otherwise_end_with_1(tmp_path: Path) -> None:
    log = log_of(("nvjet_sm90_qqtst_128x128_128x6_2x1_v_bz_TNT", 0, FLOPS, RANGE),
                 ("main_kernel", FLOPS, 0, ""))  # fmt: skip
    done = fp8verify("prove", "--kernels", "", "--format", "json", "-o", tmp_path / "proof.json",
                     "--", *PROGRAM, **install(tmp_path, log))  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    report = json.loads((tmp_path / "proof.json").read_text())
    assert (report["gpu"], report["compute_capability"]) == ("NVIDIA H200", "9.0")
    row, hidden = report["kernels"]
    assert (row["agreement"], row["precision"], row["flops"]) == (
        "differs",
        "fp8",
        FLOPS,
    )
    assert row["operations"]["bf16"] == FLOPS
    assert (hidden["agreement"], hidden["kernel"]) == ("missed", "main_kernel")
    assert "--kernel-name" not in (tmp_path / "options").read_text().splitlines()


@pytest.mark.parametrize(
    ("log", "machine", "said"),
    [
        (
            (
                "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA "
                "GPU Performance Counters on the target device 0.\n"
            ),
            {},
            "NVreg_RestrictProfilingToAdminUsers=0",
        ),
        ("==ERROR== Failed to find metric xyz\n", {}, "Failed to find metric xyz"),
        ("==WARNING== No kernels were profiled.\n", {}, "ended with exit code 0"),
        (
            RIGHT,
            {"capability": "7.0", "name": "Tesla V100-SXM2-16GB"},
            "9.0 (H100, H200",
        ),
    ],
)
def test_what_cannot_be_counted_is_told_in_two_lines(
    tmp_path: Path, log: str, machine: dict[str, str], said: str
) -> None:
    done = fp8verify("prove", "--", *PROGRAM, **install(tmp_path, log, **machine))
    assert done.returncode == 3
    told = [
        line
        for line in done.stderr.splitlines()
        if line.startswith(("error:", "hint:"))
    ]
    assert len(told) == 2
    assert said in "".join(told)


def test_without_ncu_or_an_nvidia_gpu_the_error_says_what_to_use(
    tmp_path: Path,
) -> None:
    done = fp8verify("prove", "--", *PROGRAM, PATH=str(tmp_path))
    assert done.returncode == 3
    assert "ncu (NVIDIA Nsight Compute) is not on PATH" in done.stderr
    environment = install(tmp_path, RIGHT)
    (tmp_path / "bin" / "nvidia-smi").unlink()
    (tmp_path / "bin" / "rocm-smi").symlink_to("/bin/true")
    done = fp8verify("prove", "--", *PROGRAM, **environment)
    assert done.returncode == 3
    assert "rocprofv3 --pmc SQ_INSTS_VALU_MFMA_MOPS_F8" in done.stderr
