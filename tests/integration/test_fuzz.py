"""Inputs of every kind, damaged at random: no traceback, no hang, no false verdict, clean text.

Seeds are fixed, so that a failure repeats; its message has the seed. FP8VERIFY_FUZZ_SEEDS sets how
many damages each test tries; the weekly job (`.github/workflows/newest.yml`) tries many more.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from fp8verify import Report, Verdict, inspect
from fp8verify.annotate import annotate
from fp8verify.errors import Fp8VerifyError
from fp8verify.preflight.checks import report_of, to_text
from fp8verify.preflight.rules import judge
from tests.doctor_files import SOUND, facts_of
from tests.hand_built import BF16_KERNEL, TraceBuilder
from tests.other_tools import WRITERS, record
from tests.unit.test_kernel_table import ROWS, printed

zstandard = pytest.importorskip("zstandard", reason="needs the zstd extra")
SEEDS = int(os.environ.get("FP8VERIFY_FUZZ_SEEDS", "15"))
MAX_PEAK = 64 << 20
# What parsers, terminals and CI systems give a meaning to.
TOKENS = [
    *(b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\0", b"\xff", b"9", b"-", b"\n", b"'"),
    *(b"null", b"NaN", b"-Infinity", b"1e999", b"true", b"{}", b"[[[["),
    *(b'"\\ud800"', b"\xed\xa0\x80", b"$(", b"`", b"="),
    *(b"\x1b[31m", b"\xc2\x9b", b"\xe2\x80\xae", b"\xe2\x81\xa6", b"\xe2\x80\xa8", b"\x07"),
    *(b"\n::error file=x::y", b"##[error]z", b"&a", b"*a", b"<<: ", b"!!python/object:os.system"),
    *(b"18446744073709551616", b"-9223372036854775809", b"0x", b"1:30", b"${IFS}"),
]  # fmt: skip


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Cut, flip, remove, repeat, move and insert pieces, several times over."""
    for _ in range(chance.randint(1, 5)):
        at = chance.randrange(len(data) + 1)
        size = chance.choice([1, 2, 8, 40, 400])
        kind = chance.choice(
            ["cut", "flip", "remove", "repeat", "move", "token", "token"]
        )
        if kind == "cut" and chance.random() < 0.5:
            data = data[: max(at, len(data) // 4)]
        elif kind == "flip":
            data = data[:at] + chance.randbytes(chance.randint(1, 4)) + data[at + 1 :]
        elif kind == "remove":
            data = data[:at] + data[at + size :]
        elif kind == "repeat":
            data = (
                data[:at]
                + data[at : at + size] * chance.choice([2, 2, 50])
                + data[at + size :]
            )
        elif kind == "move":
            start = chance.randrange(len(data) + 1)
            data = data[:at] + data[start : start + size] + data[at:]
        elif kind == "token":
            data = (
                data[:at]
                + chance.choice(TOKENS) * chance.choice([1, 1, 1, 200])
                + data[at:]
            )
    return data


def seeds(name: str) -> Iterator[tuple[str, random.Random]]:
    for seed in range(SEEDS):
        label = f"{name} {seed}"
        yield label, random.Random(label)


def damages(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Return data damaged in as many ways as there are seeds."""
    return ((label, damaged(data, chance)) for label, chance in seeds(name))


def is_clean(text: str) -> bool:
    """Whether nothing in it steers a terminal or CI, and it can be encoded."""
    lines = text.split("\n")
    return all(line.isprintable() and not line.startswith("::") for line in lines)


def refused(error: Fp8VerifyError, label: str) -> None:
    assert error.fact, label
    assert error.hint, label


def examine(path: Path, label: str, **options: object) -> Report | None:
    """Inspect a path as a user would, and print what comes of it."""
    try:
        report = inspect(path, **options)  # type: ignore[arg-type]
    except Fp8VerifyError as error:
        return refused(error, label)
    strings = list(_strings(json.loads(report.to_json())))
    assert all(map(is_clean, strings)), (label, [s for s in strings if not is_clean(s)])
    assert is_clean(str(report.to_text())), label
    return report


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        yield from (text for one in value.values() for text in _strings(one))
    elif isinstance(value, list):
        yield from (text for one in value for text in _strings(one))


# -- traces -------------------------------------------------------------------------------------


def built(*, fp8: bool) -> TraceBuilder:
    found = TraceBuilder(rank=0, world=2)
    for step in (1, 2):
        found.step(step).linear(64, 32, 16, fp8=fp8)
    return found.launch("triton_red_fused_1", "aten::sum")


PACK: dict[str, Callable[[bytes], bytes]] = {
    "json": bytes,
    "gz": gzip.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


@cache
def source(kind: str, fp8: bool) -> bytes:
    """Return a small trace in one of the formats."""
    plain = json.dumps(built(fp8=fp8).document(), indent=1).encode()
    if kind == "table":
        rows = ROWS if fp8 else ((BF16_KERNEL, "0.000us", "285.000us", 9),)
        return printed(rows).encode()
    if kind in PACK:
        return plain
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "trace.json").write_bytes(plain)
        return WRITERS[kind](record(folder / "trace.json"), folder).read_bytes()


ENDINGS = {
    "json": "rank0.json", "gz": "rank0.json.gz", "zst": "rank0.json.zst", "nsys": "run.sqlite",
    "rocprof csv": "7_kernel_trace.csv",
    "table": "train.log",
}  # fmt: skip


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("kind", ENDINGS)
def test_damaged_traces_are_read_or_refused(
    kind: str, fp8: bool, tmp_path: Path
) -> None:
    path = tmp_path / ENDINGS[kind]
    tracemalloc.start()
    try:
        for label, chance in seeds(kind):
            pack, before = PACK.get(kind, bytes), chance.random() < 0.5
            data = source(kind, fp8)
            path.write_bytes(
                pack(damaged(data, chance)) if before else damaged(pack(data), chance)
            )
            report = examine(path, label)
            if report is None:
                continue
            health = report.ranks[0].health
            if fp8 and not report.gemm.kernels["fp8"]:
                assert (
                    report.verdict is not Verdict.INACTIVE or health.skipped_events == 0
                ), label
            elif not fp8:
                assert report.verdict not in (Verdict.ACTIVE, Verdict.PARTIAL), label
                if health.truncated or health.skipped_events:
                    assert report.verdict is not Verdict.INACTIVE, label
        assert tracemalloc.get_traced_memory()[1] < MAX_PEAK
    finally:
        tracemalloc.stop()


def test_damaged_traces_are_annotated_or_refused(tmp_path: Path) -> None:
    path, out = tmp_path / "trace.json", tmp_path / "out.json"
    for label, data in damages("annotate", source("json", True)):
        path.write_bytes(data)
        try:
            annotate(path, out)
        except Fp8VerifyError as error:
            refused(error, label)


# -- captures -----------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
LOG = """\
[titan] 2026-11-01 10:00:00 - root - INFO - Float8 training active with recipe rowwise
Swapped to Float8Linear layers with enable_fsdp_float8_all_gather=True
step: 1 loss: 10.51 grad_norm: 1.2 memory: 9.10GiB
step: 2  loss:  9.99  grad_norm:  1.1  memory:  9.10GiB
using fp8 recipe: DelayedScaling(margin=0, format=HYBRID)
WARNING: FP8 is not supported on this device, falling back to bf16
Traceback (most recent call last):
RuntimeError: CUDA error: device-side assert triggered
"""


@pytest.mark.parametrize("file", ["meta", "numerics", "log"])
def test_damaged_captures_are_read_or_refused(file: str, tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(source("json", True))
    (tmp_path / "log.txt").write_text(LOG)
    names = {
        "meta": "rank0.meta.json",
        "numerics": "rank0.numerics.json",
        "log": "log.txt",
    }
    original = LOG.encode()
    if file != "log":
        known = [
            *ROOT.glob(f"traces/*/{names[file]}"),
            *ROOT.glob(f"examples/*/*/{names[file]}"),
        ]
        original = min((path.read_bytes() for path in known), key=len)
    for label, data in damages(file, original):
        (tmp_path / names[file]).write_bytes(data)
        examine(tmp_path, label)


def test_a_damaged_rank_among_others_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(source("json", False))
    for label, data in damages("ranks", source("json", False)):
        (tmp_path / "rank1.json").write_bytes(data)
        report = examine(tmp_path, label)
        if report is not None:
            assert report.verdict not in (Verdict.ACTIVE, Verdict.PARTIAL), label
            assert report.ranks[0].gemm.kernels["bf16"] > 0, label


# -- configurations -----------------------------------------------------------------------------

CONFIGS = {
    **SOUND,
    "merged.yaml": "all: &a {fp8: true, fp8_recipe: mxfp8}\nmodel: {<<: *a, hidden_size: 64}\n",
}
SOME = ("accelerate.yaml", "megatron.sh", "torchtitan.toml", "merged.yaml")


@pytest.mark.parametrize("name", [*SOME, "zero3.json"])
def test_damaged_configurations_are_read_or_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    for label, data in damages(name, CONFIGS[name].encode()):
        path.write_bytes(data)
        try:
            found = report_of(list(judge(facts_of(str(path)))))
        except Fp8VerifyError as error:
            refused(error, label)
            continue
        assert is_clean(to_text(found)), label


# -- counters -----------------------------------------------------------------------------------
