"""Every capture that ships: its verdict, exit code, GEMM µs and counts, exactly."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from fp8verify import Policy, Report
from tests.captures import CAPTURES, ROOT, report_of
from tests.hand_built import LEGS, found, present


@pytest.fixture(scope="module", params=CAPTURES)
def case(request: pytest.FixtureRequest) -> tuple[Report, dict[str, Any]]:
    return report_of(request.param), known_of(request.param)


def known_of(name: str) -> dict[str, Any]:
    """What a file beside the capture says of it."""
    known: dict[str, Any] = json.loads((ROOT / name / "expected.json").read_text())
    return known


def test_gemm_time_and_counts_of_each_rank(case: tuple[Report, dict[str, Any]]) -> None:
    report, known = case
    found = [
        {
            "gemm_us": {name: us for name, us in rank.gemm.time_us.items() if us},
            "gemm_kernels": {name: n for name, n in rank.gemm.kernels.items() if n},
        }
        for rank in report.ranks
    ]
    assert found == [
        {key: rank[key] for key in ("gemm_us", "gemm_kernels")}
        for rank in known["ranks"]
    ]


def test_gpu_time_adds_up_to_all_kernel_time(
    case: tuple[Report, dict[str, Any]],
) -> None:
    report, known = case
    for rank, expectation in zip(report.ranks, known["ranks"], strict=True):
        assert sum(rank.gpu_time_us.values()) == pytest.approx(
            expectation["kernel_us"], abs=0.01
        )


def test_legs(case: tuple[Report, dict[str, Any]]) -> None:
    report, known = case
    if "legs" not in known:
        pytest.skip("the legs of this capture are not known by construction")
    assert {leg.leg: leg.kernels for leg in report.legs} == known["legs"]


def test_findings(case: tuple[Report, dict[str, Any]]) -> None:
    report, known = case
    codes = {finding.code for finding in report.findings}
    assert set(known["findings"]) <= codes
    if known["verdict"] in ("ACTIVE", "INACTIVE"):
        assert codes & set(known["findings"]) >= {
            f.code for f in report.findings if f.severity.value == "error"
        }


def test_the_log_of_the_library_has_each_gemm() -> None:
    (rank,) = report_of("fp8_blas_log").ranks
    lines = (ROOT / "fp8_blas_log" / "rank0.w1.cublaslt.log").read_text().splitlines()
    types = [
        tuple(re.findall(r"[AB]desc=\[type=R_8F_(E\dM\d)", line)) for line in lines
    ]
    assert Counter(types) == {("E4M3", "E4M3"): 24, ("E4M3", "E5M2"): 48}
    log = present(rank.library_log)
    assert (log.vouched, log.gemms) == (72, 72)


def test_expectations_are_those_of_the_captures() -> None:
    script = [sys.executable, "-m", "scripts.truth_of_captures", "--check"]
    done = subprocess.run(script, cwd=ROOT.parent, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_share_of_everything_is_asked_of_every_rank() -> None:
    report = report_of("fp8_rowwise_gw_hp", Policy(min_share=0.9))
    assert report.verdict == "PARTIAL"


# Of two blocks and the head of whole_models.py: 8192 tokens, 2 blocks, width 2048; the head takes 4
# tokens fewer.
HEAD, BLOCK = 8188 * 8192, 8192 * (3 * 2048 + 2048 + 2 * 4 * 2048)
OF_FLOPS = (2 * BLOCK / (HEAD + 2 * BLOCK), HEAD / (HEAD + 2 * BLOCK))


@pytest.mark.parametrize(
    ("recipe", "scaling"),
    [
        ("delayed", "delayed (margin 1, history 16, max)"),
        ("current", "current (one scale a tensor)"),
        ("block", "blocks (input 1x128, weight 128x128, gradient 1x128)"),
    ],
)
def test_the_share_of_a_head_beside_transformer_engine(
    recipe: str, scaling: str
) -> None:
    report = report_of(f"fp8_te_modules_{recipe}")
    blocks, share = OF_FLOPS
    assert report.gemm.flops_coverage == 1
    assert report.gemm.fp8_share_of_flops == pytest.approx(blocks, abs=1e-6)
    forward_alone = report_of("fp8_te_backward_bf16")
    assert forward_alone.gemm.fp8_share_of_flops == pytest.approx(blocks / 3, abs=1e-6)
    told = found(forward_alone, "leg-not-fp8")
    assert [f.message.endswith("as the recipe specifies") for f in told] == [True, True]
    (left,) = found(report, "layer-not-fp8")
    assert (
        left.message
        == f"1 linear module not converted to FP8, {share:.1%} of GEMM FLOPs: lm_head"
    )
    assert present(report.ranks[0].modules).scalings == (scaling,)


def test_a_layer_left_in_bf16_is_told_from_others_of_its_size() -> None:
    report = report_of("fp8_layers_compiled")
    named = present(report.ranks[0].named_layers)
    assert (named.source, named.step, named.gemms, named.unjoined) == ("step", 5, 45, 0)
    parts = [f"attn.{part}_proj" for part in "qkvo"]
    parts += [f"mlp.{part}_proj" for part in ("gate", "up", "down")]
    names = [
        *(f"layers.{block}.{part}" for block in range(2) for part in parts),
        "head",
    ]
    left = ("head", "layers.1.attn.k_proj")
    assert {
        row.layer: {leg.leg: leg.kernels for leg in row.legs} for row in named.rows
    } == {
        name: {leg: {"bf16" if name in left else "fp8": 1} for leg in LEGS}
        for name in names
    }
    (finding,) = found(report, "layer-not-fp8")
    assert finding.message.endswith("layers.1.attn.k_proj, head")
