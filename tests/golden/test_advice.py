"""Every piece of advice on every capture, against the facts of the run that it needs.

The facts are read here from the report, and not by the code that gives the advice.
"""

from __future__ import annotations

import pytest

from fp8verify import Report
from fp8verify.report.payoff import payoff
from fp8verify.terms import Leg, Role
from fp8verify.verdict.findings_table import findings_table
from tests.captures import CAPTURES, report_of


def holds(report: Report) -> dict[str, bool]:
    """What the report shows of the facts that advice depends on."""
    ranks = report.ranks
    casts = [row for rank in ranks if rank.tax for row in rank.tax.rows]
    legs = {row.leg for rank in ranks for row in (*rank.legs, *casts)}
    kernels = [row for rank in ranks for row in rank.kernels]
    recipes = [
        recipe for rank in ranks if rank.modules for recipe in rank.modules.recipes
    ]
    return {
        "graphs": any(rank.health.kernels_in_graphs for rank in ranks),
        "compiled": any(row.name.startswith("triton_") for row in kernels),
        "recomputes": Leg.RECOMPUTE in legs,
        "torchao": any("fprop=" in recipe for recipe in recipes),
        "transformer-engine": any("transformer_engine" in row.name for row in kernels),
        "megatron": any(claim.framework == "Megatron-LM" for claim in report.claims),
        "one-size": len(_forward_sizes(report)) == 1,
        "fp4": "NVFP4" in report.reason,
        "attention": any(row.role is Role.ATTENTION for row in kernels)
        or bool(report.attention_gemm.launches),
        "micro-batches": any("micro-batch" in one.message for one in report.findings),
        "log": bool(report.logs),
    }


def _forward_sizes(report: Report) -> set[tuple[int, ...]]:
    sizes = set()
    for rank in report.ranks:
        for row in rank.kernels:
            if row.leg is Leg.FPROP and row.precision.is_low and row.shape is not None:
                sizes.add(row.shape[2:])
    return sizes


# What each word of advice claims of the run that gets it.
CLAIMS = {
    "reduce-overhead": ("transformer-engine", False),
    "make_graphed_callables": ("transformer-engine", True),
    "--cuda-graph-impl": ("megatron", True),
    "between the CUDA graphs": ("graphs", True),
    "checkpointing": ("recomputes", True),
    "ScalingType.DISABLED": ("torchao", True),
    "rowwise_with_gw_hp": ("torchao", True),
    "Compile the model (torch.compile)": ("compiled", False),
    "part of the model is compiled": ("compiled", True),
    "All FP8 layers have one size": ("one-size", True),
    "FP4 needs compute capability": ("fp4", True),
    "scaled_dot_product_attention": ("attention", True),
    "is_first_microbatch": ("micro-batches", True),
    "filter_fqns: it has rejected": ("log", True),
}


@pytest.mark.parametrize("capture", CAPTURES)
def test_advice_names_nothing_that_the_run_is_not(capture: str) -> None:
    report = report_of(capture)
    facts = holds(report)
    for finding in report.findings:
        if finding.code == "recompute-not-fp8":
            continue
        for words, (fact, wanted) in CLAIMS.items():
            if words in finding.hint:
                assert facts[fact] is wanted, (finding.code, finding.hint)


@pytest.mark.parametrize("capture", CAPTURES)
def test_no_form_of_a_run_denies_the_speed_of_another(capture: str) -> None:
    report = report_of(capture)
    said = payoff(report)
    figures = [rank.payoff for rank in report.ranks if rank.payoff is not None]
    estimates = [one.speedup_estimate for one in figures if one.speedup_estimate]
    if said is not None and said.text.startswith(("no gain", "no estimate")):
        assert said.speedup is None
        assert not estimates or len(figures) > 1
    if said is not None and said.text.startswith("probably slower"):
        assert said.speedup is not None
        assert said.speedup < 1


def test_each_piece_of_advice_that_needs_facts_names_known_ones() -> None:
    from fp8verify.verdict.advice import Fact

    known = {fact.value for fact in Fact}
    needs = {
        need.removeprefix("not ")
        for cases in findings_table().values()
        for case in cases.values()
        for piece in case.pieces
        for need in piece.needs
    }
    assert needs
    assert needs <= known
