"""Collectives: bytes, FP8 all-gathers proved or refuted, scales reduced one by one, exposure."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8verify import Report, inspect
from fp8verify.report.model.parts import CommunicationReport
from tests.hand_built import BF16_KERNEL, TraceBuilder

GATHER, SCATTER, REDUCE = "_allgather_base", "_reduce_scatter_base", "allreduce"
MB = 1 << 20


def collective(
    build: TraceBuilder, name: str, dtype: str, sent: int, received: int, us: float = 10.0
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


def report(build: TraceBuilder, folder: Path, *, log: str | None = None) -> Report:
    trace = build.write(folder / "trace.json")
    if log is None:
        return inspect(trace)
    (folder / "train.log").write_text(log)
    return inspect(trace, log=folder / "train.log")


def communication_of(found: Report) -> CommunicationReport:
    communication = found.ranks[0].communication
    assert communication is not None
    return communication


CLAIM = "Applied Float8 training: recipe=TENSORWISE, fsdp_float8_all_gather=True\n"


def test_bytes_are_elements_of_all_calls_by_their_type(build: TraceBuilder, tmp_path: Path) -> None:
    for _ in range(3):
        collective(build, GATHER, "BFloat16", MB, 2 * MB, us=7)
    found = communication_of(report(build.linear(64, 32, 16, fp8=False), tmp_path))
    row = found.collectives[0]
    assert (row.name, row.dtype, row.calls, row.time_us) == (GATHER, "BFloat16", 3, 21.0)
    assert (row.bytes_in, row.bytes_out) == (3 * 2 * MB, 3 * 4 * MB)


def test_the_longest_collective_is_listed_first(build: TraceBuilder, tmp_path: Path) -> None:
    for name, us in ((SCATTER, 5), (GATHER, 7), (REDUCE, 6)):
        collective(build, name, "BFloat16", MB, MB, us=us)
    found = communication_of(report(build.linear(64, 32, 16, fp8=False), tmp_path))
    assert [row.name for row in found.collectives] == [GATHER, REDUCE, SCATTER]


def test_an_unknown_element_type_has_no_bytes(build: TraceBuilder, tmp_path: Path) -> None:
    collective(build.linear(64, 32, 16, fp8=False), GATHER, "QInt99", MB, 2 * MB)
    found = communication_of(report(build, tmp_path))
    assert found.collectives[0].bytes_in is None


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
def test_bytes_a_parameter_tell_fp8_weights(
    build: TraceBuilder, tmp_path: Path, dtype: str, received: int, gradients: int | None,
    fp8: bool | None, ratio: float | None,
) -> None:  # fmt: skip
    build.linear(64, 32, 16, fp8=True)
    collective(build, GATHER, dtype, received // 2, received)
    if gradients is not None:
        collective(build, SCATTER, "Float", gradients, gradients // 2)
    found = communication_of(report(build, tmp_path))
    assert found.weight_gather is not None
    assert found.weight_gather.fp8 is fp8
    if ratio is None and dtype == "Byte":
        assert found.weight_gather.bytes_per_parameter is None
    elif ratio is not None:
        assert found.weight_gather.bytes_per_parameter == pytest.approx(ratio)


def test_bytes_of_bf16_refute_a_promised_fp8_gather(build: TraceBuilder, tmp_path: Path) -> None:
    build.linear(64, 32, 16, fp8=True)
    collective(build, GATHER, "Byte", 2 * MB, 4 * MB)
    collective(build, SCATTER, "Float", 2 * MB, MB)
    codes = [finding.code for finding in report(build, tmp_path, log=CLAIM).findings]
    assert "all-gather-not-fp8" in codes


@pytest.mark.parametrize(("count", "found"), [(3, False), (8, True)])
def test_many_scalar_all_reduces_a_step_are_named(
    build: TraceBuilder, tmp_path: Path, count: int, found: bool
) -> None:
    build.step(1).linear(64, 32, 16, fp8=True)
    for _ in range(count):
        collective(build, REDUCE, "Float", 1, 1)
    findings = {f.code: f for f in report(build, tmp_path).findings}
    assert ("scalar-all-reduces" in findings) is found
    if found:
        assert findings["scalar-all-reduces"].severity == "info"
        assert "precompute_float8_dynamic_scale_for_fsdp" in findings["scalar-all-reduces"].hint


def test_scalar_all_reduces_of_a_bf16_run_are_no_finding(
    build: TraceBuilder, tmp_path: Path
) -> None:
    build.linear(64, 32, 16, fp8=False)
    for _ in range(20):
        collective(build, REDUCE, "Float", 1, 1)
    found = report(build, tmp_path).findings
    assert [finding.code for finding in found] == ["no-optimizer-step"]


def test_exposed_communication_is_what_no_other_kernel_overlaps(
    build: TraceBuilder, tmp_path: Path
) -> None:
    collective(build, GATHER, "BFloat16", MB, 2 * MB, us=150)  # 100 µs alone, 50 beside the next
    build.launch(BF16_KERNEL, us=80)
    found = communication_of(report(build, tmp_path))
    assert (found.time_us, found.exposed_us) == (150.0, 100.0)


def test_a_communication_kernel_without_a_record_counts_with_its_time(
    build: TraceBuilder, tmp_path: Path
) -> None:
    build.launch(BF16_KERNEL).launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", None, us=5)
    found = communication_of(report(build, tmp_path))
    row = found.collectives[0]
    assert (row.name, row.dtype, row.bytes_in, row.time_us) == (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", None, None, 5.0,
    )  # fmt: skip


def test_a_run_without_collectives_has_no_such_report(build: TraceBuilder, tmp_path: Path) -> None:
    assert report(build.launch(BF16_KERNEL), tmp_path).ranks[0].communication is None
