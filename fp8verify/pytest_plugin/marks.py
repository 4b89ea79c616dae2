"""What the mark `fp8` means: demands on a report, and which of them it does not meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

import pytest

from fp8verify.report.model import Leg, Report
from fp8verify.text import listed
from fp8verify.verdict.assertions import (
    assert_fp8_active,
    assert_gemm_precision,
    assert_no_regression,
)
from fp8verify.verdict.baseline import Baseline, layer_states

_LOW_PRECISION = ("fp8", "mxfp8")
_SHOWN = 5


class Demands(NamedTuple):
    """The arguments of the mark.

    Attributes:
        min_share: the FP8 share of GEMM time; None asks for --fp8-min-share.
        forbid_legs: legs of which no GEMM may run in high precision.
        layers: patterns of module names, as fnmatch reads them; all that match must be in FP8.
    """

    min_share: float | None = None
    forbid_legs: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()


def demands_of(item: pytest.Item) -> Demands:
    """Read the marks of a test, of its class and of its module; the closest one decides.

    Raises:
        pytest.UsageError: an argument is unknown or means nothing.
    """
    given: dict[str, object] = {}
    for mark in reversed(list(item.iter_markers("fp8"))):
        if mark.args or not set(mark.kwargs) <= set(Demands._fields):
            raise pytest.UsageError(
                f"{item.nodeid}: the mark fp8 takes {', '.join(Demands._fields)} by name"
            )
        given |= mark.kwargs
    share = given.get("min_share")
    if share is not None and not (isinstance(share, (int, float)) and 0 <= share <= 1):
        raise pytest.UsageError(f"{item.nodeid}: min_share={share!r} is not between 0 and 1")
    legs = _names(given.get("forbid_legs"))
    unknown = set(legs) - {leg.value for leg in Leg}
    if unknown:
        raise pytest.UsageError(f"{item.nodeid}: there is no leg {', '.join(sorted(unknown))}")
    return Demands(share, legs, _names(given.get("layers")))


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(map(str, value)) if isinstance(value, Iterable) else ()


def unmet(
    report: Report, demands: Demands, min_share: float, baseline: Baseline | None
) -> list[str]:
    """Return what a report does not meet, a message each."""
    found = [_complaint(assert_fp8_active, report, min_share=min_share)]
    found += [
        _complaint(assert_gemm_precision, report, _LOW_PRECISION, leg=leg)
        for leg in demands.forbid_legs
    ]
    found += [_layers_not_fp8(report, pattern) for pattern in demands.layers]
    if baseline is not None:
        found.append(_complaint(assert_no_regression, report, baseline))
    return [message for message in found if message is not None]


def _complaint(check: Callable[..., None], *args: object, **options: object) -> str | None:
    try:
        check(*args, **options)
    except AssertionError as error:
        return str(error)
    return None


def _layers_not_fp8(report: Report, pattern: str) -> str | None:
    states = layer_states(report)
    if not states:
        return f"layers={pattern!r}: this capture has no module census"
    matching = {name: state for name, state in states.items() if fnmatchcase(name, pattern)}
    if not matching:
        return f"layers={pattern!r}: no linear layer of the model is called like that"
    others = [f"{name} ({state})" for name, state in matching.items() if state != "fp8"]
    if not others:
        return None
    return (
        f"layers={pattern!r}: {len(others)} of {len(matching)} layers are not in FP8: "
        f"{listed(others, _SHOWN)}"
    )
