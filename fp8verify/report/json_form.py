"""The report as one JSON document, and the schema it keeps to."""

from __future__ import annotations

from importlib import resources
from typing import Any

import msgspec

from fp8verify.model import Report


def to_json(report: msgspec.Struct) -> str:
    """Return a report or comparison as indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that ships with the package."""
    text = resources.files("fp8verify.report").joinpath("report.schema.json").read_bytes()
    loaded: dict[str, Any] = msgspec.json.decode(text)
    return loaded


def generate_schema() -> dict[str, Any]:
    """Return the JSON Schema that the types of `fp8verify.model` give; the shipped file is it."""
    found = msgspec.json.schema(Report)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Report of fp8verify, schema version 1",
    }
    return {**head, **found}
