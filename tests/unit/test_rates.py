"""The measured rates: what ships, what lies between, what a user measures, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fp8verify.analysis.kinds import GemmShape
from fp8verify.analysis.rates import COLUMNS, VARIABLE, RateTable, rates_of
from fp8verify.errors import InputError
from fp8verify.preflight import doctor
from fp8verify.preflight import rates as measuring
from tests.hand_built import present

SIDES = (128, 512)
ROW = {128: (10.0, 20.0, 15.0), 512: (40.0, 80.0, None)}


def small(gpu: str = "NVIDIA H20") -> RateTable:
    rows = {
        f"{m}x{n}": tuple(ROW[k] for k in SIDES) for m in SIDES for n in SIDES if m <= n
    }
    return RateTable(gpu=gpu, date="2026-01-01", versions={}, sides=SIDES, rows=rows)


def test_the_shipped_table_says_where_and_when_it_was_measured() -> None:
    table = present(rates_of("NVIDIA H200"))
    assert table.gpu == "NVIDIA H200"
    assert table.date.startswith("20")
    assert {"torch", "cuda"} <= table.versions.keys()
    assert rates_of("NVIDIA H100 80GB HBM3") is table
    assert rates_of("NVIDIA A100-SXM4-80GB") is None


def test_large_gemms_run_at_the_rates_that_captures_show() -> None:
    """In traces/bf16_width4096 and traces/bf16_compiled."""
    table = present(rates_of("NVIDIA H200"))
    for size, seen in [((8192, 14336, 4096), 751), ((8192, 2048, 8192), 825)]:
        assert table.tflops(GemmShape(1, *size)) == pytest.approx(seen, rel=0.1)


def test_between_measured_sizes_rates_follow_logarithms() -> None:
    table = small()
    assert table.tflops(GemmShape(1, 512, 128, 128)) == pytest.approx(10)
    assert table.tflops(GemmShape(1, 128, 128, 256)) == pytest.approx(20)
    assert table.tflops(GemmShape(1, 9999, 512, 512)) == pytest.approx(40)
    assert table.tflops(GemmShape(1, 128, 128, 512), COLUMNS[2]) is None
    # A tile is computed whole: a quarter of the rows take as long.
    whole = present(table.time_ns(GemmShape(1, 128, 128, 128)))
    assert table.time_ns(GemmShape(1, 32, 128, 128)) == pytest.approx(whole)
    # A batch is one product of more rows.
    assert table.tflops(GemmShape(4, 128, 512, 512)) == pytest.approx(40)


def test_a_table_of_the_users_counts_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rates.json"
    file.write_text(measuring.as_text(small("NVIDIA H200"), small()))
    monkeypatch.setenv(VARIABLE, str(file))
    assert present(rates_of("NVIDIA H200")).sides == SIDES
    assert present(rates_of("NVIDIA H20")).rows == small().rows


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '[{"gpu": "x"}]', "[{}]", "\x00", '["']
)
def test_what_is_no_table_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rates.json"
    file.write_text(text)
    monkeypatch.setenv(VARIABLE, str(file))
    with pytest.raises(InputError, match=r"rates\.json is no table of rates"):
        rates_of("NVIDIA H200")


def test_a_table_with_a_missing_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = json.loads(measuring.as_text(small()))
    del document[0]["rows"]["128x512"]
    file = tmp_path / "cut.json"
    file.write_text(json.dumps(document))
    monkeypatch.setenv(VARIABLE, str(file))
    with pytest.raises(InputError, match="a size is missing"):
        rates_of("NVIDIA H20")


@pytest.mark.parametrize("rate", ["-1.0", "1e999", '"fast"', "NaN"])
def test_rates_that_are_none_are_refused(
    rate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "odd.json"
    file.write_text(measuring.as_text(small()).replace("10.0", rate))
    monkeypatch.setenv(VARIABLE, str(file))
    with pytest.raises(InputError, match=r"odd\.json is no table of rates"):
        rates_of("NVIDIA H20")


WHERE = {"gpu": "NVIDIA H20", "torch": "2.11.0", "cuda": "13.0"}


def answered() -> list[str]:
    """Return what the measuring process prints, as on a GPU."""
    answers: list[dict[str, object]] = [dict(WHERE)]
    for m in measuring.SIDES:
        for n in measuring.SIDES:
            if m <= n:
                rows = [[k, 1.0, 2.0, None] for k in measuring.SIDES]
                answers.append({"m": m, "n": n, "rows": rows})
    return [f"fp8verify: {json.dumps(answer)}\n" for answer in answers]


def answering(monkeypatch: pytest.MonkeyPatch, *out: str, code: int = 0) -> None:
    text = "".join(("noise\n", *out))
    monkeypatch.setattr(measuring, "answer_of", lambda *_, **__: (code, text, ""))


def test_measure_writes_the_rates_of_the_gpu_without_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, *answered())
    file = tmp_path / "mine.json"
    report = doctor(measure=True, save_rates=file, gpus=["H20"])
    (check,) = [check for check in report.checks if check.code == "measured"]
    assert check.status.value == "ok"
    (written,) = json.loads(file.read_text())
    assert written["gpu"] == "NVIDIA H20"
    assert written["date"].startswith("20")
    assert written["versions"] == {"torch": "2.11.0", "cuda": "13.0"}


@pytest.mark.parametrize("lost", [1, 40])
def test_a_measurement_that_ended_early_writes_nothing(
    lost: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, *answered()[:-lost])
    file = tmp_path / "mine.json"
    (check,) = measuring.save_rates("python3", file)
    assert check.status.value == "skipped"
    assert "ended before its last size" in check.message
    assert not file.exists()


def test_the_doctor_writes_what_inspect_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, *answered())
    file = tmp_path / "mine.json"
    (check,) = measuring.save_rates("python3", file)
    assert (check.code, check.status.value) == ("measured", "ok")
    assert VARIABLE in check.hint
    monkeypatch.setenv(VARIABLE, str(file))
    assert present(rates_of("NVIDIA H20")).tflops(
        GemmShape(1, 512, 512, 512)
    ) == pytest.approx(1)


def test_without_a_gpu_nothing_is_written(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    (check,) = measuring.save_rates("false", file)
    assert check.status.value == "skipped"
    assert not file.exists()
