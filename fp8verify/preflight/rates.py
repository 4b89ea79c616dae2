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
from fp8verify.preflight.machine import answer_of
from fp8verify.preflight.tables import said

# Sides of the matrices of models, as powers of two and the steps between them.
SIDES = (128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
TIMEOUT_S = 900.0
_WORKER = Path(__file__).parent / "rates_worker.py"
_MARK = "fp8verify: "


def save_rates(program: str, file: str | Path) -> Iterator[Check]:
    """Measure the rates of the GPU, and write them to a file.

    Args:
        program: the run's Python.
        file: where to write them.

    Raises:
        Fp8VerifyError: the file cannot be written.
    """
    given = json.dumps({"sides": SIDES})
    code, out, err = answer_of(program, str(_WORKER), given=given, timeout=TIMEOUT_S)
    lines = [line for line in out.splitlines() if line.startswith(_MARK)]
    answers = [json.loads(line.removeprefix(_MARK)) for line in lines]
    if code or not answers or "error" in answers[0]:
        last = (err.strip().splitlines() or ["it printed nothing"])[-1]
        if answers and "error" in answers[0]:
            why = answers[0]["error"]
        else:
            why = last[:200]
        yield said("measured/nothing", why=why)
        return
    table = table_of(answers)
    with writing("the rates", Path(file)):
        Path(file).write_text(as_text(table), encoding="utf-8")
    yield said(
        "measured/rates",
        sizes=len(table.rows),
        gpu=table.gpu,
        file=file,
        variable=VARIABLE,
    )


def table_of(answers: list[dict[str, Any]]) -> RateTable:
    """Return the table that the worker's answers make: where it ran, then a row for each size."""
    where, *sizes = answers
    return RateTable(
        gpu=where["gpu"],
        date=datetime.now(timezone.utc).date().isoformat(),
        versions={"torch": where["torch"], "cuda": where["cuda"] or ""},
        sides=SIDES,
        rows={
            f"{size['m']}x{size['n']}": tuple(tuple(row[1:]) for row in size["rows"])
            for size in sizes
        },
    )


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
        rows = [
            f'"{size}": {json.dumps(rows, separators=(",", ":"))}'
            for size, rows in table.rows.items()
        ]
        joined = ",\n".join(rows)
        written.append(f'{json.dumps(head)[:-1]}, "rows": {{\n{joined}\n}}}}')
    return f"[{', '.join(written)}]\n"
