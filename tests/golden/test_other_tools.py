"""Captures that ship, as Nsight Systems and rocprofv3 would have recorded them."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
from functools import cache
from pathlib import Path

import pytest

from fp8verify import Report, Verdict, inspect
from fp8verify.kernels import decode
from fp8verify.model.report import RankReport
from fp8verify.terms import Precision
from fp8verify.trace import read_trace
from tests.captures import ROOT, report_of
from tests.other_tools import WRITERS, Export, Recording, record, write_nsys

# Every form of these: compiled, eager with two ranks, Transformer Engine, CUDA graphs, experts.
IN_EVERY_FORM = (
    *(
        "fp8_compiled",
        "ddp_one_rank_bf16",
        "bf16_te_no_autocast",
        "fp8_te_backward_bf16",
    ),
    *("fp8_cudagraphs", "fp8_experts", "fp8_muon", "bf16_filter_rejects_all"),
)
# Which GEMMs are the layers' only operators tell, where names and counts do not.
NEED_OPERATORS = {
    *("fp8_megatron_first_last", "fp8_muon", "fp8_unfused_attention"),
    *("fp8_one_step_bf16", "fp8_one_micro_batch_bf16"),
}
KERNELS_ALONE = sorted(
    {*IN_EVERY_FORM, *NEED_OPERATORS, "fp8_emulated", "fp8_te_modules_block"}
)


@cache
def recordings(name: str) -> list[Recording]:
    traces = sorted((ROOT / name).glob("rank*.json*"))
    return [record(trace) for trace in traces if ".meta." not in trace.name]


def times(rank: RankReport) -> dict[str, float]:
    """Return GPU time by purpose; only input types tell a copy of FP8 from a cast to it."""
    found = dict(rank.gpu_time_us)
    found["quantize"] += found.pop("transpose")
    return found


def converted(name: str, recorded: list[Recording], form: str, folder: Path) -> Report:
    """Inspect the capture with its traces in another form, logs and module list as they are."""
    for file in (ROOT / name).iterdir():
        if file.suffix == ".txt" or file.name.endswith(".meta.json"):
            shutil.copy(file, folder)
    for rank, one in enumerate(recorded):
        written = folder / "written"
        written.mkdir()
        WRITERS[form](one, written)
        for file in written.iterdir():
            file.rename(folder / f"rank{rank}_{file.name}")
        written.rmdir()
    return inspect(folder)


@pytest.mark.parametrize("name", IN_EVERY_FORM)
def test_verdict_times_legs_and_steps_are_those_of_kineto(
    name: str, tmp_path: Path
) -> None:
    recorded, known = recordings(name), report_of(name)
    for form in WRITERS:
        folder = tmp_path / form
        folder.mkdir()
        found = converted(name, recorded, form, folder)
        assert (found.verdict, found.reason) == (known.verdict, known.reason)
        legs = [{leg.leg: leg.kernels for leg in one.legs} for one in (found, known)]
        assert legs[0] == legs[1]
        for one, other in zip(found.ranks, known.ranks, strict=True):
            assert (one.gemm, one.steps, one.layers) == (
                other.gemm,
                other.steps,
                other.layers,
            )
            assert one.health.kernels == other.health.kernels
            assert times(one) == pytest.approx(times(other), abs=0.01)


@pytest.mark.parametrize("name", KERNELS_ALONE)
def test_kernels_alone_give_the_same_verdict_and_times(
    name: str, tmp_path: Path
) -> None:
    known = report_of(name)
    bare = [Recording(kernels=one.kernels, gpu=one.gpu) for one in recordings(name)]
    found = converted(name, bare, "nsys", tmp_path)
    if name in NEED_OPERATORS:
        assert found.verdict is Verdict.INCONCLUSIVE
        assert "no-operators" in {finding.code for finding in found.findings}
    else:
        assert found.verdict is known.verdict
        assert [rank.gemm.time_us for rank in found.ranks] == [
            r.gemm.time_us for r in known.ranks
        ]
    for one, other in zip(found.ranks, known.ranks, strict=True):
        assert one.gemm.time_us["fp8"] == other.gemm.time_us["fp8"]
    assert sum("no operators" in note for note in found.notes) == 1


def test_ranks_in_one_file_are_told_apart_by_their_processes(tmp_path: Path) -> None:
    known = report_of("ddp_one_rank_bf16")
    export = Export(tmp_path / "node.sqlite")
    for rank, recorded in enumerate(recordings(known.name)):
        kernels = [(*k[:3], rank, *k[4:]) for k in recorded.kernels]
        process = 1 << 48 | (9000 - rank) << 24
        export.add(
            Recording(kernels, recorded.calls, recorded.ranges, gpu=recorded.gpu),
            process,
        )
    helper = Recording(kernels=[("void fill_kernel()", 5, 9, 0, 7, 1)])
    export.add(helper, 1 << 48 | 12345 << 24).close()
    found = inspect(tmp_path)
    assert found.verdict is known.verdict
    assert [(rank.rank, rank.source) for rank in found.ranks] == [
        (0, "node.sqlite (process 9000)"),
        (1, "node.sqlite (process 8999)"),
    ]
    assert [rank.gemm for rank in found.ranks] == [rank.gemm for rank in known.ranks]


def test_both_spellings_of_a_recorded_kernel_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    path.write_bytes(
        gzip.decompress((ROOT / "fp8_nsys" / "rank0.sqlite.gz").read_bytes())
    )
    names = sqlite3.connect(path).execute(
        "SELECT DISTINCT d.value, m.value FROM CUPTI_ACTIVITY_KIND_KERNEL k "
        "JOIN StringIds d ON d.id = k.demangledName JOIN StringIds m ON m.id = k.mangledName"
    )
    found = [(decode(one), decode(other)) for one, other in names]
    assert len(found) == 62
    for one, other in found:
        assert (one.role, one.precision) == (other.role, other.precision), one.name
        assert (one.precision is Precision.FP8) is (
            "nvjet" in one.name or "float8" in one.name
        )


def test_layers_by_name_are_found_from_ranges(tmp_path: Path) -> None:
    (trace,) = (ROOT / "fp8_layers_compiled" / "layers").glob("*.json.gz")
    known = read_trace(trace, layers=True)
    found = read_trace(write_nsys(record(trace), tmp_path), layers=True)
    assert (found.layers, found.kernels.layer) == (known.layers, known.kernels.layer)
