"""Tables that are wide, endless, nested or in mixed encodings: read or refused, never a traceback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from fp8verify import inspect
from fp8verify.errors import InputError
from fp8verify.terms import Verdict
from fp8verify.trace.kernel_table import lines as table_lines
from fp8verify.trace.kernel_table import table as one_table
from fp8verify.trace.kernel_table.table import Fit, Table

FP8 = "nvjet_sm90_qqtst_128x128_128x6_2x1_v_bz_coopA_algo2_TNT"
BF16 = "nvjet_sm90_tst_128x64_64x8_1x2_h_bz_TNT"
Rows = Sequence[Sequence[object]]


def _separated(sign: str) -> Callable[[Rows], str]:
    def write(rows: Rows) -> str:
        lines = [("kernel", "total_ms", "calls"), *rows]
        return "".join(sign.join(map(str, row)) + "\n" for row in lines)

    return write


def _markdown(rows: Rows) -> str:
    head = "| kernel | ms | calls |\n| --- | ---: | ---: |\n"
    return head + "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


def _aligned(rows: Rows) -> str:
    head = f"{'Name':60}  {'Self CUDA':>12}  {'# Calls':>8}\n{'-' * 60}  {'-' * 12}  {'-' * 8}\n"
    lines = (f"{row[0]!s:60}  {row[1]!s:>10}ms  {row[2]!s:>8}\n" for row in rows)
    return head + "".join(lines)


FORMS = {
    "csv": _separated(","),
    "tsv": _separated("\t"),
    "md": _markdown,
    "txt": _aligned,
}


def _names(count: int) -> Rows:
    return [(f"k{number}_{FP8}", number, 1) for number in range(count)]


ROWS: dict[str, Rows] = {
    "digits": [(FP8, "9" * 4000, 1), (BF16, 1, 1)],
    "exponents": [(FP8, "1e999999", 1), (BF16, "1e-999999", 1)],
    "not numbers": [(FP8, "nan", "nan"), (BF16, "inf", "-inf")],
    "negative": [(FP8, -5, -5), (BF16, 1, 1)],
    "a long name": [("k" * 300_000, 1, 1), (FP8, 1, 1)],
    "nested names": [("void " + "a<" * 5000 + ">" * 5000, 1, 1), (FP8, 1, 1)],
    "pipes": [(FP8 + "|" * 50_000, 1, 1), (BF16, 1, 1)],
    "quotes": [('"' * 20_001 + FP8, 1, 1), (BF16, 1, 1)],
    "nulls": [(FP8 + "\0" * 5000, "1\0", "2"), (BF16, 1, 1)],
    "other digits": [(FP8, "\uff11\uff12", 1), (BF16, "\u0663", 1)],
    "signs of percent": [(FP8, "%" * 9000, 1), (BF16, "12%%", 1)],
    "many names": _names(600),
    "wide": [(FP8, *range(6000)), (BF16, *range(6000))],
    "ragged": [(FP8, *["1"] * width) for width in range(2, 400)],
    "escapes": [("\x1b[31m" * 5000 + FP8, 1, 1), (BF16, 1, 1)],
    "zero": [(FP8, 0, 0), (BF16, 0, 0)],
}
SOUND = FORMS["csv"]([(FP8, 3.5, 10), (BF16, 2.5, 10)])
FILES: dict[str, bytes] = {
    "utf-16": SOUND.encode("utf-16"),
    "utf-32": SOUND.encode("utf-32"),
    "two encodings": SOUND.encode() + SOUND.encode("utf-16-le"),
    "no UTF-8": SOUND.encode() + b"\xff\xfe\xe9,1,1\n",
    "carriage returns": SOUND.replace("\n", "\r").encode(),
    "one endless row": f"kernel,total_ms\n{(FP8 + ',1,') * 50_000}".encode(),
    "empty cells": b"| " * 200_000,
    "rules alone": b"| --- | ---: |\n" * 20_000,
    "nested tables": b"<table>" * 20_000 + SOUND.encode(),
    "headings alone": b"kernel,total_ms,calls\n" * 10_000,
    "many headings": ",".join(f"ms{n}" for n in range(20_000)).encode(),
    "blank lines": b"\n" * 200_000 + SOUND.encode(),
    "an open quote": f'kernel,ms\n"{FP8},1\n'.encode() * 5000,
    "noise": b"kernel ms\n" + bytes(range(256)) * 400,
}


def _verdict_or_error(path: Path) -> Verdict | InputError:
    try:
        return inspect(path).verdict
    except InputError as error:
        return error


def _is_told(found: Verdict | InputError) -> bool:
    """Whether a file was refused in two lines, or is not ACTIVE: it may be cut."""
    if isinstance(found, InputError):
        return bool(found.hint) and "\n" not in found.fact
    return found is not Verdict.ACTIVE


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", ROWS)
def test_rows_that_nobody_would_print(
    tmp_path: Path, form: str, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_table, "MOST_NAMES", 300)
    path = tmp_path / f"table.{form}"
    path.write_text(FORMS[form](ROWS[rows]), encoding="utf-8")
    assert _is_told(_verdict_or_error(path))


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_hardly_tables(tmp_path: Path, name: str) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(FILES[name])
    assert _is_told(_verdict_or_error(path))


@pytest.mark.parametrize("taken_apart", [10, 500])
def test_more_kernels_than_a_run_has_are_left_out(
    taken_apart: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_table, "MOST_NAMES", 300)
    monkeypatch.setattr(table_lines, "_MOST_TAKEN_APART", taken_apart)
    path = tmp_path / "table.csv"
    rows = _names(600)
    path.write_text(FORMS["csv"](rows))
    report = inspect(path)
    assert report.verdict is Verdict.INCONCLUSIVE
    (health,) = (rank.health for rank in report.ranks)
    left_out = len(rows) - 300
    assert health.skipped_events == left_out
    assert health.notes[0].startswith(f"{left_out:,} of its rows are left out")


def test_a_remark_behind_a_name_in_markdown_is_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "table.md"
    rows = [("`ck::moe_mxgemm` (gate+up)", 48.2, 464), (f"`{BF16}` (head)", 3.0, 8)]
    path.write_text(FORMS["md"](rows))
    (rank,) = inspect(path).ranks
    assert {row.name for row in rank.kernels} == {"ck::moe_mxgemm", BF16}
    assert all(row.role.is_gemm for row in rank.kernels)


def _read(path: Path) -> None:
    """Read a table to its end, whatever is in it."""
    with suppress(InputError):
        inspect(path)


@pytest.mark.parametrize("form", FORMS)
def test_the_first_kernel_ends_the_look_at_a_table(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"table.{form}"
    path.write_text(FORMS[form]([(FP8, 1.5, 1)] * 500))
    rows = 0
    add = Table.add

    def counted(table: Table, cells: Sequence[str]) -> Fit:
        nonlocal rows
        rows += 1
        return add(table, cells)

    monkeypatch.setattr(Table, "add", counted)
    _read(path)
    assert 500 < rows < 510


def test_more_headings_than_anybody_prints_count_as_unread(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    heading = "kernel,total_ms,calls\n"
    path.write_text(f"{heading * 10_100}{FP8},1,1\n")
    (rank,) = inspect(path).ranks
    assert [row.name for row in rank.kernels] == [FP8]
    assert rank.health.skipped_events == 100
