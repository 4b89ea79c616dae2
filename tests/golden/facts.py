"""Goldens that a person can judge: a file of text, one fact a line.

A fact is a name and a value, such as `legs.fprop.kernels.fp8 = 24`. A test that fails shows the
facts that changed first, and leaves all that it found beside the golden, in NAME.actual.
FP8VERIFY_UPDATE_GOLDENS=1 writes the goldens anew: read the difference before committing it.
"""

from __future__ import annotations

import difflib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.captures import UPDATE

SHOWN = 10
ROOT = Path(__file__).parents[2]
# What a reader asks for first stands first; the rest follows by name.
HEAD = ("verdict", "exit_code", "outcome", "reason", "cause", "findings", "breakdown", "proof",
        "gemm", "legs", "layer_gemm", "expected", "claims")  # fmt: skip
# What tells the rows of a list from each other, the first that a row has.
SIZE = ("n", "k")
IDENTITIES = (
    "rank",
    "code",
    "leg",
    "step",
    "layer",
    "purpose",
    "value",
    "name",
    "line",
)
# The ledger has a fact for each leg of each call: tests/laws holds it to the truth of runs.
LEFT_OUT = {"fp8verify_version", "schema_version", "hint", "per_rank", "ledger"}
SAYS_NOTHING = (None, "", 0, [], {})
SERIES = 100
# A golden that has all of them would be too long to read.
LONGEST = 60
MOST_GEMMS = 4
MOST_STEPS = 2
BY = ("role", "precision", "library", "leg", "decided_by")
Row = dict[str, Any]
Facts = dict[str, str]


def facts(document: Any) -> Facts:
    """Flatten a document into facts; values that are empty or zero are left out."""
    return dict(_flat("", document))


def _in_order(keys: Iterable[str]) -> list[str]:
    def rank(key: str) -> tuple[int, str]:
        return (HEAD.index(key) if key in HEAD else len(HEAD), key)

    return sorted(keys, key=rank)


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if value in SAYS_NOTHING:
        return
    if isinstance(value, dict):
        for key in _in_order(value.keys() - LEFT_OUT):
            yield from _flat(f"{name}.{key}" if name else key, value[key])
    elif isinstance(value, list) and isinstance(value[0], dict):
        yield from _rows(name, value)
    elif (
        isinstance(value, list) and len(value) > SERIES and isinstance(value[0], float)
    ):
        yield name, _sums(value)
    elif isinstance(value, list):
        yield name, ", ".join(_one_line(one) for one in value)
    else:
        yield name, _one_line(value)


def _rows(name: str, rows: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the facts of each row; rows of one name have a number from the second on."""
    seen = Counter[str]()
    for index, row in enumerate(rows):
        keys = _identity(row)
        own = " x ".join(f"{row[key]}" for key in keys) or f"{index}"
        seen[own] += 1
        if seen[own] > 1:
            own = f"{own} #{seen[own]}"
        rest = {key: row[key] for key in row if key not in keys}
        yield from _flat(f"{name}.{own}", rest)


def _identity(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the keys whose values are the name of a row."""
    if row.keys() >= set(SIZE):
        return SIZE
    for key in IDENTITIES:
        if row.get(key) not in (None, ""):
            return (key,)
    return ()


def _sums(series: list[float]) -> str:
    """Condense what a timeline has for each of its buckets."""
    weighted = sum(index * value for index, value in enumerate(series))
    return f"sum {round(sum(series), 1)}, weighted by place {round(weighted, 1)}"


def _one_line(value: Any) -> str:
    if isinstance(value, float):
        # From Python 3.12 on, sum() loses less: the last digits differ.
        return f"{float(f'{value:.9g}')}"
    text = f"{value}".replace(f"{ROOT}/", "")
    if text != text.strip() or not text.isprintable():
        return json.dumps(text)
    return text


def facts_of_report(document: Row) -> Facts:
    """Return the facts of a run, then those of its ranks that the run's do not have."""
    ranks = document.pop("ranks", [])
    found = facts(document)
    of_run = set(found.items())
    for rank in ranks:
        for name, value in facts_of_rank(rank).items():
            if (name, value) not in of_run:
                found[f"rank {rank['rank'] or 0}: {name}"] = value
    return found


def facts_of_rank(rank: Row) -> Facts:
    """Return the facts of a rank; of its kernels those of the GEMMs that took longest."""
    kernels = rank.pop("kernels")
    steps = rank.pop("steps", [])
    overhead = (rank.get("tax") or {}).pop("rows", [])
    found = facts(rank)
    found |= facts({"steps": steps[:MOST_STEPS]})
    found["steps"] = f"{len(steps)}"
    found |= _by("overhead", overhead, "purpose")
    for column in BY:
        found |= _by("kernels", kernels, column)
    gemms = [row for row in kernels if row["role"].endswith("gemm")]
    for number, gemm in enumerate(gemms[:MOST_GEMMS], start=1):
        found |= dict(_of_gemm(f"longest GEMM {number}", gemm))
    return found


def _of_gemm(which: str, row: Row) -> Iterator[tuple[str, str]]:
    """Yield what a kernel is, where it comes from, and its figures."""
    yield which, f"{row['name'][:LONGEST]} by {(row['op'] or 'nothing')[:LONGEST]}"
    shown = {
        key: value for key, value in row.items() if key not in ("name", "op", "dims")
    }
    for name, value in facts(shown).items():
        yield f"{which}, {name}", value


def _by(what: str, rows: Iterable[Row], column: str) -> Facts:
    """Return the number of launches and their time by a column of some rows."""
    launches = Counter[str]()
    times = Counter[str]()
    for row in rows:
        launches[f"{row[column]}"] += row["kernels"]
        times[f"{row[column]}"] += row["time_us"]
    return {
        f"{what} by {column}.{name}": f"{launches[name]} in {times[name]:.3f} us"
        for name in sorted(launches)
    }


def assert_facts(golden: Path, found: Mapping[str, str]) -> None:
    """Compare facts with those of a golden.

    Raises:
        pytest.fail.Exception: with the facts that changed first, if any did.
    """
    lines = [f"{name} = {value}" for name, value in found.items()]
    assert_lines(golden, lines)


def assert_lines(golden: Path, lines: Iterable[str]) -> None:
    """Compare lines with those of a golden; see `assert_facts`."""
    text = "".join(f"{line}\n" for line in lines)
    actual = golden.with_name(f"{golden.name}.actual")
    if UPDATE:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    known = golden.read_text(encoding="utf-8") if golden.exists() else ""
    if text == known:
        actual.unlink(missing_ok=True)
        return
    actual.write_text(text, encoding="utf-8")
    pytest.fail(complaint(golden, known, text), pytrace=False)


def complaint(golden: Path, known: str, found: str) -> str:
    """Return what a failing test says: the facts that changed first, and what to do."""
    changes = list(changed(known.splitlines(), found.splitlines()))
    shown = "\n".join(islice(changes, SHOWN))
    more = len(changes) - SHOWN
    rest = f"\n  … and {more} more" if more > 0 else ""
    path = golden.relative_to(ROOT) if golden.is_relative_to(ROOT) else golden
    return (
        f"{len(changes)} facts of {path} changed (- golden, + now):\n{shown}{rest}\n"
        f"all of them: diff {path} {path}.actual\n"
        f"if each change is meant: FP8VERIFY_UPDATE_GOLDENS=1 pytest {_test_file()}, "
        "and read the git diff"
    )


def _test_file() -> str:
    """Return the file of the test that runs, which writes its goldens in seconds."""
    return os.environ.get("PYTEST_CURRENT_TEST", "tests/golden").partition("::")[0]


def changed(known: list[str], found: list[str]) -> Iterator[str]:
    """Yield each fact that changed, with its old and its new value."""
    for index, (before, after) in enumerate(_pairs(known, found)):
        lines = []
        if before is not None:
            lines.append(f"  - {before}")
        if after is not None:
            lines.append(f"  + {after}")
        yield "\n".join(lines) if index < SHOWN else ""


def _pairs(
    known: list[str], found: list[str]
) -> Iterator[tuple[str | None, str | None]]:
    """Pair lines that differ: by the name of their fact, otherwise by their place."""
    matcher = difflib.SequenceMatcher(None, known, found, autojunk=False)
    for kind, first, last, start, end in matcher.get_opcodes():
        if kind == "equal":
            continue
        gone = known[first:last]
        come = found[start:end]
        by_name = {_name(line): line for line in come}
        paired = set[str]()
        for line in gone:
            now = by_name.get(_name(line))
            if now is not None:
                paired.add(now)
            yield line, now
        for line in come:
            if line not in paired:
                yield None, line


def _name(line: str) -> str:
    return line.partition(" = ")[0]
