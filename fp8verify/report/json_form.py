"""The report as one JSON document, and the schema it keeps to."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import msgspec

from fp8verify.report.model import Report
from fp8verify.report.model.comparison import Comparison
from fp8verify.report.model.run_table import RunTable


def to_json(report: msgspec.Struct) -> str:
    """Return a report or comparison as indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"


# The documents that have a schema, by the name of its file.
_DOCUMENTS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "report": (Report, "Report of fp8verify"),
    "comparison": (Comparison, "Comparison of fp8verify"),
    "run_table": (RunTable, "Table of runs of fp8verify"),
}
DOCUMENTS = tuple(_DOCUMENTS)


def schema(document: str = "report") -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that ships with the package.

    Args:
        document: one of `DOCUMENTS`.
    """
    name = f"{document}.schema.json"
    text = Path(__file__).with_name(name).read_bytes()
    loaded: dict[str, Any] = msgspec.json.decode(text)
    return loaded


def generate_schema(document: str = "report") -> dict[str, Any]:
    """Return the JSON Schema that the types of `report.model` give; the shipped file is it.

    Properties are described by the "Attributes" of their struct's docstring.
    """
    kind, title = _DOCUMENTS[document]
    found = msgspec.json.schema(kind)
    for definition in found["$defs"].values():
        summary, described = _parted(definition.get("description", ""))
        definition["description"] = summary
        for name, entry in definition.get("properties", {}).items():
            if name in described:
                entry["description"] = described[name]
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
    }
    return {**head, **found}


def _parted(docstring: str) -> tuple[str, dict[str, str]]:
    """Part a docstring into its text and what it says of each attribute, each on one line."""
    text, _, attributes = inspect.cleandoc(docstring).partition("Attributes:")
    found = re.finditer(r"^    (\w+): (.*(?:\n      .*)*)", attributes, re.MULTILINE)
    described = {match[1]: " ".join(match[2].split()) for match in found}
    return " ".join(text.split()), described
