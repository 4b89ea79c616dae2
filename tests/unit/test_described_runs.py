"""Runs described in runs/*.jsonl, a line each: what happens, and what must be said of it.

`does` lists calls of TraceBuilder: a name, its arguments, and a dict of those that have names;
["times", 3, [...]] repeats calls, ["steps", 3, [...]] does so in a step each, and names such as
FP8_KERNEL are those of hand_built. Several ranks are a list of such lists. `modules` lists
arguments of hand_built.module, `meta` is what else the agent recorded, `files` are the lines or
records of other files of the capture by name, `on` is the GPU, `than` a run to compare with, and to
tabulate and hold as a baseline, `asks` what is asked of the comparison. `reason` is the verdict's
whole sentence, `codes` are findings among others, `words` stand in what is said; golden/hand_built
has all figures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fp8verify import Policy, compare, inspect, table
from fp8verify.verdict.gates import baseline_of, gated, regressions
from tests import hand_built
from tests.hand_built import TraceBuilder, codes, module, write_meta

RUNS = [json.loads(line) for file in sorted((Path(__file__).parent / "runs").glob("*.jsonl"))
        for line in file.read_text().splitlines()]  # fmt: skip
Call = list[Any]


def flat(calls: list[Call]) -> Iterator[Call]:
    for name, *more in calls:
        if name == "steps":
            yield from (
                one for at in range(more[0]) for one in (["step", at], *flat(more[1]))
            )
        else:
            yield from flat(more[1] * more[0]) if name == "times" else [[name, *more]]


def named(arguments: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Split arguments into those without names and those with."""
    has_names = bool(arguments) and isinstance(arguments[-1], dict)
    return (arguments[:-1], arguments[-1]) if has_names else (arguments, {})


def written(run: dict[str, Any], folder: Path) -> Path:
    """Write the files of a run; without modules and other records a trace alone."""
    folder.mkdir()
    several = isinstance(run["does"][0][0], list)
    for rank, calls in enumerate(run["does"] if several else [run["does"]]):
        number = rank if several else None
        build = TraceBuilder(rank=number, world=len(run["does"]), **run.get("on", {}))
        for name, *arguments in flat(calls):
            args, more = named(
                [getattr(hand_built, f"{one}", one) for one in arguments]
            )
            getattr(build, name)(*args, **more)
        build.write(folder / f"rank{rank}.json")
        if "modules" in run or "meta" in run:
            modules = [
                module(*args, **more)
                for args, more in map(named, run.get("modules", ()))
            ]
            write_meta(folder, *modules, rank=rank, **run.get("meta", {}))
    for name, lines in {
        "log.txt": [run.get("log", "")],
        **run.get("files", {}),
    }.items():
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        (folder / name).write_text("\n".join(texts))
    return folder


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["it"])
def test_what_must_be_said_of_a_run_is_said(
    run: dict[str, Any], tmp_path: Path
) -> None:
    first, policy = written(run, tmp_path / "first"), Policy(**run.get("policy", {}))
    report = inspect(first, policy=policy)
    assert report.verdict == run["verdict"], report.reason
    assert report.reason == run.get("reason", report.reason)
    assert codes(report).issuperset(run.get("codes", ()))
    said = report.to_json()
    if "than" in run:
        than = written(run["than"], tmp_path / "than")
        said += compare(than, first, **run.get("asks", {})).to_json()
        said += table(base := inspect(than), report).to_json()
        said += gated(report, regressions(report, baseline_of(base), 0.02)).to_json()
    assert [words for words in run.get("words", ()) if words not in said] == []
