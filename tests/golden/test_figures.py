"""Every figure of every report and of some comparisons: none changes unseen.

`figures/` has a file for each, a line for each part; prose is left out, but for its numbers, so
that a better sentence changes nothing here. FP8VERIFY_UPDATE_GOLDENS=1 writes these files anew:
read the difference before committing it.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest

import fp8verify
from fp8verify.analysis.kinds import gemm_shape
from fp8verify.kernels import decode
from fp8verify.kernels.operators import OPERATORS
from fp8verify.terms import KernelName, OpContext
from tests.captures import CAPTURES, ROOT, UPDATE, report_of
from tests.unit.test_classify import classified, names_and_operators
from tests.unit.test_kernel_names import labelled_names
from tests.unit.test_nvidia_spelling import spelled_names

HERE = Path(__file__).parent
NUMERICS = ROOT.parent / "examples" / "data" / "cpu_numerics_outlier"
PAIRS = (
    *(
        "bf16_width4096 fp8_width4096",
        "bf16_compiled fp8_accelerate",
        "fp8_layers_compiled fp8_muon",
    ),
    *(
        "ddp_one_rank_bf16 fsdp_fp8_all_gather",
        "fp8_te_modules_delayed fp8_te_modules_block",
    ),
)
# A golden that has all of them would be too long to read.
LONGEST, MOST_ROWS = 60, 6
Lines = dict[str, Any]


def figures(value: Any) -> Any:
    """Return what is neither empty nor zero, and of sentences their numbers."""
    if isinstance(value, dict):
        found = {
            key: figures(one)
            for key, one in value.items()
            if key != "fp8verify_version"
        }
        return {
            key: one for key, one in found.items() if one not in (None, "", 0, [], {})
        }
    if isinstance(value, list):
        series = len(value) > 100 and isinstance(value[0], float)
        return _sums(value) if series else [figures(one) for one in value]
    if isinstance(value, str) and " " in value:
        return " ".join(
            re.findall(r"(?:(?<=[ (])-)?\d[\d.,]*", value.replace(str(ROOT), ""))
        )
    # From Python 3.12 on, sum() loses less: the last digits differ.
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _sums(series: list[float]) -> dict[str, float]:
    """Condense what a timeline has for each of its buckets."""
    weighted = sum(place * one for place, one in enumerate(series))
    return {"sum": round(sum(series), 1), "weighted": round(weighted, 1)}


def of_report(document: Lines) -> Lines:
    """Return the figures of each part of a report; a rank's are left out where the run's say so."""
    ranks, found = document.pop("ranks", []), figures(document)
    for number, rank in enumerate(ranks):
        kernels, overhead = rank.pop("kernels"), (rank.get("tax") or {}).pop("rows", [])
        parts = (
            figures(rank)
            | dict(_kernels(kernels))
            | _summed("overhead", overhead, "purpose")
        )
        found |= {
            f"ranks.{number}.{k}": v for k, v in parts.items() if found.get(k) != v
        }
    return {key: value for key, value in found.items() if value not in (None, [], {})}


def _kernels(rows: list[Lines]) -> Iterator[tuple[str, Any]]:
    """Yield what is said of GEMMs, a line each, and sums of the other kernels."""
    gemms = [row for row in rows if row["role"].endswith("gemm")]
    for number, row in enumerate(gemms[:MOST_ROWS]):
        short = {key: row[key][:LONGEST] for key in ("name", "op") if row[key]}
        yield f"gemms.{number}", figures(row | short | {"dims": None})
    for part in ("role", "precision", "library", "leg", "decided_by"):
        yield from _summed("kernels", rows, part).items()


def _summed(what: str, rows: Iterable[Lines], by: str) -> Lines:
    """Return the number of launches and their time by a column of some rows."""
    launches, times = Counter[str](), Counter[str]()
    for row in rows:
        launches[f"{row[by]}"] += row["kernels"]
        times[f"{row[by]}"] += row["time_us"]
    found = {key: [launches[key], round(times[key], 3)] for key in launches}
    return {f"{what} by {by}": found} if found else {}


def found_of(name: str) -> Lines:
    if " " in name:
        result = fp8verify.compare(*(ROOT / run for run in name.split()))
        return dict(figures(json.loads(result.to_json())))
    report = fp8verify.inspect(NUMERICS) if name == NUMERICS.name else report_of(name)
    return of_report(json.loads(report.to_json()))


def assert_golden(golden: Path, found: Lines) -> None:
    """Compare lines with those of a file, or write it anew."""
    lines = [
        json.dumps([key, value], sort_keys=True) for key, value in sorted(found.items())
    ]
    if UPDATE:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert lines == golden.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", [*CAPTURES, NUMERICS.name, *PAIRS])
def test_the_figures_are_the_golden_ones(name: str) -> None:
    assert_golden(
        HERE / "figures" / f"{name.replace(' ', '_against_')}.jsonl", found_of(name)
    )


def names_of_kernels() -> Iterator[str]:
    """Yield labelled names of kernels."""
    yield from (row["name"] for row in labelled_names())
    for row in spelled_names():
        yield from (row[spelling] for spelling in ("mangled", "nvidia", "cxxfilt"))


def said_of(found: KernelName) -> str:
    """Return what is said of a name, in a line."""
    operands = " × ".join(filter(None, (found.a, found.b)))  # noqa: RUF001
    said = (found.role.value, found.precision.value, found.library, operands, found.out)
    accumulation = {True: "fast", False: "exact"}.get(found.fast_accum)
    scaling, hint = (one and one.name.lower() for one in (found.scaling, found.hint))
    return f"{', '.join(filter(None, (*said, scaling, accumulation, hint)))}; {found.reason}"


def test_a_name_with_its_operator_is_explained_as_it_was() -> None:
    found = {
        f"{row['name'][:LONGEST]} by {row['operator']}({row['inputs']})": f"{said_of(kernel)}; "
        f"by {kernel.source}, {kernel.conflict or 'undisputed'}"
        for row in names_and_operators()
        for kernel in (classified(row),)
    }
    assert_golden(HERE / "classified.jsonl", found)


def jumbled(name: str) -> str:
    """Put a part of a name in another place."""
    rng, parts = random.Random(name), re.split(r"(?<=[_<>,(])", name)
    parts.insert(rng.randrange(len(parts)), parts.pop(rng.randrange(len(parts))))
    return "".join(parts[rng.random() < 0.3 :])


def test_every_part_of_a_name_is_explained_as_it_was() -> None:
    found = {name: said_of(decode(name)) for name in names_of_kernels()}
    assert_golden(HERE / "names.jsonl", found)


def test_names_whose_parts_are_in_other_places_mean_what_they_did() -> None:
    found = {name: decode(name) for name in map(jumbled, names_of_kernels())}
    said = {
        f"{k[:120]} {len(k)}": f"{n.role.value}, {n.precision.value}"
        for k, n in found.items()
    }
    assert_golden(HERE / "jumbled_names.jsonl", said)


def test_the_sizes_of_gemms_are_read_from_inputs_as_they_were() -> None:
    sizes = [(6, 8), (2, 6, 8), (8,)], [(8, 4), (4, 8), (2, 8, 4), (2, 4, 8), (8,)]
    places = sorted(
        {p for a, b in product(*sizes) for p in permutations((a, b, (), ()))}
    )
    operators = defaultdict[str, list[str]](list)
    for name in OPERATORS:
        shapes = [
            (dims, gemm_shape(OpContext(name=name, dims=dims))) for dims in places
        ]
        read = "; ".join(f"{dims} {tuple(shape)}" for dims, shape in shapes if shape)
        operators[read].append(name)
    assert_golden(
        HERE / "operators.jsonl", {", ".join(v): k for k, v in operators.items()}
    )
