"""What trains and what only runs forward; parts that are compared layer by layer, both ways."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fp8verify import inspect
from fp8verify.analysis.kinds import EXPERTS
from fp8verify.terms import Leg
from fp8verify.trace import Step
from fp8verify.verdict.findings.ledger import name_value
from fp8verify.verdict.ledger import Cell, Layer
from tests.hand_built import (
    BF16,
    BF16_KERNEL,
    BF16_WGRAD_KERNEL,
    FP8,
    FP8_KERNEL,
    LEGS,
    TraceBuilder,
    codes,
    found,
    module,
)

TOKENS = 8192
SIZES = ((3072, 2048), (2048, 1024), (5632, 2048), (2048, 5632))
NODE = ("MmBackward0", "autograd::engine::evaluate_function: MmBackward0")


class Model:
    """Layers of `SIZES` that run forward and backward."""

    def __init__(self, build: TraceBuilder) -> None:
        self.build = build

    def forward(self, *, fp8: bool) -> Model:
        for n, k in SIZES:
            self._gemm("fprop", n, k, fp8=fp8, parents=("aten::linear",))
        return self

    def backward(
        self, *, fp8: bool, wgrad: bool | None = True, inside: bool = True
    ) -> Model:
        for n, k in reversed(SIZES):
            self._gemm("dgrad", n, k, fp8=fp8, parents=NODE)
            if wgrad is not None:
                where = (
                    {"parents": NODE} if inside else {"parents": (), "backward": False}
                )
                self._gemm("wgrad", n, k, fp8=fp8 and wgrad, **where)
        return self

    def _gemm(self, leg: str, n: int, k: int, *, fp8: bool, **where: Any) -> None:
        self.build.gemm(leg, TOKENS, n, k, fp8=fp8, us=100 if fp8 else 190, **where)


def test_a_teacher_in_bf16_accuses_no_student_in_fp8(build: TraceBuilder) -> None:
    for step in (1, 2):
        Model(build.step(step)).forward(fp8=False).forward(fp8=True).backward(fp8=True)
    report = build.report()
    assert (report.verdict, report.untrained_gemm.kernels["bf16"]) == ("ACTIVE", 8)
    assert not codes(report) & {"leg-not-fp8", "pass-without-fp8", "step-without-fp8"}


@pytest.mark.parametrize("first", [True, False])
def test_a_rollout_in_fp8_acquits_no_training_in_bf16(
    first: bool, build: TraceBuilder
) -> None:
    for step in (1, 2):
        model = Model(build.step(step))
        if first:
            model.forward(fp8=True).forward(fp8=True)
        model.forward(fp8=False).backward(fp8=False)
        if not first:
            model.forward(fp8=True)
    report = build.report()
    assert (report.verdict, report.exit_code) == ("INACTIVE", 1)
    assert "fp8-forward-only" in codes(report)


@pytest.mark.parametrize(
    ("log", "forward", "verdict"),
    [
        ("", True, "INACTIVE"),
        ("", False, "CONTRADICTED"),
        ("Float8 training active\n", True, "CONTRADICTED"),
    ],
)
def test_a_conversion_that_was_given_a_teacher_promised_nothing_of_the_student(
    log: str, forward: bool, verdict: str, build: TraceBuilder
) -> None:
    for step in (1, 2):
        Model(build.step(step)).forward(fp8=forward).forward(fp8=False).backward(
            fp8=False
        )
    student = [
        module(f"student.{place}", n, k, "high_precision")
        for place, (n, k) in enumerate(SIZES)
    ]
    report = build.capture(
        *student,
        log=log,
        api_calls=["torchao.float8.convert_to_float8_training"],
    )
    assert report.verdict == verdict
    assert ("fp8-forward-only" in codes(report)) == forward


@pytest.mark.parametrize("late", [0, 3])
def test_a_micro_batch_in_bf16_is_a_shortfall(late: int, build: TraceBuilder) -> None:
    for step in (1, 2):
        model = Model(build.step(step))
        for number in range(4):
            model.forward(fp8=number != late).backward(fp8=number != late)
    report = build.report()
    assert report.verdict == "PARTIAL"
    assert "pass-without-fp8" in codes(report)


def _blocks(
    build: TraceBuilder,
    high: Collection[tuple[int, str]],
    step: int = 0,
    size: tuple[int, int] = SIZES[0],
) -> None:
    """Run four equal blocks forward and backward; some of their GEMMs in BF16."""
    backward = [(leg, block) for block in (3, 2, 1, 0) for leg in ("dgrad", "wgrad")]
    for leg, block in [*(("fprop", block) for block in range(4)), *backward]:
        fp8, where = (
            (block, leg) not in high,
            {"parents": NODE} if leg != "fprop" else {},
        )
        number = 100 * step + 10 * block + 1
        us = 100 if fp8 else 190
        build.gemm(leg, TOKENS, *size, fp8=fp8, us=us, sequence=number, **where)


@pytest.mark.parametrize(
    ("leg", "steps", "code"),
    [
        ("wgrad", (1, 2, 3), "leg-not-fp8"),  # one block's, in all steps
        ("wgrad", (2,), "step-without-fp8"),
        ("", (2,), "step-without-fp8"),  # all legs of one block in one step
        ("", (1, 2, 3), None),  # a block that a filter leaves in BF16 is so by design
    ],
)
def test_cells_of_as_many_launches_ran_the_same_layers(
    leg: str, steps: tuple[int, ...], code: str | None, build: TraceBuilder
) -> None:
    high = {(1, one) for one in ([leg] if leg else LEGS)}
    for step in (1, 2, 3):
        _blocks(build.step(step), high if step in steps else (), step)
    report = build.report()
    assert report.verdict == ("PARTIAL" if code else "ACTIVE")
    told = codes(report) & {"leg-not-fp8", "step-without-fp8"}
    assert told == ({code} if code else set())


@pytest.mark.parametrize(("low", "verdict"), [(8, "ACTIVE"), (2, "INCONCLUSIVE")])
def test_without_shapes_a_loss_in_chunks_ends_no_micro_batch(
    low: int, verdict: str, build: TraceBuilder
) -> None:
    for step in (1, 2, 3):
        blocks, chunks = (low, 3) if step == 3 else (8, 2)
        gemms = list(
            enumerate([place < blocks for place in range(8 + chunks)], 100 * step)
        )
        build.step(step).launch("embed", "aten::embedding")
        for number, fp8 in gemms:
            build.gemm("fprop", TOKENS, *SIZES[0], fp8=fp8, sequence=number)
            build.launch(
                "nll", "aten::nll_loss_forward" if number % 100 >= 8 else "aten::add"
            )
        for number, fp8 in reversed(gemms):
            for leg in ("dgrad", "wgrad"):
                build.gemm(leg, TOKENS, *SIZES[0], fp8=fp8, sequence=number)
    for event in build.events:
        event["args"].pop("Input Dims", None)
    assert build.report().verdict == verdict


@pytest.mark.parametrize(
    ("transfer", "head", "verdict"),
    [
        ("AllReduce_Sum_bf16_RING_LL", False, "PARTIAL"),
        ("SendRecv", False, "INCONCLUSIVE"),
        ("Broadcast_RING_LL", True, "INCONCLUSIVE"),
    ],
)
def test_ranks_run_the_same_layers_unless_they_are_stages_of_a_pipeline(
    transfer: str, head: bool, verdict: str, tmp_path: Path
) -> None:
    for rank in (0, 1):
        build = TraceBuilder(rank=rank, world=2)
        _blocks(build, {(0, leg) for leg in LEGS} if rank else ())
        if rank and head:
            build.linear(TOKENS, *SIZES[1], fp8=True, us=100)
        name = f"ncclDevKernel_{transfer}(4u)"
        build.launch(name, "nccl:op", us=50).write(tmp_path / f"rank{rank}.json")
    report = inspect(tmp_path)
    assert report.verdict == verdict
    assert ("rank-without-fp8" in codes(report)) is (verdict == "PARTIAL")


PINNED = """\
  first_last_layers_bf16 ............... True
  fp8 .................................. hybrid
  num_layers ........................... 12
  num_layers_at_end_in_bf16 ............ 1
  num_layers_at_start_in_bf16 .......... 1
"""


@pytest.mark.parametrize(
    ("short", "verdict"), [(None, "ACTIVE"), (1, "PARTIAL"), (2, "PARTIAL")]
)
def test_first_and_last_blocks_in_bf16_excuse_no_stage_between(
    short: int | None, verdict: str, tmp_path: Path
) -> None:
    for rank in range(3):
        build = TraceBuilder(rank=rank, world=3)
        pinned = {0: {0}, 1: set(), 2: {3}}[rank] | (
            set(range(4)) if rank == short else set()
        )
        _blocks(build, {(block, leg) for block in pinned for leg in LEGS})
        build.launch("ncclDevKernel_SendRecv(4u)", "nccl:send 0->1", us=50)
        build.write(tmp_path / f"rank{rank}.json")
    (tmp_path / "log.txt").write_text(PINNED)
    report = inspect(tmp_path)
    assert report.verdict == verdict
    assert [one.ranks for one in found(report, "rank-without-fp8")] == [
        (short,)
    ] * bool(short)


@pytest.mark.parametrize(
    ("trainer", "verdict"), [(True, "ACTIVE"), (False, "INACTIVE")]
)
def test_a_worker_that_generates_does_not_count_beside_a_rank_that_trains(
    trainer: bool, verdict: str, tmp_path: Path
) -> None:
    build = TraceBuilder(rank=0, world=2)
    high = () if trainer else {(block, leg) for block in range(4) for leg in LEGS}
    _blocks(build, high)
    build.write(tmp_path / "rank0.json")
    worker = TraceBuilder(rank=1, world=2)
    worker.gemm("fprop", TOKENS, *SIZES[0], fp8=True)
    worker.write(tmp_path / "rank1.json")
    report = inspect(tmp_path)
    assert report.verdict == verdict
    assert "no-backward" not in codes(report)


def test_what_no_pair_explains_is_of_the_coordinate_with_the_fewest_values(
    tmp_path: Path,
) -> None:
    for rank in (0, 1):
        build = TraceBuilder(rank=rank, world=2)
        for step, leg in ((1, "fprop"), (2, "wgrad")):
            _blocks(build.step(step), {(0, leg)} if rank else (), step)
        build.write(tmp_path / f"rank{rank}.json")
    report = inspect(tmp_path)
    assert report.verdict == "PARTIAL"
    told = [
        one
        for one in report.findings
        if one.code.endswith(("-without-fp8", "-not-fp8"))
    ]
    assert [(one.code, one.ranks) for one in told] == [("rank-without-fp8", (1,))]


def test_products_without_a_node_are_no_layers_where_calls_are_numbered(
    build: TraceBuilder,
) -> None:
    # An optimizer of a script's own multiplies matrices of the sizes that layers have.
    for step in (1, 2):
        _blocks(build.step(step), (), step, (TOKENS, TOKENS))
        for _ in range(12):
            dims = ((TOKENS, TOKENS), (TOKENS, TOKENS))
            build.launch(BF16_KERNEL, types=(BF16, BF16), dims=dims, us=90)
    report = build.report()
    assert report.verdict == "ACTIVE"
    assert (
        report.untrained_gemm.kernels["bf16"] + report.optimizer_gemm.kernels["bf16"]
        == 24
    )


@pytest.mark.parametrize(("wgrad", "verdict"), [(True, "ACTIVE"), (False, "PARTIAL")])
def test_shapes_tell_wgrad_outside_of_autograds_nodes(
    wgrad: bool, verdict: str, build: TraceBuilder
) -> None:
    for step in (1, 2):
        Model(build.step(step)).forward(fp8=True).backward(
            fp8=True, wgrad=wgrad, inside=False
        )
    report = build.report()
    assert report.verdict == verdict
    assert {row.leg.value for row in report.legs} == {"fprop", "dgrad", "wgrad"}


def test_a_leg_without_any_gemm_is_open(build: TraceBuilder) -> None:
    Model(build).forward(fp8=True).backward(fp8=True, wgrad=None)
    report = build.report()
    assert report.verdict == "INCONCLUSIVE"
    assert "leg-unknown" in codes(report)


@pytest.mark.parametrize(
    ("name", "layer", "said"),
    [
        ("rank", None, "rank 3"), ("step", None, "step 12"), ("micro-batch", None, "micro-batch 2"),
        ("leg", None, "dgrad"), ("layer", "up", "up"), ("layer", (48, 16), "48x16"),
        ("layer", EXPERTS, "experts"), ("layer", None, "layers of unknown size"),
    ],
)  # fmt: skip
def test_the_values_of_coordinates_are_named(
    name: str, layer: Layer, said: str
) -> None:
    trace = SimpleNamespace(steps=[Step(11, 0, 1), Step(12, 1, 2)])
    ranks: Any = [SimpleNamespace(), SimpleNamespace(label="rank 3", trace=trace)]
    assert name_value(ranks, Cell(1, 1, 1, layer, Leg.DGRAD), name) == said
    assert name_value(ranks, Cell(1, -1, 1, layer, Leg.DGRAD), "step") == "step unknown"


@pytest.mark.parametrize(("trains", "verdict"), [(0, "ACTIVE"), (1, "INCONCLUSIVE")])
def test_frozen_layers_alone_have_no_wgrad(
    trains: int, verdict: str, build: TraceBuilder
) -> None:
    Model(build).forward(fp8=True).backward(fp8=True, wgrad=None)
    sizes = enumerate(SIZES)
    layers = [module(f"layer{at}", n, k, frozen=at >= trains) for at, (n, k) in sizes]
    assert build.capture(*layers).verdict == verdict


@pytest.mark.parametrize(
    ("kernel", "us", "verdict"),
    [
        (BF16_WGRAD_KERNEL, 0.2, "ACTIVE"),
        (BF16_WGRAD_KERNEL, 1, "INCONCLUSIVE"),
        (BF16_KERNEL, 1, "INCONCLUSIVE"),
    ],
)
def test_gemms_outside_of_any_operator_may_be_of_the_training(
    kernel: str, us: float, verdict: str, build: TraceBuilder
) -> None:
    build.linear(64, 48, 16, fp8=True, us=10).launch(kernel, None, us=us)
    report = build.report()
    assert report.verdict == verdict, report.reason
    assert ("ran outside any operator" in report.reason) is (verdict == "INCONCLUSIVE")


@pytest.mark.parametrize("types", [(BF16, FP8), ()])
def test_the_name_of_a_hand_written_kernel_alone_makes_no_active(
    types: tuple[str, ...], build: TraceBuilder
) -> None:
    dims = ((TOKENS, 2048), (3072, 2048)) if types else ()
    for backward in (False, True, True):
        build.launch(
            "_fp8_gemm_kernel",
            "own::linear",
            types=types,
            dims=dims,
            backward=backward,
            us=90,
        )
    assert build.report().verdict == "INCONCLUSIVE"


def test_a_function_without_fp8_tensors_runs_no_fp8(build: TraceBuilder) -> None:
    for step in (1, 2):
        model = Model(build.step(step)).forward(fp8=False)
        build.launch(
            "_scan_kernel",
            "OwnScan",
            types=(BF16, BF16),
            dims=((64, 64), (64, 64)),
            us=999,
        )
        model.backward(fp8=False)
    report = build.report()
    assert report.verdict == "INACTIVE"
    assert "opaque-kernels" not in codes(report)


@pytest.mark.parametrize("head", [True, False])
def test_a_rank_without_layers_of_fp8_cannot_lack_it(
    head: bool, tmp_path: Path
) -> None:
    Model(TraceBuilder(rank=0, world=2)).forward(fp8=True).backward(
        fp8=True
    ).build.write(tmp_path / "rank0.json")
    last = TraceBuilder(rank=1, world=2)
    if head:
        last.linear(TOKENS, 32000, 2048, fp8=False)
        last.launch("ncclDevKernel_SendRecv(4u)", "nccl:recv 1<-0", us=50)
    else:
        Model(last).forward(fp8=False).backward(fp8=False)
    last.write(tmp_path / "rank1.json")
    report = inspect(tmp_path)
    assert report.verdict == ("ACTIVE" if head else "PARTIAL")
    assert ("rank-without-fp8" in codes(report)) is not head


@pytest.mark.parametrize(("world", "minutes"), [(4, 0), (2, 20)])
def test_files_of_another_run_are_named(
    world: int, minutes: int, tmp_path: Path
) -> None:
    for rank in range(3):
        build = TraceBuilder(rank=rank, world=2 if rank < 2 else world)
        model = Model(build).forward(fp8=rank < 2).backward(fp8=rank < 2)
        ago = minutes * 60 * 10**9 * (rank == 2)
        document = {
            **model.build.document(),
            "baseTimeNanoseconds": 1790857026 * 10**9 - ago,
        }
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    report = inspect(tmp_path)
    assert report.verdict == "INCONCLUSIVE"
    (finding,) = found(report, "rank-of-another-run")
    assert finding.ranks == (2,)


def _experts(build: TraceBuilder, op: str, *, low: bool) -> None:
    types = (FP8, FP8) if low else (BF16, BF16)
    kernel = "acme_kernel_v3" if op.startswith("acme") else BF16_KERNEL
    sides = (((TOKENS, 2048), (8, 2048, 3072)), ((TOKENS, 3072), (8, 3072, 2048)),
             ((3072, TOKENS), (TOKENS, 2048)))  # fmt: skip
    for number, dims in enumerate(sides):
        name = (
            FP8_KERNEL if low else kernel.replace("TNT", ("TNT", "NNT", "NTT")[number])
        )
        where = {"parents": NODE, "backward": True} if number else {}
        build.launch(name, op, types=types, dims=dims, us=95 if low else 190, **where)  # type: ignore[arg-type]


@pytest.mark.parametrize("op", ["aten::_grouped_mm", "acme::run"])
def test_experts_that_no_module_converts_are_compared_by_step(
    op: str, build: TraceBuilder
) -> None:
    for step in (1, 2, 3):
        low = step != 2
        _experts(build.step(step), "aten::_scaled_grouped_mm" if low else op, low=low)
    experts = {
        "fqn": "experts.w",
        "class": "Experts",
        "kind": "experts",
        "state": "high_precision",
    }
    report = build.capture(experts)
    assert report.verdict == "PARTIAL"
    assert "step 2" in report.reason
