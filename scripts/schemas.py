"""The JSON Schemas of reports, comparisons and tables of runs, made from their types.

    python -m scripts.schemas report

prints one. `scripts/build_hook.py` puts them into the wheel. `tests/golden/schemas.txt` has their
properties, so no change of the JSON goes unseen.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from typing import Any

import msgspec

from fp8verify.model.comparison import Comparison, RunTable
from fp8verify.model.report import Judged, Report

# The documents that have a schema, by the name of its file.
DOCUMENTS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "report": (Report, "Report of fp8verify"),
    "comparison": (Comparison, "Comparison of fp8verify"),
    "run_table": (RunTable, "Table of runs of fp8verify"),
}


def schema(document: str = "report") -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a document.

    Properties are described by the "Attributes" of their struct's docstring, or of `Judged`.
    """
    kind, title = DOCUMENTS[document]
    found = msgspec.json.schema(kind)
    for definition in found["$defs"].values():
        summary, described = _parted(definition.get("description", ""))
        described = _parted(Judged.__doc__ or "")[1] | described
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
    sys.stdout.write(
        json.dumps(schema(sys.argv[1]), indent=2, ensure_ascii=False) + "\n"
    )
