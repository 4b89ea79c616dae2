"""Run training loops with and without `fp8verify run` and compare all that can be seen of them.

    python benchmarks/attach_cases.py            # prints the table; exit code 1 if a case differs
    python benchmarks/attach_cases.py --write    # and puts it into benchmarks/results/attach.md

The loops in `attach/` follow the public sources that their first lines name, by repository, file
and commit, on models that a CPU trains in a moment; `attach/libraries.py` trains real libraries;
the others are those of the tests. As many cases run at a time as there are cores; each run has one
thread. Compared is all that `benchmarks.harness.Outcome` has: exit code, output, files, processes,
and of a process that is not behind a launcher its descriptors, threads, signal handlers, memory,
graphs, graph breaks and recompilations.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fp8verify.capture.files import read_ranks

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
sys.path.append(
    str(ROOT / "build" / "libraries")
)  # timm, see scripts/test_libraries.sh

from benchmarks.harness import SPARE_MB, pair  # noqa: E402

MB_OF_EVENTS = 100  # of memory for one MB of a packed trace
LIBRARIES = (
    "transformers",
    "peft",
    "trl",
    "accelerate",
    "lightning",
    "timm",
    "diffusers",
    "schedulefree",
    "torchao",
)
LOOPS, SCRIPTS = (
    ROOT / "benchmarks" / "attach",
    ROOT / "tests" / "integration" / "scripts",
)
REAL = LOOPS / "libraries.py"
SEEN = LOOPS / "seen.py"
WAYS = ("", "--layers", "--numerics", "--every 4 --window 1 --numerics")
PAGE = ROOT / "benchmarks" / "results" / "attach.md"
SELF_PROFILING = SCRIPTS / "self_profiling.py"
# What a watch says on standard error, by design: the run's verdict, where it changes.
VERDICT = re.compile(r"^fp8verify: [A-Z]+ at step \d+.*\n", re.MULTILINE)
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node")
TORCHRUN_PORT = threading.Lock()  # all launches by torchrun listen on the same one
ACCELERATE = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1")


class Case(NamedTuple):
    """A run: what to run after `python`, its window, and the package that it needs.

    The script's docstring begins with the source that it is written from.
    """

    name: str
    command: tuple[object, ...]
    window: str = "3-4"
    needs: str = "torch"
    options: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Repository, file and commit that the loop is written from; "-" for one of the tests."""
        script = next(word for word in self.command if isinstance(word, Path))
        if script == REAL:
            return self.needs
        if script.parent != LOOPS:
            return "-"
        first = (
            ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
        ).split("\n")
        return re.split(r"[:(]", first[0])[0].strip().rstrip(".")


CASES = (
    Case("GPT, accumulation", (LOOPS / "nanogpt.py",)),
    Case("the same, compiled", (LOOPS / "nanogpt.py", "--compile")),
    Case("Muon, gc frozen", (LOOPS / "nanochat.py",)),
    Case("loader workers", (LOOPS / "mnist.py",)),
    Case("spawned runs, shared weights", (LOOPS / "hogwild.py",)),
    Case("DataParallel, meters", (LOOPS / "imagenet.py",)),
    Case("GAN, two optimizers", (LOOPS / "dcgan.py",)),
    Case("LBFGS closures", (LOOPS / "time_sequence.py",)),
    Case("DDP by torchrun", (*TORCHRUN, "2", LOOPS / "ddp.py")),
    Case("PPO rollouts", (LOOPS / "ppo.py",)),
    Case("skipped updates, EMA", (LOOPS / "timm_train.py",)),
    Case("own signals and profiler", (LOOPS / "kempnerforge.py",)),
    Case("own profiler, again and again", (LOOPS / "profiler_recipe.py",)),
    Case("optimizers in backward", (LOOPS / "step_in_backward.py",)),
    Case("three runs in one process", (LOOPS / "sweep.py",), "6-7"),
    Case("Fabric, measured FLOPs", (LOOPS / "litgpt.py",), needs="lightning"),
    Case(
        "Lightning's Trainer", (LOOPS / "lightning_autoencoder.py",), needs="lightning"
    ),
    Case("transformers' Trainer", (LOOPS / "run_clm.py",), needs="transformers"),
    Case(
        "accelerate launch",
        (*ACCELERATE, LOOPS / "accelerate_accumulation.py"),
        needs="accelerate",
    ),
    Case(
        "DeepSpeed's engine",
        (*TORCHRUN, "1", LOOPS / "deepspeed_cifar.py"),
        needs="deepspeed",
    ),
    Case("float8 by torchao", (LOOPS / "float8.py",), needs="torchao"),
    Case(
        "own profiler after the window", (SELF_PROFILING, "after", "theirs.json"), "4-6"
    ),
    Case(
        "crash inside the window",
        (SCRIPTS / "loop.py", "--at", "4", "raise ValueError(step)"),
    ),
    Case(
        "sys.exit before the window", (SCRIPTS / "loop.py", "--at", "2", "sys.exit(4)")
    ),
    Case("killed", (SCRIPTS / "loop.py", "--at", "6", "os.kill(os.getpid(), 9)")),
    Case("21 language models", (REAL, "transformers"), "3-4", "transformers"),
    Case("the same, compiled", (REAL, "transformers_compiled"), "3-4", "transformers"),
    Case(
        "Llama by Inductor, full graph",
        (REAL, "transformers_inductor"),
        "3-4",
        "transformers",
    ),
    Case(
        "step and optimizer compiled",
        (REAL, "step_with_optimizer"),
        "3-4",
        "transformers",
    ),
    Case("LoRA, eager and compiled", (REAL, "peft"), "3-4", "peft"),
    Case("SFTTrainer", (REAL, "trl"), "3-4", "trl"),
    Case("Accelerator, accumulation", (REAL, "accelerate"), "3-4", "accelerate"),
    Case("Trainer.fit, eager and compiled", (REAL, "lightning"), "3-4", "lightning"),
    Case("vision models, eager and compiled", (REAL, "timm"), "3-4", "timm"),
    Case("UNet, eager and compiled", (REAL, "diffusers"), "3-4", "diffusers"),
    Case("AdamWScheduleFree", (REAL, "schedulefree"), "3-4", "schedulefree"),
)

# Runs that look at themselves.
SELF_SEEING = tuple(
    Case(f"{case} {way}".strip(), (SEEN, *case.split()), options=tuple(way.split()))
    for case in ("saves", "scripts", "compiles_late", "forks", "observes", "modes", "signals",
                 "descriptors", "ends 2", "ends 6", "ends 15")
    for way in WAYS
)  # fmt: skip


def recorded(capture: Path) -> str:
    """Return what the windows of a capture became, by rank; of a watch those that it keeps."""
    found = [
        f"{window.first}-{window.last} {window.state}"
        for folder in (capture, *sorted(capture.glob("kept/*")))
        for _, meta in sorted(read_ranks(folder).items())
        for window in meta.windows
        if window.state != "skipped"
    ]
    return "; ".join(found) or "nothing"


def compare(case: Case, folder: Path) -> tuple[str, list[str]]:
    """Run a case both ways; return its row of the table and what differs."""
    witness = isinstance(case.command[0], Path) and case.command[0] != SEEN
    options = (
        *case.options,
        *(() if "--every" in case.options else ("--steps", case.window)),
    )
    plain, ours = pair(folder, *case.command, options=options, witness=witness)
    if "--every" in case.options:
        ours = replace(ours, stderr=VERDICT.sub("", ours.stderr))
    found = plain.differences(
        ours, spare_mb=SPARE_MB + MB_OF_EVENTS * packed_mb(folder)
    )
    if case.needs in LIBRARIES and plain.code:
        found.append(f"the training itself failed: {plain.stderr[-2000:]}")
    seen = recorded(folder / "attached" / "capture")
    fields = ", ".join(line.partition(":")[0] for line in found) or "none"
    row = f"| {case.name} | {case.source} | {plain.code} | {ours.code} | {fields} | {seen} |"
    return row, found


def tried(case: Case) -> tuple[str, list[str], str]:
    """Return a case's row of the table, what differs, and what of earlier tries differed.

    Some runs fail now and then by themselves (torchrun's gloo threads at their end): where the two
    differ, two more pairs have to be equal.
    """
    launches = case.command[: len(TORCHRUN)] == TORCHRUN
    before = ""
    with TORCHRUN_PORT if launches else nullcontext():
        with tempfile.TemporaryDirectory() as name:
            row, found = compare(case, Path(name))
        for _ in range(2 if found else 0):
            before += "\n".join(["differs, tried again:", row, *found, ""])
            with tempfile.TemporaryDirectory() as name:
                row, found = compare(case, Path(name))
            if found:
                break
    return row, found, before


def packed_mb(folder: Path) -> float:
    """Return the size of the traces that were written."""
    traces = (folder / "attached" / "capture").glob("*.json.gz")
    return sum(path.stat().st_size for path in traces) / (1 << 20)


def main() -> int:
    """Run all cases whose packages are installed; return 1 if one differs."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument(
        "--write", action="store_true", help="put the table into the docs"
    )
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument(
        "--seeing", action="store_true", help="trainings that look at themselves"
    )
    args = parser.parse_args()
    rows = [
        "| script | written from | exit code | attached | differs | recorded |",
        "|---|---|---|---|---|---|",
    ]
    differs = False
    cases = [
        case
        for case in (SELF_SEEING if args.seeing else CASES)
        if find_spec(case.needs) is not None and args.only in case.name
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for row, found, before in pool.map(tried, cases):
            rows.append(row)
            differs |= bool(found)
            print(f"{before}{row}", *found, sep="\n", flush=True)
    if args.write:
        write("seeing" if args.seeing else "cases", rows)
    return int(differs)


def write(name: str, rows: list[str]) -> None:
    """Put a table, with how many cases it has, between the marks of its name on the page."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    equal = sum(row.split(" | ")[4] == "none" for row in rows[2:])
    date = time.strftime("%Y-%m-%d")
    tried = (
        f"{len(rows) - 2} cases were tried on {date}, and {equal} of them were equal."
    )
    text = "\n".join([tried, f"With {versions()}.", "", *rows])
    PAGE.write_text(f"{before}{begin}{text}\n{end}{after}", encoding="utf-8")


def versions() -> str:
    """Return the versions of the libraries that are installed."""
    found = [name for name in ("torch", *LIBRARIES) if find_spec(name) is not None]
    return ", ".join(f"{name} {version(name)}" for name in found)


if __name__ == "__main__":
    sys.exit(main())
