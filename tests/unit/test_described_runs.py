"""Runs described in runs/*.yaml: what happens in each, and what must be said of it.

| key | holds |
|---|---|
| `it` | the name of the test: what the run is, or what must be true of it |
| `does` | calls of TraceBuilder: a name, its arguments, and a mapping of those that have names; `times 3:` repeats the calls below it, `steps 3:` does so in a step each, `rank 0:` has those of a rank; names such as FP8_KERNEL are those of hand_built |
| `modules` | arguments of hand_built.module, one layer each |
| `meta` | what else the agent recorded |
| `hardware` | the GPU, as TraceBuilder takes it |
| `log`, `files` | the training log, and other files of the capture: text, or a list of records |
| `policy` | arguments of Policy |
| `than`, `asks` | a run to compare with, to tabulate and to hold as a baseline; what is asked of the comparison |
| `declares` | `phases`: the user declares log lines that state for which steps a precision holds |
| `verdict`, `reason` | of the report, in full |
| `codes` | findings, among others |
| `words` | what stands in the JSON of the report, of the comparison, the table and the gates |
| `facts` | facts of the report, as golden/facts.py names them; null for one that must not be there |
"""  # noqa: E501

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest
import yaml

from fp8verify import Policy, compare, inspect, table
from fp8verify.verdict.gates import baseline_of, gated, regressions
from tests import hand_built
from tests.golden.facts import facts_of_report
from tests.hand_built import TraceBuilder, codes, module, write_meta
from tests.log_text import WITH_PHASES, declared
from tests.reading import faults

Run = dict[str, Any]
Call = list[Any]
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')  # of a JSON document


def described_runs() -> Iterator[Run]:
    for file in sorted((Path(__file__).parent / "runs").glob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        lines = []
        for number, line in enumerate(text.splitlines(), start=1):
            if line.startswith("- it:"):
                lines.append(number)
        for number, run in zip(lines, yaml.load(text, LOADER), strict=True):
            yield {**run, "place": f"{file.name}:{number}"}


def spelled_out(calls: list[Any]) -> Iterator[Call]:
    """Yield calls, those of blocks as often as the block says."""
    for call in calls:
        if isinstance(call, list):
            yield call
            continue
        ((block, repeated),) = call.items()
        kind, count = block.split()
        for number in range(int(count)):
            if kind == "steps":
                yield ["step", number]
            yield from spelled_out(repeated)


def resolved(value: Any) -> Any:
    """Put what hand_built has by a name in the place of that name."""
    if isinstance(value, str):
        return getattr(hand_built, value, value) if value.isidentifier() else value
    if isinstance(value, list):
        return tuple(resolved(part) for part in value)
    if isinstance(value, dict):
        return {key: resolved(part) for key, part in value.items()}
    return value


def split_named(arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Split arguments into those without names and those with."""
    if arguments and isinstance(arguments[-1], dict):
        return arguments[:-1], arguments[-1]
    return arguments, {}


def written(run: Run, folder: Path) -> Path:
    """Write the files of a run; without modules and other records a trace alone."""
    folder.mkdir()
    has_ranks = isinstance(run["does"], dict)
    ranks = list(run["does"].values()) if has_ranks else [run["does"]]
    for rank, calls in enumerate(ranks):
        build = TraceBuilder(
            rank=rank if has_ranks else None,
            world=len(ranks),
            **resolved(run.get("hardware", {})),
        )
        for name, *arguments in spelled_out(calls):
            positional, named = split_named(resolved(arguments))
            getattr(build, name)(*positional, **named)
        build.write(folder / f"rank{rank}.json")
        if "modules" in run or "meta" in run:
            write_records(run, folder, rank)
    (folder / "log.txt").write_text(run.get("log", ""))
    for name, content in run.get("files", {}).items():
        (folder / name).write_text(text_of(content))
    return folder


def write_records(run: Run, folder: Path, rank: int) -> None:
    """Write what the agent recorded of a rank."""
    modules = []
    for arguments in run.get("modules", ()):
        positional, named = split_named(resolved(arguments))
        modules.append(module(*positional, **named))
    write_meta(folder, *modules, rank=rank, **run.get("meta", {}))


def text_of(content: str | list[Any]) -> str:
    """Return text as it is, and records as lines of JSON."""
    if isinstance(content, str):
        return content
    lines = [line if isinstance(line, str) else json.dumps(line) for line in content]
    return "\n".join(lines)


def assert_facts(run: Run, facts: dict[str, Any]) -> None:
    """Fail with nothing but the facts that differ from those of a description."""
    expected = {"verdict": run["verdict"], "reason": run["reason"]}
    expected |= run.get("facts", {})
    changed = []
    for name, value in expected.items():
        if facts.get(name) != value:
            changed.append(f"  - {name} = {value}\n  + {name} = {facts.get(name)}")
    fail_with(run, changed)


def assert_words(run: Run, said: str) -> None:
    """Fail with the words of a description that nothing says, and what says most of each."""
    changed = []
    for words in run.get("words", ()):
        if words not in said:
            changed.append(f"  - {words}\n  + {nearest(words, said)}")
    fail_with(run, changed)


def nearest(words: str, said: str) -> str:
    """Return the string of JSON documents that shares the longest part with some words."""
    shared = SequenceMatcher(None, b=words, autojunk=False)
    found = ""
    longest = 0
    for text in dict.fromkeys(STRING.findall(said)):
        shared.set_seq1(text)
        size = shared.find_longest_match().size
        if size > longest:
            longest = size
            found = text
    return found


def fail_with(run: Run, changed: list[str]) -> None:
    """Fail if anything that a description says has changed."""
    if changed:
        lines = "\n".join(changed)
        where = f"tests/unit/runs/{run['place']}"
        pytest.fail(f"{where} (- described, + now)\n{lines}", pytrace=False)


@pytest.mark.parametrize("run", list(described_runs()), ids=lambda run: run["it"])
def test_what_must_be_said_of_a_run_is_said(run: Run, tmp_path: Path) -> None:
    first = written(run, tmp_path / "first")
    with declared({"Lab": WITH_PHASES} if "declares" in run else {}):
        report = inspect(first, policy=Policy(**run.get("policy", {})))
    said = report.to_json()
    facts = facts_of_report(json.loads(said))
    facts |= {"verdict": report.verdict.value, "reason": report.reason}
    assert_facts(run, facts)
    assert list(faults(report)) == []
    missing = set(run.get("codes", ())) - codes(report)
    fail_with(run, [f"  - finding {code}" for code in sorted(missing)])
    if "than" in run:
        than = written(run["than"], tmp_path / "than")
        base = inspect(than)
        said += compare(than, first, **run.get("asks", {})).to_json()
        said += table(base, report).to_json()
        said += gated(report, regressions(report, baseline_of(base), 0.02)).to_json()
    assert_words(run, said)
