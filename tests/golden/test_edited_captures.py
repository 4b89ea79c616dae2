"""Edited captures whose right verdict is certain, and reports that agree with theirs."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fp8verify import Report, inspect
from fp8verify.terms import Precision, Severity, Verdict
from tests.captures import ROOT
from tests.golden.edits import LAUNCHES, Capture, Event
from tests.hand_built import codes

CLAIM = "Applied Float8 training: recipe=tensorwise\n"
FAILING = {Verdict.INACTIVE: 1, Verdict.CONTRADICTED: 1, Verdict.EMULATED: 1}
EXIT_CODES = {Verdict.ACTIVE: 0, Verdict.PARTIAL: 0, Verdict.INCONCLUSIVE: 3, **FAILING}
Edit = Callable[[], Capture]


def fp8() -> Capture:
    return Capture("fp8_compiled")


def bf16() -> Capture:
    return Capture("bf16_compiled")


# -- rules ----------------------------------------------------------------------------------------


def some_in_bf16(chosen: Callable[[Capture, Event], bool]) -> Capture:
    capture = fp8()
    return capture.in_bf16(
        [kernel for kernel in capture.low if chosen(capture, kernel)]
    )


def is_forward(_: Capture, kernel: Event) -> bool:
    return "_qqtst_" in kernel["name"]


def is_wgrad(capture: Capture, kernel: Event) -> bool:
    """Whether a GEMM of the backward pass has other rows than the 8192 tokens: an output's."""
    (op,) = capture.operators([kernel])
    return not is_forward(capture, kernel) and op["args"]["Input Dims"][0][0] != 8192


def in_step(number: int) -> Callable[[Capture, Event], bool]:
    return lambda capture, kernel: capture.step_of(kernel) == number


def half_in_bf16_and_untimed(remainder: int) -> Capture:
    """Put every second GEMM in BF16, and give it or the others no possible time."""
    capture = fp8()
    gemms = capture.low
    for kernel in gemms[remainder::2]:
        kernel["dur"] = -kernel["dur"]
    return capture.in_bf16(gemms[::2])


def untimed(capture: Capture) -> Capture:
    for kernel in capture.of("kernel"):
        kernel["dur"] = 0
    return capture


def casts_called(name: str, *, op: str | None = None, recorded: bool = True) -> Capture:
    """Call kernels of a BF16 training that multiply nothing like FP8 GEMMs."""
    capture = bf16()
    casts = [
        kernel
        for kernel in capture.of("kernel")
        if kernel["name"].startswith("triton_poi")
    ]
    if op is not None:
        capture.launched_by(casts, op)
    if not recorded:
        numbers = {kernel["args"]["External id"] for kernel in casts}
        capture.drop(
            lambda e: (
                e.get("cat") == "cpu_op" and e["args"].get("External id") in numbers
            )
        )
    return capture.rename(casts, name)


def cut_before_the_backward_pass() -> Capture:
    """End in the first step, between the loss's gradient and the first GEMM of a backward pass."""
    capture = fp8()
    first = next(kernel for kernel in capture.low if not is_forward(capture, kernel))
    launches = {
        event["args"]["correlation"]: event["ts"] for event in capture.of(*LAUNCHES)
    }
    end = launches[first["args"]["correlation"]]
    late = {number for number, start in launches.items() if start >= end}
    return capture.drop(
        lambda e: (
            (e.get("cat") in ("cpu_op", *LAUNCHES) and e["ts"] >= end)
            or (e.get("cat") in ("fwdbwd", "gpu_memset", "gpu_memcpy"))
            or (e.get("cat") == "kernel" and e["args"]["correlation"] in late)
        )
    )


def gemms_called(name: str, capture: Capture, op: str | None = None) -> Capture:
    if op is not None:
        capture.launched_by(capture.gemms, op)
    return capture.rename(capture.gemms, name)


def opaque_share(share: float) -> Capture:
    """Let kernels that nobody knows have taken a share of the time of a BF16 training's GEMMs."""
    capture = bf16()
    total, found = sum(kernel["dur"] for kernel in capture.gemms), list[Event]()
    for kernel in sorted(capture.gemms, key=lambda kernel: kernel["dur"]):
        if sum(known["dur"] for known in found) + kernel["dur"] <= share * total:
            found.append(kernel)
    return capture.launched_by(found, "acme::run").rename(found, "acme_kernel_v3")


def shuffled(*beginnings: str) -> Capture:
    """Exchange names among kernels: all of them, or those whose names begin so."""
    capture = fp8()
    kernels = [
        k for k in capture.of("kernel") if k["name"].startswith(beginnings or "")
    ]
    names = [kernel["name"] for kernel in kernels]
    random.Random(1).shuffle(names)
    for kernel, name in zip(kernels, names, strict=True):
        kernel["name"] = name
    return capture


def every_third() -> Callable[[Capture, Event], bool]:
    """Choose every third layer of one capture, which has three steps; gradients come in pairs."""
    layers = dict[int, int]()

    def chosen(capture: Capture, kernel: Event) -> bool:
        if not layers:
            body = [k for k in capture.low if not _is_head(capture, k)]
            count = len(body) // 9
            order = [*range(count), *(n // 2 for n in reversed(range(2 * count)))] * 3
            layers.update((id(k), n) for k, n in zip(body, order, strict=True))
        return layers.get(id(kernel), -1) % 3 == 0

    return chosen


def _is_head(capture: Capture, kernel: Event) -> bool:
    """Whether a GEMM is of the one layer of its size."""
    (op,) = capture.operators([kernel])
    return any(32000 in dims for dims in op["args"]["Input Dims"])


def attention_called(name: str) -> Capture:
    capture = bf16()
    kernels = [
        k for k in capture.of("kernel") if k["name"].startswith("cudnn_generated")
    ]
    return capture.rename(kernels, name)


def in_int8() -> Capture:
    capture = bf16()
    types = ("signed char", "signed char")
    return capture.launched_by(capture.gemms, "aten::_int_mm", *types).rename(
        capture.gemms, INT8
    )


INT8 = "cutlass_80_tensorop_i16832gemm_s8_128x256_128x3_tn_align16"
SM90 = "nvjet_sm90_qqtst_256x128_128x4_1x2_h_bz_coopA_TNT"
SM89 = "sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x64_stage4_execute_kernel__5x_cublas"
SM100 = "nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT"
TENSILE = "Cijk_Alik_Bljk_F8BS_BH_Bias_HA_S_SAB_SAV_UserArgs_MT256x256x128_MI16x16x1_SN_ISA942"


def on_gpu(gpu: str, major: int, minor: int, name: str = SM90) -> Capture:
    return gemms_called(name, fp8()).on(gpu, major, minor)


RULES: dict[str, tuple[Edit, str, str | None]] = {
    # parts of a training in BF16
    "a step in the middle": (lambda: some_in_bf16(in_step(1)), "PARTIAL", "step-without-fp8"),
    "the forward pass": (lambda: some_in_bf16(is_forward), "PARTIAL", "leg-not-fp8"),
    "wgrad": (lambda: some_in_bf16(is_wgrad), "PARTIAL", "leg-not-fp8"),
    "wgrad, and no shapes": (
        lambda: some_in_bf16(is_wgrad).without_shapes(), "PARTIAL", "leg-not-fp8"),
    "wgrad, and no operators": (
        lambda: some_in_bf16(is_wgrad).without_operators(), "INCONCLUSIVE", "no-operators"),
    "no shapes at all": (lambda: fp8().without_shapes(), "ACTIVE", None),
    "no operators at all": (lambda: fp8().without_operators(), "ACTIVE", None),
    # what was recorded
    "ends before the backward pass": (cut_before_the_backward_pass, "INCONCLUSIVE", "no-backward"),
    "FP8, then BF16, in one file": (lambda: fp8().then(bf16()), "PARTIAL", "step-without-fp8"),
    "the times of the BF16 half are lost": (
        lambda: half_in_bf16_and_untimed(0), "INCONCLUSIVE", None),
    "the times of the FP8 half are lost": (
        lambda: half_in_bf16_and_untimed(1), "INCONCLUSIVE", None),
    "no times in BF16": (lambda: untimed(bf16()), "INACTIVE", None),
    # names
    "names cut at 20 characters": (lambda: gemms_called(SM90[:20], fp8()), "ACTIVE", None),
    "names of nothing": (lambda: gemms_called("k1", fp8()), "ACTIVE", None),
    "names of nothing under a library": (
        lambda: gemms_called("k1", fp8(), "acme::run"), "INCONCLUSIVE", "opaque-kernels"),
    "FP8 names under BF16 operators": (
        lambda: gemms_called(SM90, bf16()), "INCONCLUSIVE", "name-op-conflict"),
    "BF16 names under FP8 operators": (lambda: gemms_called(SM90.replace("qqtst", "tst"), fp8()),
        "INCONCLUSIVE", "name-op-conflict"),
    "an emulation that says so": (
        lambda: gemms_called("fp8_gemm_emulated", fp8(), "acme::run"), "INCONCLUSIVE", None),
    "4% unknown": (lambda: opaque_share(0.04), "INACTIVE", "opaque-kernels"),
    "30% unknown": (lambda: opaque_share(0.3), "INCONCLUSIVE", "opaque-kernels"),
    "casts called fp8_gemm": (lambda: casts_called("fp8_gemm"), "INCONCLUSIVE", None),
    "casts called fp8_gemm_quantize": (
        lambda: casts_called("fp8_gemm_quantize_kernel", recorded=False), "INCONCLUSIVE", None),
    "all names exchanged": (shuffled, "INCONCLUSIVE", "name-op-conflict"),
    "names of casts exchanged": (lambda: shuffled("triton"), "ACTIVE", None),
    "a third in BF16": (lambda: some_in_bf16(every_third()), "ACTIVE", None),
    "FP8 attention alone": (
        lambda: attention_called("void flash::FlashAttnFwdSm90<cutlass::float_e4m3_t>"),
        "INACTIVE", None,
    ),
    "INT8": (in_int8, "INACTIVE", None),
    "one GEMM in FP8": (lambda: (lambda c: c.in_fp8(c.gemms[:1]))(bf16()), "PARTIAL", None),
    "products of a library that says FP8": (
        lambda: gemms_called("k1", bf16(), "acme::fp8_linear"), "INCONCLUSIVE", "opaque-kernels"),
    # hardware
    "Hopper's kernels on an A100": (
        lambda: on_gpu("NVIDIA A100-SXM4-80GB", 8, 0), "INCONCLUSIVE", "no-fp8-units"),
    "Hopper's kernels on a B200": (
        lambda: on_gpu("NVIDIA B200", 10, 0), "INCONCLUSIVE", "no-fp8-units"),
    "cuBLAS on an MI300X": (lambda: on_gpu("AMD Instinct MI300X", 9, 4).without_operators(),
        "INCONCLUSIVE", "no-fp8-units"),
    "hipBLASLt on an H100": (
        lambda: on_gpu("NVIDIA H100 80GB HBM3", 9, 0, TENSILE), "INCONCLUSIVE", "no-fp8-units"),
    "Ada's kernels on an L40S": (lambda: on_gpu("NVIDIA L40S", 8, 9, SM89), "ACTIVE", None),
    "Blackwell's kernels on a B200": (lambda: on_gpu("NVIDIA B200", 10, 0, SM100), "ACTIVE", None),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_the_verdict_is_that_of_the_edit(rule: str, tmp_path: Path) -> None:
    edit, verdict, code = RULES[rule]
    report = inspect(edit().write(tmp_path / "trace.json"))
    told = f"{rule}: {report.verdict.value}, {report.reason}; {sorted(codes(report))}"
    assert report.verdict == verdict, told
    assert code is None or code in codes(report), told
    assert list(contradictions(report)) == []


def with_census(chosen: Callable[[Capture, Event], bool], folder: Path) -> Path:
    """Write an edited capture with its module list, by which every linear layer was converted."""
    (folder / "rank0.json.gz").write_bytes(gzip.compress(json.dumps(
        some_in_bf16(chosen).document).encode()))  # fmt: skip
    shutil.copy(ROOT / "fp8_compiled" / "rank0.meta.json", folder)
    return folder


@pytest.mark.parametrize(
    ("chosen", "verdict"), [(every_third(), "PARTIAL"), (lambda *_: False, "ACTIVE")]
)
def test_converted_layers_of_which_a_third_ran_in_bf16_are_a_shortfall(
    chosen: Callable[[Capture, Event], bool], verdict: str, tmp_path: Path
) -> None:
    report = inspect(with_census(chosen, tmp_path))
    assert report.verdict == verdict, report.reason
    assert ("converted layers ran in BF16 (" in report.reason) is (verdict == "PARTIAL")


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        (
            "FP8 training enabled (tensorwise scaling) - converted 15/15 linear layers",
            "PARTIAL",
        ),
        (
            "FP8 training enabled (tensorwise scaling) - converted 10/15 linear layers",
            "ACTIVE",
        ),
        ("FP8 training enabled", "ACTIVE"),
    ],
)
def test_the_layers_that_a_log_counts_are_held_against_the_gemms(
    line: str, verdict: str, tmp_path: Path
) -> None:
    (tmp_path / "train.txt").write_text(line + "\n")
    trace = some_in_bf16(every_third()).write(tmp_path / "trace.json")
    assert inspect(trace, log=tmp_path / "train.txt").verdict == verdict


@pytest.mark.parametrize("other", range(2))
def test_one_rank_of_eight_that_differs_is_found(other: int, tmp_path: Path) -> None:
    kinds = {True: bf16(), False: fp8()}
    for rank in range(8):
        capture = kinds[(rank == 5) is bool(other)]
        capture.as_rank(rank, 8).write(tmp_path / f"rank{rank}.json")
    report = inspect(tmp_path)
    assert (report.verdict, report.exit_code) == ("PARTIAL", 1)
    assert "rank-without-fp8" in {found.code for found in report.findings}
    assert list(contradictions(report)) == []


@pytest.mark.parametrize(
    ("name", "kept", "verdict"),
    [
        ("fp8_one_micro_batch_bf16", 0.82, "INCONCLUSIVE"),
        ("fp8_one_micro_batch_bf16", 0.96, "PARTIAL"),
        ("fp8_one_step_bf16", 0.8, "INCONCLUSIVE"),
        ("fp8_one_step_bf16", 0.96, "PARTIAL"),
        ("fp8_te_modules_delayed", 0.89, "INCONCLUSIVE"),
        ("fp8_te_modules_delayed", 0.96, "ACTIVE"),
        # A head in BF16 is a larger part of the forward pass than of the run.
        ("fsdp_fp8_all_gather", 0.8, "INCONCLUSIVE"),
        ("fsdp_fp8_all_gather", 1.0, "ACTIVE"),
    ],
)
def test_kernels_that_were_cut_away_acquit_and_accuse_nobody(
    name: str, kept: float, verdict: str, tmp_path: Path
) -> None:
    """The forward pass is the first in the file: without gradients it seems to train nothing."""
    text = json.dumps(Capture(name).document)
    (tmp_path / "trace.json").write_text(text[: int(kept * len(text))])
    report = inspect(tmp_path / "trace.json")
    assert report.verdict == verdict, report.reason
    assert list(contradictions(report)) == []


def test_a_rate_that_bf16_cannot_reach_is_no_proof_beside_bf16(tmp_path: Path) -> None:
    """The times are those of FP8: that the GEMMs are BF16 by name makes them no proof of FP8."""
    assert "faster-than-bf16" in codes(inspect(fp8().write(tmp_path / "before.json")))
    report = inspect(some_in_bf16(lambda *_: True).write(tmp_path / "after.json"))
    assert report.gemm.kernels["fp8"] == 0
    assert "faster-than-bf16" not in codes(report)


@pytest.mark.parametrize(
    ("log", "verdict"),
    [
        (CLAIM, "CONTRADICTED"),
        ("[eval] " + CLAIM, "INACTIVE"),
        ("FP8 training enabled in config, but no FP8-capable GPU found\n", "INACTIVE"),
        ("FP8 training enabled from step 500\n", "INACTIVE"),
        ("Converted 0 of 48 linear layers to Float8Linear\n", "INACTIVE"),
        ("Converted 47 of 48 linear layers to Float8Linear\n", "CONTRADICTED"),
    ],
)
def test_a_log_contradicts_only_what_it_claims(
    log: str, verdict: str, tmp_path: Path
) -> None:
    (tmp_path / "train.txt").write_text(log)
    trace = bf16().write(tmp_path / "trace.json")
    report = inspect(trace, log=tmp_path / "train.txt")
    assert report.verdict == verdict
    assert list(contradictions(report)) == []


def contradictions(report: Report) -> list[str]:
    """Return what in a report speaks against its verdict."""
    errors = {
        found.code for found in report.findings if found.severity is Severity.ERROR
    }
    decided = report.verdict in (Verdict.ACTIVE, Verdict.PARTIAL)
    found = {
        "its exit code": report.exit_code != (EXIT_CODES[report.verdict] or int(bool(errors))),
        "an error": errors and report.verdict in (Verdict.ACTIVE, Verdict.INCONCLUSIVE),
        "its GEMMs": len(report.ranks) == 1 and report.verdict in FAILING and _low(report),
        "no GEMM in FP8": decided and not _low(report),
        "its ranks": _total(report) != pytest.approx(
            sum(sum(rank.gemm.time_us.values()) for rank in report.ranks)
        ),
        "its legs": _total(report) != pytest.approx(
            sum(sum(leg.time_us.values()) for leg in report.legs if leg.leg != "optimizer")
        ),
        "a proof of FP8": report.verdict in FAILING and "faster-than-bf16" in codes(report),
        "its JSON": json.loads(report.to_json())["verdict"] != report.verdict.value,
    }  # fmt: skip
    return [what for what, holds in found.items() if holds]


def _low(report: Report) -> int:
    return sum(
        count for name, count in report.gemm.kernels.items() if Precision(name).is_low
    )


def _total(report: Report) -> float:
    return sum(report.gemm.time_us.values())
