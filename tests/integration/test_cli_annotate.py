"""`fp8verify annotate`: labels are added, and nothing else changes."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fp8verify import Report, inspect
from fp8verify.annotate import annotate
from tests.captures import ROOT
from tests.command_line import fp8verify, refused
from tests.hand_built import BF16, BF16_KERNEL, FP8, FP8_KERNEL, TraceBuilder

CAPTURES = (
    "fp8_compiled",
    "bf16_te_no_autocast",
    "fp8_cudagraphs",
    "fp8_experts",
    "fp8_nanochat",
)
TRACES = [ROOT / name / "rank0.json.gz" for name in CAPTURES]


def _load(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    found: dict[str, Any] = json.loads(
        gzip.decompress(data) if path.suffix == ".gz" else data
    )
    return found


def _labels(events: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
    """Count the labels of GEMMs; what adds up the parts of a split one has its label too."""
    gemms = (one for one in events if "splitKreduce" not in one.get("name", ""))
    found = (event.get("args", {}).get("fp8verify") for event in gemms)
    return Counter((label["precision"], label["leg"]) for label in found if label)


def _without_labels(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ours = [event for event in events if event.get("cat") != "fp8verify"]
    for event in ours:
        if "fp8verify" in event.get("args", {}):
            del event["args"]["fp8verify"]
    return ours


def _figures(report: Report) -> Any:
    rank = report.ranks[0]
    return rank.gemm, rank.gpu_time_us, rank.legs, rank.kernels, rank.steps


@pytest.mark.parametrize("trace", TRACES, ids=lambda path: path.parent.name)
def test_every_gemm_is_labelled_and_nothing_else_changes(
    trace: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"  # how it is packed has a test of its own
    annotate(trace, out)
    report = inspect(trace)
    found, original = _load(out), _load(trace)
    legs = {
        (precision, leg.leg): count
        for leg in report.legs
        for precision, count in leg.kernels.items()
    }
    assert _labels(found["traceEvents"]) == legs
    found["traceEvents"] = _without_labels(found["traceEvents"])
    assert found == original
    assert _figures(inspect(out)) == _figures(report)


@pytest.mark.parametrize("indent", [None, 2, 4])
@pytest.mark.parametrize("layout", ["object", "list", "sorted", "metadata last"])
def test_every_layout_of_the_file_is_kept(
    indent: int | None, layout: str, tmp_path: Path
) -> None:
    build = (
        TraceBuilder()
        .step(1)
        .linear(64, 32, 16, fp8=True)
        .linear(64, 32, 32, fp8=False)
    )
    document: Any = build.document()
    if layout == "list":
        document = document["traceEvents"]
    elif layout == "metadata last":
        document = {key: document[key] for key in reversed(document)}
    path, out = tmp_path / "trace.json", tmp_path / "out.json"
    path.write_text(json.dumps(document, indent=indent, sort_keys=layout == "sorted"))
    assert annotate(path, out).counts == {"fp8": 3, "bf16": 3}
    found = json.loads(out.read_text())
    events = found if layout == "list" else found["traceEvents"]
    assert sum(_labels(events).values()) == 6
    original = document if layout == "list" else document["traceEvents"]
    assert _without_labels(events) == original


def test_the_precision_track_says_when_fp8_ran(tmp_path: Path) -> None:
    build = TraceBuilder().launch(FP8_KERNEL, types=(FP8, FP8), us=30)
    build.launch(BF16_KERNEL, types=(BF16, BF16), us=10)
    path, out = build.write(tmp_path / "trace.json"), tmp_path / "out.json"
    annotate(path, out)
    ours = [
        event for event in _load(out)["traceEvents"] if event.get("cat") == "fp8verify"
    ]
    title, first, *_ = ours
    assert title["args"]["name"] == "stream 7: GEMM precision"
    kernel = next(event for event in build.events if event["name"] == FP8_KERNEL)
    assert (first["ts"], first["dur"], first["pid"]) == (kernel["ts"], 30, 0)
    assert [event["name"] for event in ours if event["ph"] == "X"] == [
        "fp8 fprop",
        "bf16 fprop",
    ]


def test_arguments_that_are_empty_or_missing_get_labels(tmp_path: Path) -> None:
    build = TraceBuilder().launch(FP8_KERNEL).launch(FP8_KERNEL)
    document = build.document()
    first, second = (
        event for event in document["traceEvents"] if event.get("cat") == "kernel"
    )
    first["args"] = {}
    del second["args"]
    path, out = tmp_path / "trace.json", tmp_path / "out.json"
    path.write_text(json.dumps(document))
    assert annotate(path, out).counts == {"fp8": 2}
    labels = [e["args"] for e in _load(out)["traceEvents"] if e.get("cat") == "kernel"]
    assert labels == [{"fp8verify": {"precision": "fp8", "leg": "unknown"}}] * 2


def test_damage_is_left_out_and_the_kernels_after_it_are_labelled(
    tmp_path: Path,
) -> None:
    build = TraceBuilder().linear(64, 32, 16, fp8=True).linear(64, 32, 32, fp8=False)
    text = json.dumps(build.document(), indent=2)
    broken = text.replace(
        f'"name": "{FP8_KERNEL}"', f'"name": "{FP8_KERNEL[:20]}"quoted""', 1
    )
    path, out = tmp_path / "trace.json", tmp_path / "out.json"
    cut = broken[: broken.rindex("Record Window End")]
    path.write_text(cut)
    assert annotate(path, out).counts == {"fp8": 2, "bf16": 3}
    assert sum(_labels(_load(out)["traceEvents"]).values()) == 5
    assert '"quoted"' not in out.read_text()


def test_a_large_trace_is_labelled_across_the_blocks_that_are_read(
    tmp_path: Path,
) -> None:
    build = TraceBuilder()
    for place in range(1500):
        build.launch(
            FP8_KERNEL if place % 3 else BF16_KERNEL,
            us=1 + place % 7,
            parents=("x" * 900,),
        )
    path, out = build.write(tmp_path / "trace.json"), tmp_path / "out.json"
    assert path.stat().st_size > 2 << 20
    assert annotate(path, out).counts == {"fp8": 1000, "bf16": 500}
    for event in _load(out)["traceEvents"]:
        if event.get("cat") == "kernel":
            wanted = "fp8" if event["name"] == FP8_KERNEL else "bf16"
            assert event["args"]["fp8verify"]["precision"] == wanted


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".json.zst"])
def test_the_suffix_says_how_the_new_file_is_packed(
    suffix: str, tmp_path: Path
) -> None:
    magic = {".json": b"{", ".json.gz": b"\x1f\x8b", ".json.zst": b"\x28\xb5"}[suffix]
    if suffix == ".json.zst":
        pytest.importorskip("zstandard")
    out = tmp_path / f"out{suffix}"
    annotate(ROOT / "fp8_experts" / "rank0.json.gz", out)
    assert out.read_bytes().lstrip().startswith(magic)
    assert inspect(out).gemm == inspect(ROOT / "fp8_experts").gemm
    assert list(tmp_path.iterdir()) == [out]


def test_the_command_says_what_it_labelled(tmp_path: Path) -> None:
    out = tmp_path / "out.json.gz"
    done = fp8verify("annotate", ROOT / "fp8_rowwise_gw_hp", "-o", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{out}: 135 GEMM kernels labeled (90 fp8, 45 bf16)\n"


@pytest.mark.parametrize(
    ("given", "out"),
    [
        (ROOT / "ddp_one_rank_bf16", "out.json"),  # a folder
        ("trace.json", "trace.json"),
        ("trace.json", "missing/out.json"),
        ("text.json", "out.json"),
    ],
)
def test_bad_use_gets_two_lines_and_no_file(
    given: Path | str, out: str, tmp_path: Path
) -> None:
    source = TraceBuilder().launch(FP8_KERNEL).write(tmp_path / "trace.json")
    (tmp_path / "text.json").write_text("[1, 2]")
    before = source.read_bytes()
    refused(fp8verify("annotate", given, "-o", out, cwd=tmp_path))
    assert source.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "text.json",
        "trace.json",
    ]
