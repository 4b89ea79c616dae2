"""Collectives: bytes, FP8 all-gathers proved or refuted, scales reduced one by one, exposure."""

from __future__ import annotations

import pytest

from fp8verify.model.costs import CommunicationReport
from tests.hand_built import BF16_KERNEL, CLAIM, TraceBuilder, codes, found, present

GATHER, SCATTER, REDUCE = "_allgather_base", "_reduce_scatter_base", "allreduce"
MB = 1 << 20


def collective(
    build: TraceBuilder,
    name: str,
    dtype: str,
    sent: int,
    received: int,
    us: float = 10.0,
) -> TraceBuilder:
    return build.launch(
        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
        "record_param_comms",
        us=us,
        **{
            "Collective name": name,
            "dtype": dtype,
            "In msg nelems": sent,
            "Out msg nelems": received,
            "Group size": 2,
        },
    )


def communication(build: TraceBuilder) -> CommunicationReport:
    return present(build.report().ranks[0].communication)


def test_bytes_are_elements_of_all_calls_by_their_type(build: TraceBuilder) -> None:
    for _ in range(3):
        collective(build, GATHER, "BFloat16", MB, 2 * MB, us=7)
    row = communication(build.linear(64, 32, 16, fp8=False)).collectives[0]
    assert (row.name, row.dtype, row.calls, row.time_us) == (
        GATHER,
        "BFloat16",
        3,
        21.0,
    )
    assert (row.bytes_in, row.bytes_out) == (3 * 2 * MB, 3 * 4 * MB)


def test_the_longest_collective_is_listed_first(build: TraceBuilder) -> None:
    for name, us in ((SCATTER, 5), (GATHER, 7), (REDUCE, 6)):
        collective(build, name, "BFloat16", MB, MB, us=us)
    rows = communication(build.linear(64, 32, 16, fp8=False)).collectives
    assert [row.name for row in rows] == [GATHER, REDUCE, SCATTER]


def test_an_unknown_element_type_has_no_bytes(build: TraceBuilder) -> None:
    collective(build.linear(64, 32, 16, fp8=False), GATHER, "QInt99", MB, 2 * MB)
    assert communication(build).collectives[0].bytes_in is None


@pytest.mark.parametrize(
    ("dtype", "received", "gradients", "fp8", "ratio"),
    [
        ("Byte", 2 * MB, 2 * MB, True, 1.0),  # a byte a parameter: FP8
        ("Byte", 4 * MB, 2 * MB, False, 2.0),  # two bytes: BF16 sent as bytes
        ("Byte", 3 * MB, 2 * MB, True, 1.5),  # half of the group in BF16
        ("Byte", 2 * MB, None, None, None),  # no gradients to compare with
        ("Float8_e4m3fn", 2 * MB, None, True, 1.0),
        ("BFloat16", 2 * MB, 2 * MB, False, None),
    ],
)
def test_bytes_a_parameter_tell_fp8_weights_and_refute_a_promise_of_them(
    build: TraceBuilder, dtype: str, received: int, gradients: int | None,
    fp8: bool | None, ratio: float | None,
) -> None:  # fmt: skip
    build.linear(64, 32, 16, fp8=True)
    collective(build, GATHER, dtype, received // 2, received)
    if gradients is not None:
        collective(build, SCATTER, "Float", gradients, gradients // 2)
    gather = present(communication(build).weight_gather)
    assert gather.fp8 is fp8
    if ratio is not None or dtype == "Byte":
        assert gather.bytes_per_parameter == (ratio and pytest.approx(ratio))
    report = build.report(log=CLAIM.replace("all_gather=False", "all_gather=True"))
    assert ("all-gather-not-fp8" in codes(report)) is (fp8 is False)
    assert report.verdict == ("PARTIAL" if fp8 is False else "ACTIVE")


@pytest.mark.parametrize(("count", "severities"), [(3, []), (8, ["info"])])
def test_many_scalar_all_reduces_a_step_are_named(
    build: TraceBuilder, count: int, severities: list[str]
) -> None:
    build.step(1).linear(64, 32, 16, fp8=True)
    for _ in range(count):
        collective(build, REDUCE, "Float", 1, 1)
    told = found(build.report(), "scalar-all-reduces")
    assert [finding.severity for finding in told] == severities
    assert all(
        "precompute_float8_dynamic_scale_for_fsdp" in finding.hint for finding in told
    )


def test_scalar_all_reduces_of_a_bf16_run_are_no_finding(build: TraceBuilder) -> None:
    build.linear(64, 32, 16, fp8=False)
    for _ in range(20):
        collective(build, REDUCE, "Float", 1, 1)
    assert codes(build.report()) == {"no-optimizer-step"}


def test_exposed_communication_is_what_no_other_kernel_overlaps(
    build: TraceBuilder,
) -> None:
    collective(
        build, GATHER, "BFloat16", MB, 2 * MB, us=150
    )  # 100 µs alone, 50 beside the next
    build.launch(BF16_KERNEL, us=80)
    times = communication(build)
    assert (times.time_us, times.exposed_us) == (150.0, 100.0)


def test_a_communication_kernel_without_a_record_counts_with_its_time(
    build: TraceBuilder,
) -> None:
    build.launch(BF16_KERNEL).launch(
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", None, us=5
    )
    row = communication(build).collectives[0]
    assert (row.name, row.dtype, row.bytes_in, row.time_us) == (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", None, None, 5.0,
    )  # fmt: skip


def test_a_run_without_collectives_has_no_such_report(build: TraceBuilder) -> None:
    assert build.launch(BF16_KERNEL).report().ranks[0].communication is None
