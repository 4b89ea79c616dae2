"""Mutate the code that decides and see whether unit and golden tests notice.

    scripts/mutate.sh [--count 200] [--seed 7] [--workers 2] [--folder FOLDER]

cosmic-ray makes the mutations, of the kinds that all such tools have; a fixed seed picks COUNT of
them, spread over the files by their size. coverage tells which tests run a mutated line. These run,
the most specific ones first, in a process forked before it imported the package. A line that runs
at import, such as a constant, or whose function has a cache, runs in few tests or none: the tests
that run the most of its file are taken, too. A run that was ended goes on in the same FOLDER. The
result goes to
`benchmarks/results/mutation.md`: a row a folder, then each survivor with its difference.
The exit status is 1 below 85%.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import multiprocessing
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec

ROOT = Path(__file__).resolve().parent.parent
# What gives a verdict from evidence; the agent, which records it, is held by integration tests.
DECIDES = (
    "kernels",
    "logs",
    "analysis",
    "verdict",
    "pipeline",
    "comparison",
    "trace",
    "capture",
)
# The figures of whole reports run first: later tests take reports from a cache.
SUITES = ("tests/golden/test_facts.py", "tests/unit", "tests/golden")
CONTEXTS = """\
import coverage
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    coverage.Coverage.current().switch_context(item.nodeid)
"""
GOAL = 0.85
FEW = 40
LONGEST_S = 300
SLOW_IMPORTS = ("numpy", "torch", "hypothesis")
# Lines whose mutation changes nothing that happens: types, `*` among parameters, `strict=` of zip.
POINTLESS = re.compile(r"strict=|frozen=|gc=|TYPE_CHECKING|^ *(?:async )?def |^ *\*,$")
# The kinds that mutation tools agree on; cosmic-ray's others, such as `==` to `>=`, often say the
# same. Not `|`: types are written as `A | B`, which the interpreter never evaluates.
KINDS = re.compile(
    r"AddNot|Delete_Not|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceTrueWithFalse|ReplaceFalseWithTrue"
    r"|Operator_(Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is|In_NotIn|NotIn_In)"  # negated
    r"|Operator_(Lt_(LtE|GtE)|LtE_(Lt|Gt)|Gt_(GtE|LtE)|GtE_(Gt|Lt))"  # and at the boundary
    r"|BinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul|FloorDiv_Mul|Mod_Mul|Pow_Mul)"
    r"|BinaryOperator_(LShift_RShift|RShift_LShift|BitAnd_Sub|BitXor_BitAnd)"
    r"|Delete_USub|USub_UAdd|ContinueWithBreak|BreakWithContinue|ZeroIterationForLoop"
)
PYTEST = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
FORK = multiprocessing.get_context("fork")
LOG = FORK.Lock()
Job = tuple[MutationSpec, tuple[str, ...]]


def copy_tree(target: Path) -> None:
    """Copy what git knows of the project."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.split("\0")
    for name in filter(None, names):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)


def record_coverage(tree: Path) -> dict[tuple[str, int], list[str]]:
    """Return for each line the tests that run it, the most specific ones first."""
    if not (tree / ".coverage").exists():
        (tree / ".coveragerc").write_text(
            "[run]\nsource = fp8verify\nrelative_files = true\n"
        )
        (tree / "contexts.py").write_text(CONTEXTS)
        command = [
            sys.executable,
            "-m",
            "coverage",
            "run",
            "-m",
            "pytest",
            "-p",
            "contexts",
        ]
        done = subprocess.run(
            [*command, *PYTEST, *SUITES],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": f"{tree}"},
        )
        if done.returncode not in (0, 1):  # a signal's status is negative
            sys.exit("the tests cannot run")
    data = sqlite3.connect(tree / ".coverage")
    rows = data.execute(
        "select file.path, context.context, line_bits.numbits from line_bits "
        "join file on file.id = line_bits.file_id join context on context.id = line_bits.context_id"
    ).fetchall()
    lines: dict[tuple[str, int], list[str]] = {}
    size: Counter[str] = Counter()
    for path, test, bits in rows:
        for byte, value in enumerate(bits):
            for bit in range(8):
                if value >> bit & 1 and test:
                    lines.setdefault((path, byte * 8 + bit), []).append(test)
                    size[test] += 1
    return {
        line: sorted(set(tests), key=lambda t: size[t]) for line, tests in lines.items()
    }


def choose(
    tree: Path, covered: dict[tuple[str, int], list[str]], count: int, seed: int
) -> list[Job]:
    """Pick mutations: a file is as likely as it has mutations, a line of it counts once."""
    folders = [tree / "fp8verify" / name for name in DECIDES]
    if gone := [folder.name for folder in folders if not folder.is_dir()]:
        sys.exit(f"no such folder of the package: {', '.join(gone)}")
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    (tree / "mutations.sqlite").unlink(missing_ok=True)
    with use_db(f"{tree / 'mutations.sqlite'}", WorkDB.Mode.create) as database:
        init([f.relative_to(tree) for f in files], database, {})
        found = [item.mutations[0] for item in database.work_items]
    found = [m for m in found if re.search(f"(?:{KINDS.pattern})$", m.operator_name)]
    found.sort(
        key=lambda m: (f"{m.module_path}", m.start_pos, m.operator_name, m.occurrence)
    )
    random.Random(seed).shuffle(found)
    of_file: dict[str, Counter[str]] = {}
    for (path, _), tests in covered.items():
        of_file.setdefault(path, Counter()).update(tests)
    seen: set[tuple[str, int]] = set()
    jobs: list[Job] = []
    for mutation in found:
        path, number = f"{mutation.module_path}", mutation.start_pos[0]
        if (path, number) in seen or len(jobs) == count or not mutated(tree, mutation):
            continue
        if POINTLESS.search((tree / path).read_text().splitlines()[number - 1]):
            continue
        seen.add((path, number))
        tests = [*covered.get((path, number), ())]
        if len(tests) < FEW:
            tests += [test for test, _ in of_file.get(path, Counter()).most_common(FEW)]
        jobs.append((mutation, tuple(dict.fromkeys(tests))))
    return jobs


def mutated(tree: Path, mutation: MutationSpec) -> str:
    """Return the file with a mutation in it, nothing if that is no Python, or no change."""
    original = (tree / mutation.module_path).read_text()
    operator = get_operator(mutation.operator_name)(**dict(mutation.operator_args))
    changed = mutate_code(original, operator, mutation.occurrence) or original
    try:
        ast.parse(changed)
    except SyntaxError:
        return ""
    return changed if changed != original else ""


def difference(job: Job, tree: Path) -> str:
    """Return the line of a mutation before and after it."""
    before = (tree / job[0].module_path).read_text().splitlines()
    after = mutated(tree, job[0]).splitlines()
    number = next(
        (n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0
    )
    return f"`{before[number].strip()}` -> `{after[number].strip()}`" + (
        "" if job[1] else " (no test)"
    )


def outcome(job: Job, tree: Path) -> str:
    """Return which test noticed a mutation, nothing if none."""
    mutation, tests = job
    file = tree / mutation.module_path
    original = file.read_text()
    changed = mutated(tree, mutation)
    Path(importlib.util.cache_from_source(f"{file}")).unlink(missing_ok=True)
    try:
        file.write_text(changed)
        return "".join(failures(tree, "-x", *tests)[:1]) if tests else ""
    finally:
        file.write_text(original)


def failures(tree: Path, *arguments: str) -> list[str]:
    """Run tests in a fork of this process, which has not imported the package."""
    output = tree / "output.txt"
    output.write_text("")
    child = FORK.Process(target=run_tests, args=(tree, arguments, output))
    child.start()
    child.join(LONGEST_S if "-x" in arguments else None)
    if child.is_alive():
        child.kill()
        return ["it takes too long"]
    found = output.read_text().splitlines()
    # pytest's 4: it does not know the tests, so nothing noticed the mutation.
    return found or [f"exit code {child.exitcode}"] * (child.exitcode not in (0, 4))


class Failed:
    """Write the names of tests that fail: pytest's summary cuts those that have " - " in them."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the name of a test that failed."""
        if report.failed:
            with self._file.open("a") as file:
                file.write(f"{report.nodeid}\n")


def run_tests(tree: Path, arguments: tuple[str, ...], output: Path) -> None:
    """Run tests and end this process with pytest's status."""
    with Path(os.devnull).open("wb") as null:
        os.dup2(null.fileno(), 1)
        os.dup2(null.fileno(), 2)
    os.chdir(tree)
    os.setpgid(0, 0)
    sys.path.insert(0, f"{tree}")
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONPATH": f"{tree}", "PYTHONDONTWRITEBYTECODE": "1"}
    os.environ["FP8VERIFY_MUTATED"] = "1"  # so that conftest.py leaves this as it is
    os._exit(pytest.main([*PYTEST, "--timeout=120", *arguments], [Failed(output)]))


def work(jobs: list[Job], tree: Path, log: Path) -> None:
    """Log the outcome of each mutation as it comes."""
    for job in jobs:
        killer = outcome(job, tree)
        row = [key_of(job), difference(job, tree), killer]
        with LOG, log.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(*row, flush=True)


def key_of(job: Job) -> str:
    """Return what names a mutation of this run."""
    return f"{job[0].module_path}:{job[0].start_pos[0]}"


def main() -> int:
    """Run the mutations, write the table, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mutation")
    args = parser.parse_args()
    folder = args.folder.resolve()
    tree = folder / "tree"
    if not tree.is_dir():
        copy_tree(tree)
    os.chdir(tree)  # cosmic-ray takes paths from here
    covered = record_coverage(tree)
    jobs = choose(tree, covered, args.count, args.seed)
    for name in SLOW_IMPORTS:
        with suppress(ImportError):
            importlib.import_module(name)
    log = folder / f"seed{args.seed}.jsonl"
    while left := [job for job in jobs if key_of(job) not in read_log(log)]:
        run_all(left, tree, args.workers, log)
        # A test that fails without any mutation too tells nothing.
        killers = {killer for _, killer in read_log(log).values() if "::" in killer}
        broken = set(failures(tree, *sorted(killers))) & killers
        jobs = [
            (mutation, tuple(t for t in tests if t not in broken))
            for mutation, tests in jobs
        ]
        rows = [
            row
            for row in log.read_text().splitlines()
            if json.loads(row)[2] not in broken
        ]
        log.write_text("".join(f"{row}\n" for row in rows))
    text, code = results(jobs, read_log(log), args.seed)
    print(text)
    (ROOT / "benchmarks" / "results" / "mutation.md").write_text(text)
    return code


def run_all(jobs: list[Job], tree: Path, count: int, log: Path) -> None:
    """Run mutations in so many processes, each with its own copy of the project."""
    workers = []
    for number in range(count):
        copy = tree.with_name(f"{number}")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(tree, copy)
        workers.append(FORK.Process(target=work, args=(jobs[number::count], copy, log)))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def read_log(log: Path) -> dict[str, tuple[str, str]]:
    """Return the difference and the killer of each mutation that ran."""
    rows = map(json.loads, log.read_text().splitlines()) if log.exists() else ()
    return {key: (difference, killer) for key, difference, killer in rows}


def results(
    jobs: list[Job], done: dict[str, tuple[str, str]], seed: int
) -> tuple[str, int]:
    """Return the results in Markdown, and the exit status."""
    of_folder: dict[str, list[bool]] = {}
    survivors = []
    for key in map(key_of, jobs):
        change, killer = done[key]
        of_folder.setdefault(key.split("/")[1], []).append(bool(killer))
        if not killer:
            survivors.append(f"| {key} | {change.replace('|', chr(92) + '|')} |")
    killed = sum(map(sum, of_folder.values()))
    text = [
        "# Mutations of the code that decides",
        "",
        (
            f"{time.strftime('%Y-%m-%d')}, `scripts/mutate.sh --count {len(jobs)} --seed {seed}`: "
            f"unit and golden tests kill {killed} of {len(jobs)} ({killed / len(jobs):.0%})."
        ),
        "",
        "| folder | killed | of |",
        "|---|---|---|",
        *(
            f"| {name} | {sum(kills)} | {len(kills)} |"
            for name, kills in sorted(of_folder.items())
        ),
        "",
        "Survivors:",
        "",
        "| line | mutation |",
        "|---|---|",
        *sorted(survivors),
        "",
    ]
    return "\n".join(text), int(killed < GOAL * len(jobs))


if __name__ == "__main__":
    sys.exit(main())
