"""Real captures, damaged at random: no traceback, no hang, bounded memory, no false FP8.

FP8VERIFY_FUZZ_EXAMPLES sets how many damages each test tries.
"""

from __future__ import annotations

import gzip
import os
import tracemalloc
from datetime import timedelta
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fp8verify import Report, Verdict, inspect
from fp8verify.errors import InputError
from fp8verify.report.json_form import to_json
from fp8verify.report.text import to_text

TRACES = Path(__file__).parents[2] / "traces"
BF16 = ("bf16_compiled", "bf16_filter_rejects_all", "bf16_te_no_autocast")
FP8 = ("fp8_cudagraphs", "fp8_te_delayed")
MAX_PEAK = 64 << 20
HANG = timedelta(seconds=60)

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the captures are not here")
fuzz = settings(
    max_examples=int(os.environ.get("FP8VERIFY_FUZZ_EXAMPLES", "20")),
    deadline=HANG,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@cache
def capture(name: str, packed: bool) -> bytes:
    raw = (TRACES / name / "rank0.json.gz").read_bytes()
    return raw if packed else gzip.decompress(raw)


@st.composite
def damaged(draw: st.DrawFn, names: tuple[str, ...], *, packed: bool) -> bytes:
    """Cut, flip, remove, repeat and splice pieces of captures, several times over."""
    data = capture(draw(st.sampled_from(names)), packed)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        size = draw(st.sampled_from([1, 2, 40, 5_000, 200_000]))
        kind = draw(st.sampled_from(["cut", "flip", "remove", "repeat", "splice", "junk"]))
        if kind == "cut":
            data = data[: max(at, len(data) // 4)]
        elif kind == "flip":
            data = data[:at] + draw(st.binary(min_size=1, max_size=8)) + data[at + 1 :]
        elif kind == "remove":
            data = data[:at] + data[at + size :]
        elif kind == "repeat":
            data = data[:at] + data[at : at + size] * 2 + data[at + size :]
        elif kind == "splice":
            other = capture(draw(st.sampled_from(names)), packed)
            start = draw(st.integers(0, len(other) - 1))
            data = data[:at] + other[start : start + size] + data[at:]
        else:
            junk = st.sampled_from(
                [b'"', b"{", b"}", b"[", b"]", b",", b"\\", b"\0", b"\xff", b"9"]
            )
            data = data[:at] + draw(junk) * min(size, 5_000) + data[at:]
    return data


def examine(path: Path, data: bytes) -> Report | None:
    """Inspect `data` as a user would, and print what comes of it."""
    path.write_bytes(data)
    tracemalloc.start()
    try:
        report = inspect(path)
        assert to_json(report)
        assert to_text(report)
    except InputError:
        return None
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < MAX_PEAK
    return report


@pytest.mark.parametrize("packed", [False, True])
@fuzz
@given(data=st.data())
def test_a_damaged_bf16_run_is_never_fp8(packed: bool, data: st.DataObject, tmp_path: Path) -> None:
    report = examine(tmp_path / "trace", data.draw(damaged(BF16, packed=packed)))
    if report is None:
        return
    assert report.verdict not in (Verdict.ACTIVE, Verdict.PARTIAL)
    health = report.ranks[0].health
    if health.truncated or health.skipped_events:
        assert report.verdict is not Verdict.INACTIVE


@pytest.mark.parametrize("packed", [False, True])
@fuzz
@given(data=st.data())
def test_a_damaged_fp8_run_is_never_called_inactive(
    packed: bool, data: st.DataObject, tmp_path: Path
) -> None:
    report = examine(tmp_path / "trace", data.draw(damaged(FP8, packed=packed)))
    if report is not None and not report.gemm.kernels["fp8"]:
        assert report.verdict in (Verdict.INCONCLUSIVE, Verdict.EMULATED)


@fuzz
@given(data=damaged(BF16, packed=False))
def test_a_damaged_rank_among_others_costs_only_itself(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(capture("bf16_compiled", False))
    (tmp_path / "rank1.json").write_bytes(data)
    report = inspect(tmp_path)
    assert report.verdict not in (Verdict.ACTIVE, Verdict.PARTIAL)
    assert report.ranks[0].gemm.kernels["bf16"] > 0
