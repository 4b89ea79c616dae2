"""Events that msgspec refuses: NaN, raw control characters, invalid UTF-8, text for numbers."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec

from fp8verify.trace.kineto import events as ev

_FIELDS = ("cat", "name", "pid", "tid", "ts", "dur", "args")
as_json = msgspec.json.Encoder(decimal_format="number").encode


def read_leniently(data: bytes) -> dict[str, Any]:
    """Return the fields of an event that are decoded, without those that are null or were NaN.

    Raises:
        ValueError: no event.
        RecursionError: it is nested too deep.
    """
    event = _loads(data)
    if not isinstance(event, dict):
        raise ValueError("not an event")
    kept = {key: event[key] for key in _FIELDS if event.get(key) is not None}
    if isinstance(kept.get("args"), dict):
        args = kept["args"]
        kept["args"] = {key: args[key] for key in ev.ARGS if args.get(key) is not None}
    return kept


def _loads(data: bytes) -> Any:
    return json.loads(
        data.decode("utf-8", "replace"),
        strict=False,
        parse_float=Decimal,
        parse_constant=lambda _: None,
    )
