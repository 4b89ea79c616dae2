"""Mutate the code that decides and see whether unit and golden tests notice.

    scripts/mutate.sh [--count 200] [--seed 7] [--workers 2] [--tests tests/unit tests/golden]

cosmic-ray makes the mutations; a fixed seed picks COUNT of them, spread over the files by their
size. What does not parse is none, nor is `is` for `==`, which says the same of names and small
numbers. coverage tells which tests run a mutated line, and only these run; for a line that runs at
import, such as a constant, those that run the most of its file. The result goes to
`benchmarks/results/mutation.md`: a row a folder, then each survivor with its difference. With other
`--tests` the result is printed only. The exit status is 1 below 85 %.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec

ROOT = Path(__file__).resolve().parent.parent
DECIDES = ("kernels", "logs", "analysis", "verdict", "compare", "trace", "capture", "agent")
SUITES = ("tests/unit", "tests/golden")
GOAL = 0.85
MOST_TESTS, MOST_AT_IMPORT = 400, 40
# Types are written as `A | B`, which the interpreter never evaluates.
NOT_IN_CODE = ("BitOr", "RemoveDecorator", "NumberReplacer", "ExceptionReplacer")
SAME = ("_Eq_Is", "_NotEq_IsNot", "_Is_Eq", "_IsNot_NotEq")
PYTEST = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly"]
Job = tuple[MutationSpec, tuple[str, ...]]


def copy_tree(target: Path) -> None:
    """Copy what git knows of the project."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.split("\0")
    for name in filter(None, names):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)


def in_tree(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a copy of the project, whose code it imports."""
    environment = {**os.environ, "PYTHONPATH": f"{tree}", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def record_coverage(tree: Path, suites: list[str]) -> dict[tuple[str, int], list[str]]:
    """Return for each line the tests that run it, the most specific ones first."""
    (tree / ".coveragerc").write_text(
        "[run]\nsource = fp8verify\ndynamic_context = test_function\nrelative_files = true\n"
    )
    done = in_tree(tree, "-m", "coverage", "run", "-m", "pytest", *PYTEST, *suites)
    if done.returncode:
        sys.exit(f"the tests fail before any mutation:\n{done.stdout[-3000:]}")
    data = sqlite3.connect(tree / ".coverage")
    rows = data.execute(
        "select file.path, context.context, line_bits.numbits from line_bits "
        "join file on file.id = line_bits.file_id join context on context.id = line_bits.context_id"
    ).fetchall()
    lines: dict[tuple[str, int], list[str]] = {}
    size: Counter[str] = Counter()
    for path, context, bits in rows:
        test = node_of(context, tree)
        for byte, value in enumerate(bits):
            for bit in range(8):
                if value >> bit & 1 and test:
                    lines.setdefault((path, byte * 8 + bit), []).append(test)
                    size[test] += 1
    return {line: sorted(set(tests), key=lambda t: size[t]) for line, tests in lines.items()}


def node_of(context: str, tree: Path) -> str:
    """Return pytest's name of a test from coverage's: `tests.unit.test_x.test_it`."""
    parts = context.split(".")
    for length in range(len(parts) - 1, 0, -1):
        file = Path(*parts[:length]).with_suffix(".py")
        if (tree / file).is_file():
            return "::".join([f"{file}", *parts[length:]]) if "test" in parts[-1] else ""
    return ""


def choose(
    tree: Path, covered: dict[tuple[str, int], list[str]], count: int, seed: int
) -> list[Job]:
    """Pick mutations: a file is as likely as it has mutations, a line of it counts once."""
    folders = [tree / "fp8verify" / name for name in DECIDES]
    if gone := [folder.name for folder in folders if not folder.is_dir()]:
        sys.exit(f"no such folder of the package: {', '.join(gone)}")
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    with use_db(f"{tree / 'mutations.sqlite'}", WorkDB.Mode.create) as database:
        init([f.relative_to(tree) for f in files], database, {})
        found = [item.mutations[0] for item in database.work_items]
    found = [
        m
        for m in found
        if not any(word in m.operator_name for word in NOT_IN_CODE)
        and not m.operator_name.endswith(SAME)
    ]
    found.sort(key=lambda m: (f"{m.module_path}", m.start_pos, m.operator_name, m.occurrence))
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
        seen.add((path, number))
        tests = covered.get((path, number)) or [
            test for test, _ in of_file.get(path, Counter()).most_common(MOST_AT_IMPORT)
        ]
        jobs.append((mutation, tuple(tests)[:MOST_TESTS]))
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


def survives(job: Job, tree: Path) -> str | None:
    """Return the difference of a mutation that no test notices, None for one that is killed."""
    mutation, tests = job
    file = tree / mutation.module_path
    original = file.read_text()
    changed = mutated(tree, mutation)
    try:
        file.write_text(changed)
        if tests and in_tree(tree, "-m", "pytest", *PYTEST, "--timeout=120", *tests).returncode:
            return None
    finally:
        file.write_text(original)
    before, after = original.splitlines(), changed.splitlines()
    number = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
    return f"`{before[number].strip()}` -> `{after[number].strip()}`" + (
        "" if tests else " (no test)"
    )


def main() -> int:
    """Run the mutations, write the table, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tests", nargs="+", default=[*SUITES])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trees = [Path(folder, f"{n}") for n in range(args.workers)]
        for tree in trees:
            copy_tree(tree)
        began = Path.cwd()
        os.chdir(trees[0])  # cosmic-ray takes paths from here
        covered = record_coverage(trees[0], args.tests)
        jobs = choose(trees[0], covered, args.count, args.seed)
        os.chdir(began)
        free: Queue[Path] = Queue()
        for tree in trees:
            free.put(tree)

        def run(job: Job) -> str | None:
            tree = free.get()
            try:
                found = survives(job, tree)
            finally:
                free.put(tree)
            print(job[0].module_path, job[0].start_pos[0], found or "killed", flush=True)
            return found

        with ThreadPoolExecutor(args.workers) as pool:
            outcomes = list(pool.map(run, jobs))
    text, code = results(jobs, outcomes, args.seed)
    print(text)
    if args.tests == [*SUITES]:
        (ROOT / "benchmarks" / "results" / "mutation.md").write_text(text)
    return code


def results(jobs: list[Job], outcomes: list[str | None], seed: int) -> tuple[str, int]:
    """Return the results in Markdown, and the exit status."""
    of_folder: dict[str, list[bool]] = {}
    survivors = []
    for (mutation, _), difference in zip(jobs, outcomes, strict=True):
        path = f"{mutation.module_path}"
        of_folder.setdefault(path.split("/")[1], []).append(difference is None)
        if difference is not None:
            survivors.append(
                f"| {path}:{mutation.start_pos[0]} | {difference.replace('|', chr(92) + '|')} |"
            )
    killed = sum(difference is None for difference in outcomes)
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
        *(f"| {name} | {sum(kills)} | {len(kills)} |" for name, kills in sorted(of_folder.items())),
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
