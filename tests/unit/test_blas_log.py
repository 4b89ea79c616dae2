"""What BLAS libraries log: read alone, held against a trace, switched on for a window."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fp8verify import Report, Verdict, inspect
from fp8verify.errors import InputError
from fp8verify.trace import read_trace
from tests.attached import library_that_logs
from tests.hand_built import BF16_KERNEL, FP8, FP8_KERNEL, TraceBuilder, present

E4M3, E5M2, BF16 = "R_8F_E4M3", "R_8F_E5M2", "R_16BF"
M, N, K = 4096, 1024, 2048
LAYER = ((E4M3, E4M3, M, N, K), (E4M3, E5M2, M, K, N), (E4M3, E5M2, N, K, M))
HEAD = "[2026-10-01 10:00:00][cublasLt][42][Trace][cublasLtMatmul] "


def line(
    a: str, b: str, m: int, n: int, k: int, *, thread: int = 42, more: str = ""
) -> str:
    """Return what cuBLASLt logs of a row-major product (m, k) by (k, n), A the weight's side."""
    head = HEAD.replace("[42]", f"[{thread}]")
    return (
        f"{head}A=0X7F00 Adesc=[type={a} rows={k} cols={n} ld={k}] "
        f"B=0X7F01 Bdesc=[type={b} rows={k} cols={m} ld={k}] C=0X0 Cdesc=[type=R_16BF rows={n} "
        f"cols={m} ld={n}] D=0X7F02 Ddesc=[type=R_16BF rows={n} cols={m} ld={n}] computeDesc=["
        f"computeType=COMPUTE_32F scaleType=R_32F transa=OP_T aScalePointer=0x{id(head):x}{more}] "
        "algo=[algoId=66 tile=MATMUL_TILE_128x128 stages=MATMUL_STAGES_128xAUTO]\n"
    )


def written(folder: Path, *lines: str) -> Path:
    path = folder / "blas.log"
    path.write_text("".join(lines))
    return path


def flops(found: Report) -> dict[str, float]:
    return {name: flops for name, flops in (found.gemm.flops or {}).items() if flops}


def test_a_log_gives_flops_by_type_and_no_verdict_on_a_run(tmp_path: Path) -> None:
    found = inspect(
        written(tmp_path, line(E4M3, E4M3, M, N, K), line(BF16, BF16, M, N, 3 * K))
    )
    assert flops(found) == {"fp8": 2 * M * N * K, "bf16": 6 * M * N * K}
    assert (found.verdict, found.measure) == (Verdict.INCONCLUSIVE, "flops")
    assert "25.0% of the logged FLOPs" in found.reason
    log = tmp_path / "log.txt"
    log.write_text("Float8 training active with recipe tensorwise\n")
    assert inspect(written(tmp_path, FP32), log=log).verdict is Verdict.INCONCLUSIVE


def test_repeated_products_are_steps_and_their_shapes_legs(tmp_path: Path) -> None:
    step = [
        line(*product, thread=42 + bool(place)) for place, product in enumerate(LAYER)
    ]
    found = inspect(written(tmp_path, *step * 4))
    assert (found.verdict, len(found.ranks[0].steps)) == (Verdict.ACTIVE, 4)
    assert {leg.leg.value: leg.kernels for leg in found.legs} == {
        "fprop": {"fp8": 4}, "dgrad": {"fp8": 4}, "wgrad": {"fp8": 4}
    }  # fmt: skip
    page = found.to_html()
    assert "GEMM FLOPs by leg" in page
    assert " TFLOP" in page
    assert not re.search(
        r"GPU time|GEMM time|\bms\b", re.sub(r"(?s)<(script|style).*?</\1>", "", page)
    )
    assert (
        not inspect(written(tmp_path, *step * 4, line(BF16, BF16, 8, 8, 8)))
        .ranks[0]
        .steps
    )


FP32 = line("R_32F", "R_32F", M, N, K)


def test_a_cut_line_is_told_and_a_log_without_types_refused(tmp_path: Path) -> None:
    whole = line(E4M3, E4M3, M, N, K)
    trace = read_trace(written(tmp_path, whole, whole[:300]))
    assert (len(trace.kernels), trace.health.complete) == (1, False)
    assert trace.health.notes[0] == "1 line of products cut short"
    assert read_trace(written(tmp_path, whole)).health.complete
    with pytest.raises(InputError, match="CUBLASLT_LOG_MASK=2"):
        read_trace(
            written(
                tmp_path, "[2026-10-01 10:00:00][cublasLt][42][Api][cublasLtCtxInit]\n"
            )
        )


# ---- beside a trace


def joined(folder: Path, kernels: dict[str, tuple[str, ...]], *lines: str) -> Report:
    trace = TraceBuilder()
    for kernel, types in kernels.items():
        trace.launch(kernel, "aten::_scaled_mm", types=types, dims=((M, K), (K, N)))
    return inspect([trace.write(folder / "rank0.json"), written(folder, *lines)])


NEW = "nvjet_sm130_zzfoo_128x128_x"


@pytest.mark.parametrize(
    "text",
    [
        line(E4M3, E4M3, 10**10 - 1, 10**10 - 1, 10**10 - 1),
        f"hipblaslt-bench -m {10**10 - 1} -n {10**10 - 1} -k 9 --a_type f8_r --b_type f8_r\n",
    ],
)
def test_impossible_sizes_are_damage(text: str, tmp_path: Path) -> None:
    health = read_trace(written(tmp_path, line(E4M3, E4M3, M, N, K), text)).health
    assert (health.kernels, health.truncated) == (1, True)


def test_the_library_vouches_for_its_kernels_and_settles_unknown_names(
    tmp_path: Path,
) -> None:
    cutlass = "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<X> >(X)"
    kernels = {FP8_KERNEL: (FP8, FP8), cutlass: (FP8, FP8), NEW: ()}
    found = joined(
        tmp_path, kernels, line(E4M3, E4M3, M, N, K), line(E4M3, E4M3, M, N, K)
    )
    log = present(found.ranks[0].library_log)
    assert (log.products, log.gemms, log.vouched, log.settled) == (2, 3, 2, 1)
    assert any("agrees on 2 of 3" in note for note in found.notes)
    assert {row.decided_by for row in found.ranks[0].kernels if row.name == NEW} == {
        "library"
    }


def test_the_library_disputes_a_name(tmp_path: Path) -> None:
    found = joined(
        tmp_path,
        {BF16_KERNEL: ()},
        line(E4M3, E4M3, M, N, K).replace("128x128 ", "256x128 "),
    )
    assert found.gemm.kernels["unknown"] == 1
    assert [one.code for one in found.findings if one.code == "name-op-conflict"]


def test_a_log_of_another_window_is_not_used(tmp_path: Path) -> None:
    same = line(E4M3, E4M3, M, N, K).replace("128x128 ", "128x256 ")
    of_types, of_tile = same.replace(E4M3, BF16), same.replace("128x256 ", "128x128 ")
    of_size = line(E4M3, E4M3, M, N, 2 * K).replace("128x128 ", "128x256 ")
    of_sides = line(E4M3, E4M3, 2 * M, N // 2, K).replace("128x128 ", "128x256 ")
    for text in (same, same * 2, of_types, of_tile, of_size, of_sides):
        found = joined(tmp_path, {FP8_KERNEL: (FP8, FP8)}, text)
        assert found.gemm.kernels["fp8"] == 1
        assert any("was not used" in note for note in found.notes) is (text is not same)


# ---- in a window


def test_the_agent_logs_windows_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="needs torch, from the train extra")
    if torch.version.cuda is not None:
        pytest.skip("needs torch for CPUs: that for CUDA loads a cuBLASLt of its own")
    from fp8verify.agent.instruments import BlasLog, InstrumentContext

    notes: list[str] = []
    files = SimpleNamespace(folder=tmp_path, stem="rank0")
    record = SimpleNamespace(note=notes.append, files=files)
    log: Any = BlasLog(InstrumentContext({"blas_log": True}, list, lambda: record))
    log.begin()
    assert (log.end(), notes.pop().split(":")[0]) == (
        {"blas_log": None},
        "no log of cuBLASLt",
    )

    library = ctypes.CDLL(str(library_that_logs(tmp_path)))
    library.multiply()
    log.begin()
    library.multiply()
    assert log.end() == {"blas_log": "rank0.w2.cublaslt.log"}
    assert library.multiply() == 0
    assert (tmp_path / "rank0.w2.cublaslt.log").read_text() == "product\n"

    monkeypatch.setenv("CUBLASLT_LOG_MASK", "2")
    log.begin()
    assert library.multiply() == 0
    assert log.end() == {"blas_log": None}
    assert "CUBLASLT_LOG_MASK is set" in notes[-1]
