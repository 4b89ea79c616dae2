"""Write the JSON Schemas of reports, comparisons and tables of runs from their types.

    python -m scripts.schemas

`tests/golden/test_reports.py` compares what is committed with the types.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import msgspec

import fp8verify
from fp8verify.report.model.comparison import Comparison, RunTable
from fp8verify.report.model.report import Report

FOLDER = Path(fp8verify.__file__).parent / "report"
# The documents that have a schema, by the name of its file.
DOCUMENTS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "report": (Report, "Report of fp8verify"),
    "comparison": (Comparison, "Comparison of fp8verify"),
    "run_table": (RunTable, "Table of runs of fp8verify"),
}


def schema(document: str = "report") -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that ships with the package."""
    text = (FOLDER / f"{document}.schema.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def generate_schema(document: str = "report") -> dict[str, Any]:
    """Return the JSON Schema that the types give; the shipped file is it.

    Properties are described by the "Attributes" of their struct's docstring.
    """
    kind, title = DOCUMENTS[document]
    found = msgspec.json.schema(kind)
    for definition in found["$defs"].values():
        summary, described = _parted(definition.get("description", ""))
        definition["description"] = summary
        for name, entry in definition.get("properties", {}).items():
            if name in described:
                entry["description"] = described[name]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return {**head, **found}


def _parted(docstring: str) -> tuple[str, dict[str, str]]:
    """Part a docstring into its text and its description of each attribute, each on one line."""
    text, _, attributes = inspect.cleandoc(docstring).partition("Attributes:")
    found = re.finditer(r"^    (\w+): (.*(?:\n      .*)*)", attributes, re.MULTILINE)
    described = {match[1]: " ".join(match[2].split()) for match in found}
    return " ".join(text.split()), described


if __name__ == "__main__":
    for name in DOCUMENTS:
        text = json.dumps(generate_schema(name), indent=2, ensure_ascii=False)
        (FOLDER / f"{name}.schema.json").write_text(f"{text}\n", encoding="utf-8")
