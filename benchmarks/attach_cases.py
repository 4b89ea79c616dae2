"""Run training loops with and without `fp8verify run` and compare all that can be seen of them.

    python benchmarks/attach_cases.py            # prints the table
    python benchmarks/attach_cases.py --write    # and puts it into docs/attaching.md

The loops in `attach/` follow the public sources that their first lines name, by repository, file
and commit, on models that a CPU trains in a moment; the others are those of the tests. Compared are
the exit code, standard output and standard error to the last byte (but for times, process ids and
addresses), the files left behind and the processes still running.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fp8verify.capture.ranks import read_ranks

ROOT = Path(__file__).parents[1]
LOOPS, SCRIPTS = ROOT / "benchmarks" / "attach", ROOT / "tests" / "integration" / "scripts"
PAGE = ROOT / "docs" / "attaching.md"
SELF_PROFILING = SCRIPTS / "self_profiling.py"
BEGIN, END = "<!-- cases: begin -->\n", "<!-- cases: end -->\n"
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node")
ACCELERATE = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1")


class Case(NamedTuple):
    """A training: what to run after `python`, its window, and the package that it needs.

    The script's docstring begins with the source that it is written from.
    """

    name: str
    command: tuple[object, ...]
    window: str = "3-4"
    needs: str = "torch"

    @property
    def source(self) -> str:
        """Repository, file and commit that the loop is written from; "-" for one of the tests."""
        script = next(word for word in self.command if isinstance(word, Path))
        if script.parent != LOOPS:
            return "-"
        first = (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").split("\n")
        return re.split(r"[:(]", first[0])[0].strip().rstrip(".")


CASES = (
    Case("GPT, accumulation", (LOOPS / "nanogpt.py",)),
    Case("the same, compiled", (LOOPS / "nanogpt.py", "--compile")),
    Case("Muon, gc frozen", (LOOPS / "nanochat.py",)),
    Case("loader workers", (LOOPS / "mnist.py",)),
    Case("spawned trainings, shared weights", (LOOPS / "hogwild.py",)),
    Case("DataParallel, meters", (LOOPS / "imagenet.py",)),
    Case("GAN, two optimizers", (LOOPS / "dcgan.py",)),
    Case("LBFGS closures", (LOOPS / "time_sequence.py",)),
    Case("DDP by torchrun", (*TORCHRUN, "2", LOOPS / "ddp.py")),
    Case("PPO rollouts", (LOOPS / "ppo.py",)),
    Case("skipped updates, EMA", (LOOPS / "timm_train.py",)),
    Case("own signals and profiler", (LOOPS / "kempnerforge.py",)),
    Case("own profiler, again and again", (LOOPS / "profiler_recipe.py",)),
    Case("optimizers in backward", (LOOPS / "step_in_backward.py",)),
    Case("three trainings in one process", (LOOPS / "sweep.py",), "6-7"),
    Case("Fabric, measured FLOPs", (LOOPS / "litgpt.py",), needs="lightning"),
    Case("Lightning's Trainer", (LOOPS / "lightning_autoencoder.py",), needs="lightning"),
    Case("transformers' Trainer", (LOOPS / "run_clm.py",), needs="transformers"),
    Case(
        "accelerate launch",
        (*ACCELERATE, LOOPS / "accelerate_accumulation.py"),
        needs="accelerate",
    ),
    Case("DeepSpeed's engine", (*TORCHRUN, "1", LOOPS / "deepspeed_cifar.py"), needs="deepspeed"),
    Case("float8 by torchao", (LOOPS / "float8.py",), needs="torchao"),
    Case("own profiler after the window", (SELF_PROFILING, "after", "theirs.json"), "4-6"),
    Case("crash inside the window", (SCRIPTS / "loop.py", "--crash-at", "4")),
    Case("sys.exit before the window", (SCRIPTS / "loop.py", "--exit-at", "2")),
    Case("killed", (SCRIPTS / "loop.py", "--kill-at", "6")),
)


class Outcome(NamedTuple):
    """All that can be seen of a training."""

    code: int
    stdout: str
    stderr: str
    files: tuple[tuple[str, str], ...]
    children: int


def scrub(text: str) -> str:
    """Take out what differs between any two runs: times, process ids, addresses, folders."""
    patterns = (
        r"[WIE]?\d{4}[-:]?\d\d[-:]?\d\d[T ][\d:.,]+( \d+(:\d+)?)?",
        r"[WIE]\d{4} [\d:.]+ \d+",
        r"0x[0-9a-f]+|\d+:\d+|pid:? \d+|\bin \d+\.\d+|port: \d+",
        r"_(runtime|per_second)'?\s*[:=]\s*'?[\d.:]+",
        r"\d+(\.\d+)?\s?(it/s|s/it|ms\b|seconds)|\d\d:\d\d|'train_\w+': '?[\d.e-]+'?",
        r"/tmp/\S+?/(plain|ours)",
    )
    return re.sub("|".join(patterns), "…", text)


def execute(case: Case, folder: Path, before: tuple[object, ...]) -> Outcome:
    """Run a case in a folder of its own, behind other words or behind none."""
    folder.mkdir()
    command = [sys.executable, *map(str, (*before, *case.command))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["ATTACH_CASE"] = mark = f"{folder}"
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return Outcome(
        code, scrub(done.stdout), scrub(done.stderr), left_in(folder), still_running(mark)
    )


def left_in(folder: Path) -> tuple[tuple[str, str], ...]:
    """Return the files that a training left, without ours; those that name times by name only."""
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and path.relative_to(folder).parts[0] not in ("capture", "report")
    )
    return tuple((str(path.relative_to(folder)), _content(path)) for path in found)


def _content(path: Path) -> str:
    if path.suffix in (".pt", ".safetensors"):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return ""


def still_running(mark: str) -> int:
    """Return how many processes have the case's mark in their environment."""
    return sum(mark.encode() in _environment(entry) for entry in Path("/proc").glob("[0-9]*"))


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:  # it has ended, or is not ours to look at
        return b""


def differences(plain: Outcome, ours: Outcome) -> str:
    """Return what differs between two outcomes, "none" if nothing does."""
    fields = [name for name in Outcome._fields if getattr(plain, name) != getattr(ours, name)]
    return ", ".join(fields) or "none"


def recorded(capture: Path) -> str:
    """Return what the windows of a capture became, by rank."""
    found = [
        f"{window.first}-{window.last} {window.state}"
        for _, meta in sorted(read_ranks(capture).items())
        for window in meta.windows
        if window.state != "skipped"
    ]
    return "; ".join(found) or "nothing"


def compare(case: Case, folder: Path, *, verbose: bool) -> str:
    """Run a case both ways and return its row of the table."""
    plain = execute(case, folder / "plain", ())
    run = ("-m", "fp8verify", "run", "--steps", case.window, "--trace-dir", "capture")
    ours = execute(
        case, folder / "ours", (*run, "-o", "report", "--exit-zero", "--", sys.executable)
    )
    if verbose and plain != ours:
        print(plain, ours, sep="\n", file=sys.stderr)
    seen = recorded(folder / "ours" / "capture")
    same = differences(plain, ours)
    return f"| {case.name} | {case.source} | {plain.code} | {ours.code} | {same} | {seen} |"


def main() -> None:
    """Run all cases whose packages are installed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    parser.add_argument("--verbose", action="store_true", help="show what differs")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    args = parser.parse_args()
    rows = [
        "| training | written from | exit code | with us | differs | recorded |",
        "|---|---|---|---|---|---|",
    ]
    for case in CASES:
        if find_spec(case.needs) is None or args.only not in case.name:
            continue
        with tempfile.TemporaryDirectory() as name:
            rows.append(compare(case, Path(name), verbose=args.verbose))
        print(rows[-1], flush=True)
    if args.write:
        text = PAGE.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(before + BEGIN + "\n".join(rows) + "\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
