"""Sinks by name: files, and what the packages of this folder bring."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from fp8verify.errors import Fp8VerifyError, InputError, UsageError
from fp8verify.record.live.line import Line
from fp8verify.record.live.sinks import Call, JsonLines, Sink

# What `--metrics KIND:TARGET` makes: a module of `fp8verify.integrations` and its sink, whose one
# argument is the target.
KINDS = {
    "prometheus": ("prometheus", "PrometheusSink"),
    "tensorboard": ("tensorboard", "TensorBoardSink"),
    "wandb": ("wandb", "WandbSink"),
    "mlflow": ("mlflow", "MlflowSink"),
    "otel": ("opentelemetry", "OpenTelemetrySink"),
}


def open_sink(what: str | Path | Sink | Callable[[Line], object]) -> Sink:
    """Return the sink of a `FILE.jsonl`, of `KIND:TARGET`, or of a function; a sink is itself.

    Raises:
        UsageError: it is none of these, or its package is not installed.
        InputError: the file cannot be written.
    """
    if isinstance(what, Path):
        return JsonLines(what)
    if isinstance(what, str):
        if not what:
            raise UsageError("An empty text names no sink.", "Such as fp8.jsonl.")
        kind, colon, target = what.partition(":")
        if colon and kind in KINDS:
            return _integration(kind, target)
        _refuse_slip(what, kind if colon else "")
        return JsonLines(what)
    if isinstance(what, Sink):
        return what
    if callable(what):
        return Call(what)
    raise UsageError(
        f"{type(what).__name__} is no sink.",
        f"Give a file, a function, or one of {', '.join(f'{kind}:…' for kind in KINDS)}.",
    )


def _refuse_slip(what: str, kind: str) -> None:
    """Tell of a sink that does not exist, which would be taken for the name of a file."""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]+", kind) is None:
        return
    close = get_close_matches(kind, KINDS, n=1)
    kinds = ", ".join(f"{kind}:" for kind in KINDS)
    hint = f"Did you mean {close[0]}:?" if close else f"Give a file, or one of {kinds}."
    raise UsageError(f"{what[:80]!r} names no sink: there is no {kind[:40]}.", hint)


def _integration(kind: str, target: str) -> Sink:
    """Return a sink that a package of others makes, whose own errors are told in our way."""
    module, name = KINDS[kind]
    make = getattr(import_module(f"fp8verify.integrations.{module}"), name)
    try:
        sink: Sink = make(target)
    except Fp8VerifyError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise InputError(
            f"{kind} cannot be opened: {type(error).__name__}: {said}",
            f"Try what stands after {kind}: with its own tools first: login, address, folder.",
        ) from error
    return sink
