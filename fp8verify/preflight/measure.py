"""Measure on this GPU whether FP8 pays for the layers of a model, in the Python that trains."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fp8verify.errors import InputError
from fp8verify.preflight.interpreter import Interpreter
from fp8verify.preflight.probes import Probe, Shape
from fp8verify.preflight.recipes import RECIPES
from fp8verify.preflight.timings import BF16, Gemm, Measured, Timed

MAX_PROBES = 24
TIMEOUT_S = 1800.0
_WORKER = Path(__file__).parent / "worker" / "measure_linear.py"
_MARK = "fp8verify: "


class Measurement(NamedTuple):
    """What was measured, on what, or why nothing was; what could not run in BF16 itself."""

    probes: tuple[Measured, ...] = ()
    where: Mapping[str, str] = {}
    why_none: str = ""
    failed: Mapping[Probe, str] = {}


def measure(
    interpreter: Interpreter,
    probes: Sequence[Probe],
    recipes: Sequence[str] = RECIPES,
    **options: object,
) -> Measurement:
    """Time every probe in BF16 and by each recipe.

    Args:
        interpreter: the Python that trains.
        probes: what to time.
        recipes: torchao's names.
        options: fields of the worker's request besides.
    """
    if not probes:
        return Measurement(why_none="no sizes are known: name some with --shape MxKxN")
    wanted = list(probes)[:MAX_PROBES]
    with tempfile.TemporaryDirectory(prefix="fp8verify-measure-") as folder:
        request = {
            "probes": [probe._asdict() for probe in wanted],
            "recipes": list(dict.fromkeys(recipes)),
            "traces": folder,
            **options,
        }
        try:
            done = _run(interpreter, request)
        except (OSError, subprocess.TimeoutExpired) as error:
            return Measurement(why_none=f"{interpreter.program}: {type(error).__name__}")
        answers = list(_answers(done.stdout))
        if done.returncode or not answers:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            return Measurement(why_none=f"{interpreter.program}: {last[:200]}")
        return read_answers(wanted, answers)


def _run(interpreter: Interpreter, request: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - the user's own Python, our own script
        [interpreter.program, str(_WORKER)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=TIMEOUT_S,
        check=False,
    )


def _answers(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        if line.startswith(_MARK):
            yield json.loads(line.removeprefix(_MARK))


def read_answers(probes: Sequence[Probe], answers: Sequence[Mapping[str, Any]]) -> Measurement:
    """Read the lines of the worker: first where it ran, then one for each probe."""
    if "error" in answers[0]:
        return Measurement(why_none=str(answers[0]["error"]))
    where = {name: str(value) for name, value in answers[0].items()}
    found, failed = [], {}
    for answer in answers[1:]:
        probe = probes[answer["probe"]]
        if BF16 in answer["rounds"]:
            found.append(_measured(probe, answer))
        else:
            failed[probe] = str(answer["errors"].get(BF16, "no reason given"))
    return Measurement(tuple(found), where, failed=failed)


def _measured(probe: Probe, answer: Mapping[str, Any]) -> Measured:
    steps = answer["traced_steps"]
    times = {
        name: _timed(rounds, answer["traces"].get(name), steps)
        for name, rounds in answer["rounds"].items()
    }
    return Measured(**probe._asdict(), times=times, errors=answer["errors"])


def _timed(rounds: Sequence[float], trace: str | None, steps: int) -> Timed:
    """Split a step by its trace; without one that can be read the whole is all that is known."""
    with suppress(InputError, OSError):
        if trace is not None:
            return _split(tuple(rounds), Path(trace), steps)
    return Timed(tuple(rounds))


def _split(rounds: tuple[float, ...], path: Path, steps: int) -> Timed:
    from fp8verify.evidence.rank import gather
    from fp8verify.model import Role
    from fp8verify.trace import read_trace

    survey = gather(read_trace(path)).survey
    sums: dict[tuple[str, int, int, int], float] = {}
    for row in survey.gemms:
        _, m, n, k = row.shape or (0, 0, 0, 0)
        key = (row.leg.value, m, n, k)
        sums[key] = sums.get(key, 0.0) + row.time_ns / 1e3 / steps
    casting = (Role.CAST_QUANTIZE, Role.AMAX_REDUCE)
    casts = sum(
        total.time_ns for total in survey.others if total.kind.classification.role in casting
    )
    gemms = tuple(Gemm(*key, us) for key, us in sums.items())
    return Timed(rounds, gemms, casts / 1e3 / steps)


def cache_file() -> Path:
    """Return where measurements are kept for the report of a later run."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "fp8verify" / "measured.json"


class _Kept(msgspec.Struct):
    gpu: str
    torch: str
    probes: tuple[Measured, ...]


def keep(measurement: Measurement) -> None:
    """Keep what was measured; a folder that cannot be written keeps nothing."""
    gpu = measurement.where.get("gpu")
    if gpu is None or not measurement.probes:
        return
    probes = {one.probe: one for one in (*kept(gpu), *measurement.probes)}
    path = cache_file()
    record = _Kept(gpu, measurement.where.get("torch", ""), tuple(probes.values()))
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(record))


def kept(gpu: str | None) -> tuple[Measured, ...]:
    """Return what was measured on a GPU of this name."""
    try:
        found = msgspec.json.decode(cache_file().read_bytes(), type=_Kept)
    except (OSError, ValueError):
        return ()
    return found.probes if found.gpu == gpu else ()


def covered(measured: Sequence[Measured], sizes: set[Shape]) -> list[Measured]:
    """Return the probes of which every size is among those given."""
    return [one for one in measured if set(one.shapes) <= sizes]
