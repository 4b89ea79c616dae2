"""Measure the rates of this GPU by matrix size, as `inspect` reads them for its estimates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fp8verify.analysis.rates import VARIABLE, RateTable
from fp8verify.files import writing
from fp8verify.preflight.checks import Check
from fp8verify.preflight.machine import answer_of, answers_in
from fp8verify.preflight.tables import said

# Sides of the matrices of models, as powers of two and the steps between them.
SIDES = (128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
TIMEOUT_S = 900.0
_WORKER = Path(__file__).parent / "rates_worker.py"


def save_rates(program: str, file: str | Path) -> Iterator[Check]:
    """Measure the rates of the GPU, and write them to a file.

    Args:
        program: the run's Python.
        file: where to write them.

    Raises:
        Fp8VerifyError: the file cannot be written.
    """
    given = json.dumps({"sides": SIDES})
    code, out, err = answer_of(
        program,
        str(_WORKER),
        given=given,
        timeout=TIMEOUT_S,
    )
    answers = answers_in(out)
    table = None
    if code == 0 and answers:
        table = table_of(answers)
    if table is None:
        yield said("measured/nothing", why=_why_nothing(answers, err))
        return
    with writing("the rates", Path(file)):
        Path(file).write_text(as_text(table), encoding="utf-8")
    yield said(
        "measured/rates",
        sizes=len(table.rows),
        gpu=table.gpu,
        file=file,
        variable=VARIABLE,
    )


def _why_nothing(answers: list[dict[str, Any]], err: str) -> str:
    """Say why there is no table: by the worker's own words, or its last line of errors."""
    for answer in answers:
        if "error" in answer:
            return str(answer["error"])
    lines = err.strip().splitlines()
    if lines:
        return lines[-1][:200]
    return "the measurement ended before its last size"


def table_of(answers: list[dict[str, Any]]) -> RateTable | None:
    """Return the table that the worker's answers make, None if a size is missing.

    The first answer says where it ran, each of the others has the rates of one pair of sides.
    """
    where, *sizes = answers
    if "error" in where:
        return None
    rows: dict[str, tuple[tuple[float | None, ...], ...]] = {}
    for size in sizes:
        rates = [tuple(row[1:]) for row in size["rows"]]  # without its k
        rows[f"{size['m']}x{size['n']}"] = tuple(rates)
    table = RateTable(
        gpu=where["gpu"],
        date=datetime.now(timezone.utc).date().isoformat(),
        versions={"torch": where["torch"], "cuda": where["cuda"] or ""},
        sides=SIDES,
        rows=rows,
    )
    return table if table.is_whole else None


def as_text(*tables: RateTable) -> str:
    """Return tables as JSON, with a line for each size."""
    written = []
    for table in tables:
        head = {
            "gpu": table.gpu,
            "like": list(table.like),
            "date": table.date,
            "versions": table.versions,
            "sides": list(table.sides),
        }
        lines = []
        for size, rates in table.rows.items():
            row = json.dumps(rates, separators=(",", ":"))
            lines.append(f'"{size}": {row}')
        joined = ",\n".join(lines)
        written.append(f'{json.dumps(head)[:-1]}, "rows": {{\n{joined}\n}}}}')
    return f"[{', '.join(written)}]\n"
