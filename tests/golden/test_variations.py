"""Captures with random edits: nothing that is said of them changes unseen.

Which verdict is right for an edit, test_edited_captures.py says; here edits of traces, module
lists, numbers and logs are combined, so that rules meet evidence that no recording has.
FP8VERIFY_UPDATE_GOLDENS=1 writes variations/ anew: look at the verdicts and codes that differ.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fp8verify import Comparison, Policy, Report, compare, inspect
from fp8verify.errors import InputError
from tests.captures import ROOT
from tests.golden.edits import FP8_NAMES, LAUNCHES, Capture, Event
from tests.golden.test_figures import NUMERICS, _summed, assert_golden, figures
from tests.hand_built import BF16, FP8
from tests.other_tools import WRITERS, record
from tests.unit.test_blas_log import BF16 as BF16_OF_BLAS
from tests.unit.test_blas_log import E4M3, line
from tests.unit.test_claims import LINES

# What is held of a variation's report: the whole of it would be too long to read.
STATED = ("verdict", "exit_code", "reason", "cause", "breakdown", "proof", "notes")
# Names, and what has lines of its own.
NOT_STATED = {"names", "schema_version", "fp8verify_version", "findings"}
OF_A_RANK = (
    "verdict", "cause", "shortfall", "rest", "opaque_us", "unplaced_us", "gpu_time_us", "expected",
    "payoff", "communication", "recipe", "library_log", "health", "memory", "settled",
    "copy_time_us", "judged", "steps_outside", "timelines", "numerics",
)  # fmt: skip
OF_A_STEP = ("gpu_us", "duration_us", "whole", "trains")
OF_A_LAYER = (
    "modules",
    "observed",
    "in_fp8",
    "expected",
    "passes_per_step",
    "share_of_flops",
)
OTHER_GEMMS = ("attention_gemm", "untrained_gemm", "optimizer_gemm")
SEEDS = 6
SMALL = sorted(
    folder
    for folder in ROOT.iterdir()
    if (folder / "rank0.json.gz").exists()
    and (folder / "rank0.json.gz").stat().st_size < 300_000
)
MX_KERNEL = "nvjet_sm100_{}_128x256_128x6_2x1_2cta_v_bz_Avec32UE8M0_Bvec32UE8M0_TNT"
CLAIMS = (
    *(line for *_, line in LINES),
    "[Override] mxfp8_linear: layers.1.mlp.down MXFP8Linear.Config -> Linear.Config",
    "  fp8 ............................................. hybrid",
    "  fp8_recipe ...................................... delayed",
    "  fp8_recipe ...................................... blockwise",
    "  num_layers_at_start_in_bf16 ..................... 1",
    "  first_last_layers_bf16 .......................... True",
    "Rollout engine: FP8 training disabled, using BF16 for actor",
)
STATES = ("fp8", "fp8_module_off", "fp8_emulated", "fp4", "high_precision", "unknown")
FORMATS = ("fp8", "fp8_block", "mxfp8", "nvfp4", "high_precision")
Choice = random.Random


def some(events: list[Event], rng: Choice) -> list[Event]:
    """Return a random part of some kernels, in their order."""
    share = rng.choice((0.02, 0.1, 0.4, 0.8, 1.0))
    return [
        event
        for event in events
        if rng.random() < share and event["args"].get("External id")
    ]


def gemms(trace: Capture) -> list[Event]:
    return trace.low or trace.gemms


def dropped(*categories: str, name: str = "") -> Callable[[Capture, Choice], object]:
    return lambda trace, _: trace.drop(
        lambda e: e.get("cat") in categories and name in e.get("name", "")
    )


def later(trace: Capture, rng: Choice) -> None:
    """Let the GPU and the CPU wait from some event on."""
    timed = [event for event in trace.events if event.get("ph") == "X"]
    start = rng.choice([0, *(event["ts"] for event in timed)])
    for event in timed:
        event["ts"] += 20_000 * (event["ts"] > start)


def cut(trace: Capture, rng: Choice) -> None:
    ends = [event["ts"] for event in trace.of(*LAUNCHES, "kernel")]
    end = rng.choice(ends or [0])
    trace.drop(lambda event: event.get("ts", 0) > end)


def timed(factor: float) -> Callable[[Capture, Choice], None]:
    def edit(trace: Capture, rng: Choice) -> None:
        for kernel in some(rng.choice((gemms(trace), trace.of("kernel"))), rng):
            kernel["dur"] *= factor

    return edit


def moved(trace: Capture, rng: Choice) -> None:
    """Run kernels on another stream."""
    for kernel in some(trace.of("kernel"), rng):
        kernel["args"]["stream"] = 99


def in_mxfp8(trace: Capture, rng: Choice) -> None:
    found = some(gemms(trace), rng)
    trace.on("NVIDIA B200", 10, 0).launched_by(found, "aten::_scaled_mm_v2", FP8, FP8)
    trace.rename(found, MX_KERNEL.format("qqtst"))
    trace.rename(some(found, rng), MX_KERNEL.format("qrtst"))


def unknown(trace: Capture, rng: Choice) -> None:
    found = some(rng.choice((gemms(trace), trace.of("kernel"))), rng)
    trace.rename(found, "acme_kernel_v3").launched_by(found, "acme::run")


def orphaned(trace: Capture, rng: Choice) -> None:
    """Launch kernels outside any operator, as from CUDA graphs."""
    found = {kernel["args"]["External id"] for kernel in some(trace.of("kernel"), rng)}
    trace.drop(
        lambda e: e.get("cat") == "cpu_op" and e["args"].get("External id") in found
    )


TRACE_EDITS: tuple[Callable[[Capture, Choice], object], ...] = (
    lambda trace, rng: trace.in_bf16(some(gemms(trace), rng)),
    lambda trace, rng: trace.in_fp8(some(trace.gemms, rng)),
    lambda trace, rng: trace.launched_by(
        some(gemms(trace), rng), "aten::addmm", BF16, BF16
    ),
    lambda trace, _: trace.without_shapes(),
    lambda trace, _: trace.without_operators(),
    dropped(*LAUNCHES),
    dropped("fwdbwd"),
    dropped("user_annotation", "gpu_user_annotation", name="ProfilerStep"),
    dropped("user_annotation", name="Optimizer"),
    dropped("cpu_op", name="Backward"),
    dropped("cpu_op", name="autograd"),
    dropped("kernel", name="triton"),
    lambda trace, _: trace.then(Capture("bf16_compiled")),
    lambda trace, _: trace.on("NVIDIA A100-SXM4-80GB", 8, 0),
    lambda trace, _: trace.on("NVIDIA H100 PCIe", 9, 0),
    *(
        later,
        cut,
        timed(0.3),
        timed(3.0),
        timed(0.0),
        moved,
        in_mxfp8,
        unknown,
        orphaned,
    ),
)


def nudge(value: Any, rng: Choice, rate: float = 0.05) -> Any:
    """Change some values of a document, leaving its keys and types."""
    if isinstance(value, dict):
        return {key: nudge(one, rng, rate) for key, one in value.items()}
    if isinstance(value, list):
        kept = [nudge(one, rng, rate) for one in value]
        return kept[: len(kept) // 2] if rng.random() < rate else kept
    if isinstance(value, str) or value is None or rng.random() > rate:
        return value
    if isinstance(value, bool):
        return not value
    return (
        value * rng.choice((0, 1, 2, 64))
        if isinstance(value, int)
        else value * 10.0 ** rng.randint(-6, 6)
    )


def of_modules(meta: dict[str, Any], rng: Choice) -> None:
    """Give some modules another state, size or promise."""
    for module in rng.sample(
        meta["modules"], len(meta["modules"]) // rng.choice((1, 2, 8))
    ):
        key, value = rng.choice((
            *(("state", state) for state in STATES), ("training", False), ("frozen", True),
            ("in_features", 17), ("kind", "experts"), ("source", "user"), ("reason", "filtered"),
            *(("formats", {leg: name}) for leg in ("fprop", "wgrad") for name in FORMATS),
        ))  # fmt: skip
        module[key] = value


def vary_records(folder: Path, to: Path, rng: Choice) -> None:
    """Copy what the agent recorded, with some of its values changed."""
    for file in sorted(folder.glob("rank*.json*")):
        if file.suffix == ".gz":
            continue
        texts = (
            file.read_text().splitlines()
            if file.suffix == ".jsonl"
            else [file.read_text()]
        )
        documents = list(map(json.loads, texts))
        for document in (
            documents if "modules" in documents[0] and rng.random() < 0.4 else ()
        ):
            of_modules(document, rng)
        if rng.random() < (0.9 if "numerics" in file.name else 0.3):
            rate = rng.choice((0.01, 0.1))
            kept = {
                key: documents[0][key]
                for key in ("schema", "rank")
                if key in documents[0]
            }
            documents = [nudge(document, rng, rate) | kept for document in documents]
        (to / file.name).write_text("\n".join(map(json.dumps, documents)))


def vary_log(folder: Path, to: Path, rng: Choice) -> None:
    """Copy the log, with claims before it and losses after it."""
    log = folder / "log.txt"
    lines = rng.sample(CLAIMS, rng.choice((0, 0, 1, 3)))
    lines += log.read_text().splitlines() if log.exists() else []
    start, factor = rng.randrange(20), rng.choice((1.0, 1.001, 1.02, 1.2))
    for step in range(20):
        loss = (3 - step / 10 + rng.random() / 100) * (factor if step > start else 1.0)
        lines.append(
            f"step {step} | loss {loss:.4f} | {rng.choice((400, 402, 440))} ms"
        )
    (to / "log.txt").write_text("\n".join(lines))


def logged_products(trace: Capture, rng: Choice) -> str:
    """Return what cuBLASLt would have logged of the GEMMs, perhaps in part or of other types."""
    operators = {
        event["args"].get("External id"): event for event in trace.of("cpu_op")
    }
    lines, other = [], rng.choice((0.0, 0.0, 0.1))
    for kernel in trace.gemms:
        operator = operators.get(
            kernel["args"].get("External id"), {"tid": 1, "args": {}}
        )
        dims = [d for d in operator["args"].get("Input Dims", []) if len(d) == 2]
        (m, k), (_, n) = dims[:2] if len(dims) > 1 else ((8, 8), (8, 8))
        is_fp8 = kernel["name"].startswith(FP8_NAMES) != (rng.random() < other)
        lines.append(
            line(
                *[E4M3 if is_fp8 else BF16_OF_BLAS] * 2, m, n, k, thread=operator["tid"]
            )
        )
    if rng.random() < 0.3:  # a file for each thread, joined
        lines.sort(key=lambda one: one.partition("[cublasLt]")[2][:8])
    told = lines[: rng.choice((None, None, None, -1))]
    return "".join(told).replace("tile=MATMUL_TILE_128x128 ", "")


def vary(folder: Path, to: Path, rng: Choice) -> None:
    """Write an edited copy of a capture."""
    to.mkdir()
    if (folder / "layers").exists():
        shutil.copytree(folder / "layers", to / "layers")
    vary_records(folder, to, rng)
    vary_log(folder, to, rng)
    for rank in range(rng.choice((1, 1, 2))):
        trace = Capture(f"{folder}").as_rank(rank, rng.choice((1, 2)))
        for edit in rng.sample(TRACE_EDITS, rng.choice((0, 1, 1, 2))):
            edit(trace, rng)
        path = trace.write(to / f"rank{rank}.json")
        if rng.random() < 0.2:
            (to / f"rank{rank}.blas.json").write_text(logged_products(trace, rng))
        if rng.random() < 0.1:  # a recording that was cut
            path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])
        elif rank == 0 and rng.random() < 0.3:  # another profiler's
            recorded = record(path)
            path.unlink()
            WRITERS[rng.choice([*WRITERS])](recorded, to)
            return


def found_of(folder: Path, seed: int, to: Path) -> dict[str, Any]:
    rng = random.Random(f"{folder.name} {seed}")
    first, second = to / "first", to / "second"
    vary(folder, first, rng)
    policy = Policy(min_share=rng.choice((None, 0.3, 0.9)), strict=rng.random() < 0.2)
    try:
        results: list[Report | Comparison] = [inspect(first, policy=policy)]
        if seed == 1:
            vary(folder, second, rng)
            results.append(compare(first, second))
    except InputError as error:  # of a file that the edits broke
        return {"error": error.hint}
    documents = [
        json.loads(result.to_json().replace(f"{to}", "")) for result in results
    ]
    return {key: one for d in documents for key, one in stated(d).items()}


def stated(document: dict[str, Any]) -> dict[str, Any]:
    """Return what decides and ran in which precision, of a comparison all figures."""
    found = figures({key: document[key] for key in STATED if key in document})
    if "names" in document:  # a comparison
        found = figures({key: document[key] for key in document.keys() - NOT_STATED})
        found.get("loss", {}).pop("curve", None)
    for one in document["findings"]:
        code = f"{one['code']} {one['severity']}"
        cause = one["message"].partition(":")[0] if "names" in document else ""
        found[code] = [
            *found.get(code, []),
            *filter(None, [cause]),
            figures(one["message"]),
        ]
    for rank in () if "names" in document else figures(document["ranks"]):
        said = {key: rank[key] for key in OF_A_RANK if key in rank}
        said |= {
            leg["leg"]: [leg["kernels"], leg.get("time_us")]
            for leg in rank.get("legs", [])
        }
        said |= {
            kind: rank[kind].get("kernels") for kind in OTHER_GEMMS if rank.get(kind)
        }
        said |= {key: rank.get("gemm", {}).get(key) for key in ("time_us", "flops")}
        said["modules"] = rank.get("modules", {}).get("counts")
        for row in rank.get("layers", {}).get("rows", []):
            said[f"{row.get('n')} x {row.get('k')}"] = [
                row.get(key) for key in OF_A_LAYER
            ]
        for step in rank.get("steps", [])[:2]:
            kernels = step.get("gemm", {}).get("kernels")
            said[f"step {step.get('step')}"] = [kernels, *map(step.get, OF_A_STEP)]
        said |= _summed(
            "overhead",
            [
                one
                for one in (rank.get("tax") or {}).get("rows", [])
                if "time_us" in one
            ],
            "purpose",
        )
        found[f"rank {rank.get('rank', 0)}"] = {
            key: one for key, one in said.items() if one
        }
    return dict(found)


@pytest.mark.parametrize("folder", [*SMALL, NUMERICS], ids=lambda folder: folder.name)
def test_what_is_said_of_a_variation_is_what_was_said(
    folder: Path, tmp_path: Path
) -> None:
    found = {}
    for seed in range(SEEDS):
        (tmp_path / f"{seed}").mkdir()
        found[f"{seed}"] = found_of(folder, seed, tmp_path / f"{seed}")
    assert_golden(Path(__file__).parent / "variations" / f"{folder.name}.jsonl", found)
