"""Every figure of every report and of some comparisons, condensed: none changes unseen.

Prose is left out, but for its numbers, so that a better sentence changes nothing here.
FP8VERIFY_UPDATE_GOLDENS=1 writes figures.json anew: look with `inspect --format json` at what
changed before committing it.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections.abc import Iterator
from itertools import permutations, product
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fp8verify
from fp8verify.analysis.kinds import gemm_shape
from fp8verify.kernels import decode
from fp8verify.kernels.operators import OPERATORS
from fp8verify.terms import OpContext
from scripts.truth_of_captures import KNOWN, ROOT
from tests.golden.reports import report_of
from tests.unit.test_kernel_names import labelled_names
from tests.unit.test_nvidia_spelling import spelled_names

GOLDEN = Path(__file__).with_name("figures.json")
NUMERICS = ROOT.parent / "examples" / "data" / "cpu_numerics_outlier"
PAIRS = (
    *(
        "bf16_width4096 fp8_width4096",
        "bf16_compiled fp8_accelerate",
        "fp8_layers_compiled fp8_muon",
    ),
    *("ddp_one_rank_bf16 fsdp_fp8_all_gather", "fp8_te_modules_delayed fp8_te_modules_block"),
)


def figures(value: Any) -> Any:
    """Return a document with the numbers of its sentences only; names, codes and numbers stay."""
    if isinstance(value, dict):
        return {key: figures(one) for key, one in value.items() if key != "fp8verify_version"}
    if isinstance(value, list):
        return list(map(figures, value))
    if isinstance(value, str) and " " in value:
        return sorted(re.findall(r"\d[\d.,]*", value.replace(str(ROOT), "")))
    return value


def digest(value: Any) -> str:
    """Return a digest of what is no prose."""
    return hashlib.sha256(json.dumps(figures(value), sort_keys=True).encode()).hexdigest()[:8]


def condensed(document: dict[str, Any]) -> dict[str, str]:
    """Return a digest for each part of a document, and for each part of its ranks."""
    parts = {key: value for key, value in document.items() if key != "ranks"}
    for place, rank in enumerate(document.get("ranks", [])):
        parts |= {f"ranks.{place}.{key}": value for key, value in rank.items()}
    return {key: digest(value) for key, value in parts.items() if value not in (None, [], {})}


def found_of(name: str) -> dict[str, str]:
    if " " in name:
        result = fp8verify.compare(*(ROOT / run for run in name.split()))
        return condensed(json.loads(result.to_json()))
    report = fp8verify.inspect(NUMERICS) if name == NUMERICS.name else report_of(name)
    return condensed(json.loads(report.to_json()))


@pytest.mark.parametrize("name", [*sorted(KNOWN), NUMERICS.name, *PAIRS])
def test_the_figures_are_the_golden_ones(name: str) -> None:
    known = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    found = found_of(name)
    if os.environ.get("FP8VERIFY_UPDATE_GOLDENS"):
        known[name] = found
        GOLDEN.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    parts = known[name].keys() | found.keys()
    assert [part for part in sorted(parts) if known[name].get(part) != found.get(part)] == []


def assert_golden(golden: Path, found: dict[str, str]) -> None:
    if os.environ.get("FP8VERIFY_UPDATE_GOLDENS"):
        golden.write_text(json.dumps(found, indent=0) + "\n")
    known = json.loads(golden.read_text())
    assert [one for one in known.keys() | found.keys() if known.get(one) != found.get(one)] == []


def names_of_kernels() -> Iterator[str]:
    """Yield labelled names of kernels."""
    yield from (row["name"] for row in labelled_names())
    for row in spelled_names():
        yield from (row[spelling] for spelling in ("mangled", "nvidia", "cxxfilt"))


def explained(name: str) -> str:
    """Return a digest of what is said of a name, and of names with its parts in other places."""
    rng, found = random.Random(name), [decode(name)]
    for _ in range(6):
        parts = re.split(r"(?<=[_<>,(])", name)
        parts.insert(rng.randrange(len(parts)), parts.pop(rng.randrange(len(parts))))
        found.append(decode("".join(parts[rng.random() < 0.3 :])))
    return digest(msgspec.to_builtins(found))


def test_every_part_of_a_name_is_explained_as_it_was() -> None:
    found = {name[:120]: explained(name) for name in names_of_kernels()}
    assert_golden(GOLDEN.with_name("names.json"), found)


def test_the_sizes_of_gemms_are_read_from_inputs_as_they_were() -> None:
    sizes = [(6, 8), (2, 6, 8), (8,)], [(8, 4), (4, 8), (2, 8, 4), (2, 4, 8), (8,)]
    places = [p for a, b in product(*sizes) for p in set(permutations((a, b, (), ())))]
    found = {
        name: digest([gemm_shape(OpContext(name=name, dims=dims)) for dims in sorted(places)])
        for name in OPERATORS
    }
    assert_golden(GOLDEN.with_name("operators.json"), found)
