"""Measure on this GPU whether FP8 pays for the layers of a model, in the Python that trains."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fp8verify.doctor.blocks import heads_of
from fp8verify.doctor.interpreter import Interpreter
from fp8verify.doctor.probes import Plan, Probe, Shape
from fp8verify.doctor.recipes import RECIPES
from fp8verify.doctor.timings import BF16, Answer, Gemm, Kernel, Measured, Timed
from fp8verify.doctor.whole_model import whole_model
from fp8verify.doctor.worker_process import WorkerError, WorkerProcess
from fp8verify.errors import InputError

MAX_PROBES = 24
TIMEOUT_S = 1800.0
_KERNELS = 10


class Variant(NamedTuple):
    """A recipe, and the places of the groups that are in FP8 by it."""

    recipe: str
    groups: tuple[int, ...]


Variants = Mapping[str, Variant]


class Measurement(NamedTuple):
    """What was measured, on what, or why nothing was; what could not run in BF16 itself.

    `alone` has decoder blocks in which the layers of one role alone are in FP8; it is empty where
    the whole model pays.
    """

    probes: tuple[Measured, ...] = ()
    where: Mapping[str, str] = {}
    why_none: str = ""
    failed: Mapping[Probe, str] = {}
    alone: tuple[Measured, ...] = ()


def measure(
    interpreter: Interpreter,
    plan: Plan,
    recipes: Sequence[str] = RECIPES,
    **options: object,
) -> Measurement:
    """Time every probe in BF16 and by each recipe, and the parts of blocks that may not pay.

    Args:
        interpreter: the Python that trains.
        plan: what to time, and how often the model has it.
        recipes: torchao's names.
        options: fields of the worker's requests besides.
    """
    if not plan:
        return Measurement(why_none="no sizes are known: name some with --shape MxKxN")
    try:
        with (
            tempfile.TemporaryDirectory(prefix="fp8verify-measure-") as folder,
            closing(WorkerProcess(interpreter.program, TIMEOUT_S)) as worker,
        ):
            return _measure(_Bench(worker, {**options, "traces": folder}), plan, recipes)
    except WorkerError as error:
        return Measurement(why_none=str(error))


def _measure(bench: _Bench, plan: Plan, recipes: Sequence[str]) -> Measurement:
    wanted = list(plan)[:MAX_PROBES]
    found = bench.time("whole", {probe: whole_variants(probe, recipes) for probe in wanted})
    unclear = blocks_to_part(found, plan)
    if not unclear:
        return found
    try:
        parts = bench.time("alone", unclear)
    except WorkerError:  # the model as a whole was measured
        return found
    return found._replace(alone=parts.probes)


class _Bench(NamedTuple):
    worker: WorkerProcess
    options: Mapping[str, object]

    def time(self, name: str, variants: Mapping[Probe, Variants]) -> Measurement:
        """Time probes in BF16 and in their variants."""
        asked = [_request(probe, some) for probe, some in variants.items()]
        answers = self.worker.ask({**self.options, "name": name, "probes": asked})
        return read_answers(list(variants), answers)


def _request(probe: Probe, variants: Variants) -> dict[str, object]:
    groups = [group._asdict() for group in probe.groups]
    heads = heads_of(probe.groups)
    named = {name: one._asdict() for name, one in variants.items()}
    return {"tokens": probe.tokens, "groups": groups, "heads": heads, "variants": named}


def whole_variants(probe: Probe, recipes: Sequence[str]) -> Variants:
    """Return the variants in which all layers are in FP8 that the model has in it."""
    low = tuple(place for place, group in enumerate(probe.groups) if group.low)
    return {name: Variant(name, low) for name in recipes}


def blocks_to_part(found: Measurement, plan: Plan) -> dict[Probe, Variants]:
    """Return the variants that tell which layers to leave out; none where the model pays as it is.

    They are by the fastest recipe of the block.
    """
    uses = [(one, plan[one.probe]) for one in found.probes]
    model = whole_model(uses)
    pays = model is not None and not found.failed and model.gain.answer is Answer.PAYS
    blocks = [one for one, _ in uses if one.probe.is_block and one.recipes]
    return {} if pays else {one.probe: _alone(one, one.recipes[0]) for one in blocks}


def _alone(one: Measured, recipe: str) -> Variants:
    return {
        group.role.value: Variant(recipe, (place,))
        for place, group in enumerate(one.groups)
        if group.low
    }


def read_answers(probes: Sequence[Probe], answers: Sequence[Mapping[str, Any]]) -> Measurement:
    """Read the lines of the worker: first where it ran, then one for each probe."""
    if not answers or "error" in answers[0]:
        return Measurement(why_none=str(answers[0]["error"] if answers else "no answer"))
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
    steps, copies = answer["traced_steps"], answer["copies"]
    times = {
        name: _timed([us / copies for us in rounds], answer["traces"].get(name), steps * copies)
        for name, rounds in answer["rounds"].items()
    }
    return Measured(probe.tokens, probe.groups, times, answer["errors"])


def _timed(rounds: Sequence[float], trace: str | None, steps: int) -> Timed:
    """Split a step by its trace; without one that can be read the whole is all that is known."""
    with suppress(InputError, OSError):
        if trace is not None:
            return _split(tuple(rounds), Path(trace), steps)
    return Timed(tuple(rounds))


def _split(rounds: tuple[float, ...], path: Path, steps: int) -> Timed:
    from fp8verify.analysis.gather import gather
    from fp8verify.report.model import Role
    from fp8verify.trace import read_trace

    survey = gather(read_trace(path)).survey
    sums: dict[tuple[str, int, int, int], float] = {}
    for row in survey.linear:
        _, m, n, k = row.shape or (0, 0, 0, 0)
        key = (row.leg.value, m, n, k)
        sums[key] = sums.get(key, 0.0) + row.time_ns / 1e3 / steps
    casting = (Role.CAST_QUANTIZE, Role.AMAX_REDUCE)
    casts = sum(
        total.time_ns for total in survey.others if total.kind.classification.role in casting
    )
    gemms = tuple(Gemm(*key, us) for key, us in sums.items())
    kernels: Counter[str] = Counter()
    for row in survey.gemms:
        kernels[row.kind.name] += row.time_ns
    for total in survey.others:
        kernels[total.kind.name] += total.time_ns
    longest = tuple(Kernel(name, ns / 1e3 / steps) for name, ns in kernels.most_common(_KERNELS))
    return Timed(rounds, gemms, casts / 1e3 / steps, longest)


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
