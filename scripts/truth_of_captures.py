"""What each capture of traces/ must give, worked out without fp8verify: by construction.

    python -m scripts.truth_of_captures          # rewrites traces/*/expected.json
    python -m scripts.truth_of_captures --check  # names those that would change, or are missing

A workload decides which kernels are its GEMMs and in what they ran; a plain reading of the JSON
(External id to operator) or of the SQLite file (the innermost NVTX range around the
launch) adds up their time. The file of a capture then holds its
verdict and exit code, and for each rank the GEMM time in µs and the kernels of each precision.
"""

from __future__ import annotations

import gc
import gzip
import json
import re
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

ROOT = Path(__file__).parent.parent / "traces"


class Rule(NamedTuple):
    """Kernels under an operator (and of a name) that are GEMMs of one precision."""

    op: str
    precision: str
    kernel: str = r".*(nvjet|xmma_gemm|cutlass_80_simt_sgemm|splitKreduce)"


class Known(NamedTuple):
    """The truth about a capture: its verdict, GEMM rules, and findings that must appear."""

    verdict: str
    exit_code: int
    rules: tuple[Rule, ...]
    findings: tuple[str, ...] = ()
    legs: dict[str, dict[str, int]] | None = None


def _legs(
    each: int, *, fp8: str = "fp8", wgrad: str | None = None
) -> dict[str, dict[str, int]]:
    return {"fprop": {fp8: each}, "dgrad": {fp8: each}, "wgrad": {wgrad or fp8: each}}


FP8_MM = Rule("aten::_scaled_mm", "fp8")
BF16_MM = Rule("aten::(mm|addmm)", "bf16")
# 15 linears of examples/train_gpt.py; two layers of benchmarks/gpu/workloads.py; three steps.
GPT, STACK = 45, 6
# Two blocks of benchmarks/gpu/whole_models.py, of four GEMMs a leg, and a head; three steps.
TE_MODULES = Rule(r"_(Linear|LayerNormLinear|LayerNormMLP)(Backward)?", "fp8")
TE_LAYERS = "_(Linear|LayerNormLinear)(Backward)?"
TE_BY_NAME = (
    Rule(TE_LAYERS, "fp8", ".*nvjet_sm90_q"),
    Rule(TE_LAYERS, "bf16", ".*nvjet_sm90_t"),
)
ANY_GEMM = ".*(nvjet|cutlass|splitKreduce)"
TE_FORWARD = Rule("_(Linear|LayerNormLinear)", "fp8")
TE_BACKWARD_BF16 = Rule("_(Linear|LayerNormLinear)Backward", "bf16")
TE_LEGS = {leg: {"fp8": 24, "bf16": 3} for leg in ("fprop", "dgrad", "wgrad")}
# benchmarks/gpu/whole_models.py, three steps: 12 linears of the blocks and the head; of each matrix
# of the blocks five Newton-Schulz iterations of three products; in each of two blocks two products
# of attention, with two gradients each.
BLOCKS, HEAD = 3 * 12, 3
NEWTON_SCHULZ, PRODUCTS_OF_ATTENTION = 3 * 12 * 5 * 3, 3 * 2 * 2 * 3


def _both_in_each_leg(**each: int) -> dict[str, dict[str, int]]:
    return dict.fromkeys(("fprop", "dgrad", "wgrad"), each)


def _beside_head(*legs: str) -> dict[str, dict[str, int]]:
    return {
        leg: {"fp8": BLOCKS, "bf16": HEAD}
        for leg in legs or ("fprop", "dgrad", "wgrad")
    }


KNOWN: dict[str, Known] = {
    "fp8_compiled": Known("ACTIVE", 0, (FP8_MM,), legs=_legs(GPT)),
    "bf16_compiled": Known("INACTIVE", 1, (BF16_MM,), legs=_legs(GPT, fp8="bf16")),
    "bf16_filter_rejects_all": Known(
        "CONTRADICTED", 1, (BF16_MM,), ("claimed-not-active",), _legs(GPT, fp8="bf16")
    ),
    "fp8_emulated": Known("EMULATED", 1, (Rule("aten::mm", "fp32"),), ("emulated",)),
    "fp8_layers_compiled": Known(
        "ACTIVE",
        0,
        (FP8_MM, BF16_MM),
        ("layer-not-fp8",),
        {leg: {"fp8": 13, "bf16": 2} for leg in ("fprop", "dgrad", "wgrad")},
    ),
    "fp8_width4096": Known("ACTIVE", 0, (FP8_MM,), legs=_legs(5 * 15)),
    "bf16_width4096": Known("INACTIVE", 1, (BF16_MM,), legs=_legs(5 * 15, fp8="bf16")),
    "fp8_rowwise_gw_hp": Known(
        "ACTIVE", 0, (FP8_MM, BF16_MM), ("leg-not-fp8",), _legs(GPT, wgrad="bf16")
    ),
    "fp8_blockwise_cublas": Known("ACTIVE", 0, (FP8_MM,), legs=_legs(STACK)),
    "fp8_blockwise_triton": Known(
        "ACTIVE",
        0,
        (Rule(r"torchao::triton_fp8_gemm_\w+", "fp8", "triton_fp8_gemm_"),),
        legs=_legs(STACK),
    ),
    "fp8_experts": Known(
        "ACTIVE",
        0,
        (Rule("aten::_scaled_grouped_mm", "fp8", ".*device_kernel"),),
        (),
        _legs(STACK),
    ),
    "bf16_experts": Known(
        "INACTIVE",
        1,
        (Rule("aten::_grouped_mm", "bf16", ".*device_kernel"),),
        (),
        _legs(STACK, fp8="bf16"),
    ),
    "fp8_triton_template": Known(
        "ACTIVE", 0, (Rule("triton_tem_.*", "fp8", "triton_tem_"),), (), _legs(STACK)
    ),
    "fp8_accelerate": Known("ACTIVE", 0, (FP8_MM, BF16_MM), ("layer-not-fp8",)),
    "fp8_te_delayed": Known(
        "ACTIVE", 0, (Rule("_Linear(Backward)?", "fp8"),), (), _legs(30)
    ),
    "bf16_te_no_autocast": Known(
        "INACTIVE", 1, (Rule("_Linear(Backward)?", "bf16"),), (), _legs(30, fp8="bf16")
    ),
    **{
        f"fp8_te_modules_{scaling}": Known(
            "ACTIVE", 0, (TE_MODULES, BF16_MM), ("layer-not-fp8",), TE_LEGS
        )
        for scaling in ("delayed", "current", "block")
    },
    # A third of the blocks' work in FP8, less than half of all of it.
    "fp8_te_backward_bf16": Known(
        "PARTIAL",
        0,
        (TE_FORWARD, TE_BACKWARD_BF16, BF16_MM),
        ("leg-not-fp8",),
        {"fprop": {"fp8": 24, "bf16": 3}, "dgrad": {"bf16": 27}, "wgrad": {"bf16": 27}},
    ),
    "fp8_cudagraphs": Known("ACTIVE", 0, (Rule("CompiledFunction(Backward)?", "fp8"),)),
    "fsdp_fp8_all_gather": Known(
        "ACTIVE", 0, (FP8_MM, BF16_MM), ("scalar-all-reduces",)
    ),
    # benchmarks/gpu/blas_log.py: eight layers, three steps.
    "fp8_blas_log": Known(
        "ACTIVE", 0, (Rule("aten::_scaled_mm_v2", "fp8"),), legs=_legs(24)
    ),
    "fp8_own_class": Known("ACTIVE", 0, (FP8_MM, BF16_MM), legs=_beside_head()),
    "fp8_muon": Known(
        "ACTIVE",
        0,
        (FP8_MM, BF16_MM),
        legs={**_beside_head(), "optimizer": {"bf16": NEWTON_SCHULZ}},
    ),
    "fp8_unfused_attention": Known(
        "ACTIVE",
        0,
        (FP8_MM, BF16_MM, Rule("aten::bmm", "fp32", ".*(xmma_gemm|cutlass)")),
        ("attention-unfused",),
        {**_beside_head(), "attention": {"fp32": PRODUCTS_OF_ATTENTION}},
    ),
    "fp8_forward_only": Known(
        "INCONCLUSIVE", 3, (FP8_MM, BF16_MM), ("no-backward",), _beside_head("fprop")
    ),
    # 15 linears, two steps.
    "fp8_nsys": Known("ACTIVE", 0, (FP8_MM,), legs=_legs(2 * 15)),
    # 4 blocks of 7 linears and the head; three steps.
    "fp8_kempnerforge": Known("ACTIVE", 0, (FP8_MM,), legs=_legs(3 * 29)),
    # 12 blocks of 6 linears and the head; six small gates of value embeddings and one linear of a
    # column stay in BF16, some in two kernels, of which one counts; the products of Muon (bmm) do
    # not count.
    "fp8_nanochat": Known(
        "ACTIVE",
        0,
        (FP8_MM, Rule("aten::mm", "bf16", ANY_GEMM)),
        ("fp8-not-paying",),
    ),
    # 4 blocks of 4 linears and the head, two micro-batches, three steps: the first and the last
    # block in BF16. Names tell the two apart, counts are those of the blocks.
    "fp8_megatron_first_last": Known(
        "PARTIAL",
        0,
        (*TE_BY_NAME, BF16_MM),
        ("layer-not-fp8",),
        {
            leg: {"fp8": 6 * 8, "bf16": 6 * (8 + 1)}
            for leg in ("fprop", "dgrad", "wgrad")
        },
    ),
    # 4 blocks of 7 linears and the head, none converted; a part of each block is computed again.
    "bf16_torchtitan_auto_filter": Known(
        "CONTRADICTED", 1, (BF16_MM,), ("claimed-not-active",)
    ),
    # 4 blocks of 7 linears; the head in eight chunks stays in BF16.
    "fp8_torchtune": Known("ACTIVE", 0, (FP8_MM, BF16_MM)),
    # benchmarks/gpu/faults.py: four layers, two micro-batches, three steps.
    "fp8_one_step_bf16": Known(
        "PARTIAL",
        1,
        TE_BY_NAME,
        ("step-without-fp8",),
        _both_in_each_leg(fp8=16, bf16=8),
    ),
    "fp8_one_micro_batch_bf16": Known(
        "PARTIAL",
        1,
        TE_BY_NAME,
        ("pass-without-fp8",),
        _both_in_each_leg(fp8=12, bf16=12),
    ),
    "fp8_te_recompute_bf16": Known(
        "PARTIAL",
        0,
        (Rule("CheckpointFunction", "fp8"), Rule("_Linear(Backward)?", "bf16")),
        ("leg-not-fp8",),
        {
            "fprop": {"fp8": 24},
            **{leg: {"bf16": 24} for leg in ("dgrad", "wgrad", "recompute")},
        },
    ),
    "fp8_instead_of_nvfp4": Known(
        "PARTIAL", 0, TE_BY_NAME, ("higher-than-promised",), _legs(24)
    ),
    # Four of COAT's layers, two steps; the caches of Triton hold what its kernel multiplies.
    "fp8_triton_code": Known(
        "ACTIVE",
        0,
        (Rule("QuantLinearTE(Backward)?", "fp8", "_fp8matmul_kernel"),),
        legs=_legs(8),
    ),
    "fp8_pinned_layer": Known("ACTIVE", 1, (FP8_MM,), ("pinned-layer-low",), _legs(24)),
    # benchmarks/gpu/ranks.py: three blocks of four linears and the head; one step.
    "ddp_one_layer_bf16": Known(
        "PARTIAL",
        1,
        (FP8_MM, BF16_MM),
        ("rank-without-fp8",),
        _both_in_each_leg(fp8=12 + 11, bf16=1 + 2),
    ),
    "ddp_beside_generation": Known("ACTIVE", 0, (FP8_MM, BF16_MM), ("layer-not-fp8",)),
    "ddp_one_rank_bf16": Known("PARTIAL", 1, (FP8_MM, BF16_MM), ("rank-without-fp8",)),
}

# Those that Kineto recorded.


def expected(folder: Path) -> dict[str, Any]:
    """Work out what a capture must give."""
    known = KNOWN[folder.name]
    ranks = [_rank(path, known.rules) for path in sorted(folder.glob("rank*.json.gz"))]
    ranks += [
        _nsight(path, known.rules) for path in sorted(folder.glob("rank*.sqlite.gz"))
    ]
    found: dict[str, Any] = {
        "verdict": known.verdict,
        "exit_code": known.exit_code,
        "findings": list(known.findings),
        "ranks": ranks,
    }
    return found if known.legs is None else {**found, "legs": known.legs}


def _rank(path: Path, rules: tuple[Rule, ...]) -> dict[str, Any]:
    events = msgspec.json.decode(gzip.decompress(path.read_bytes()))["traceEvents"]
    ops = {
        event["args"]["External id"]: event["name"]
        for event in events
        if event.get("cat") == "cpu_op"
    }
    updates = [
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event["name"].startswith("Optimizer.step#")
    ]
    of_optimizer = {
        event["args"]["External id"]
        for event in events
        if event.get("cat") == "cpu_op" and event["name"] in ("aten::mm", "aten::addmm")
        if any(begin <= event["ts"] < end for begin, end in updates)
    }
    found = (
        (
            event["name"],
            event["dur"],
            ops.get(event["args"].get("External id"), "")
            if event["args"].get("External id") not in of_optimizer
            else "",
        )
        for event in events
        if event.get("cat") == "kernel"
    )
    return _added_up(found, rules)


_LAUNCHED = """
    SELECT d.value, k.end - k.start, r.start, r.globalTid
    FROM CUPTI_ACTIVITY_KIND_KERNEL k
    JOIN StringIds d ON d.id = k.demangledName
    JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = k.correlationId
"""
_INNERMOST = """
    SELECT text FROM NVTX_EVENTS
    WHERE eventType = 59 AND text NOT NULL AND globalTid = ? AND start <= ? AND end >= ?
    ORDER BY start DESC LIMIT 1
"""


def _nsight(path: Path, rules: tuple[Rule, ...]) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(gzip.decompress(path.read_bytes()))
        file.flush()
        database = sqlite3.connect(file.name)
        database.execute("CREATE INDEX started ON NVTX_EVENTS (globalTid, start)")
        found = [
            (name, ns / 1000, database.execute(_INNERMOST, (thread, at, at)).fetchone())
            for name, ns, at, thread in database.execute(_LAUNCHED).fetchall()
        ]
        database.close()
    named = (
        (name, us, row[0].partition(",")[0] if row else "") for name, us, row in found
    )
    return _added_up(named, rules)


def _added_up(
    kernels_of: Iterable[tuple[str, float, str]], rules: tuple[Rule, ...]
) -> dict[str, Any]:
    """Add up kernels of a name, their µs and their operator."""
    time_us: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    total = 0.0
    for name, us, op in kernels_of:
        total += us
        for rule in rules:
            if re.fullmatch(rule.op, op) and re.match(rule.kernel, name):
                time_us[rule.precision] += us
                # What adds up the parts of a GEMM is none: its time is the GEMM's.
                kernels[rule.precision] += "splitKreduce" not in name
    return {
        "gemm_us": {name: round(us, 3) for name, us in sorted(time_us.items())},
        "gemm_kernels": dict(sorted(kernels.items())),
        "kernel_us": round(total, 3),
    }


def main() -> int:
    """Rewrite the expectations of every capture, or with --check name those that differ."""
    gc.disable()  # a search for garbage among all events of a trace finds none
    check, status = "--check" in sys.argv, 0
    for folder in sorted(
        {*(ROOT / name for name in KNOWN), *filter(Path.is_dir, ROOT.iterdir())}
    ):
        file, text = (
            folder / "expected.json",
            json.dumps(expected(folder), indent=2) + "\n",
        )
        if not check:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            sys.stdout.write(f"{folder.name}\n")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
