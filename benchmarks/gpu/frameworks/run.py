"""Run real frameworks' training scripts plain and attached, and compare what they did.

    python benchmarks/gpu/frameworks/run.py SOURCES OUT [--only NAME,NAME] [--gpus 1] [--jobs 4]

SOURCES holds each framework's repository under its own name. A row of `frameworks.toml` is one
training. The columns are: `plain`; `run`, with modules and numerics (--layers --numerics);
`every`, with windows through the whole run; `own`, under the framework's own profiler. OUT gets a
folder a run and `frameworks.md`, a table of all. Exit status 1 if any differs from what is
right.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomllib

HERE = Path(__file__).resolve().parent
LIMIT = 240  # seconds for one run


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


class Training:
    """One row of the table, with what its runs gave."""

    def __init__(self, row: dict[str, Any], sources: Path, out: Path) -> None:
        self.row = row
        self.name: str = row["name"]
        self.gpus: int = row.get("gpus", 1)
        self.out = out / self.name
        self.out.mkdir(parents=True, exist_ok=True)
        self.folder = sources / row["source"] if "source" in row else self.out
        self.results: dict[str, str] = {}
        self.plain: subprocess.CompletedProcess[str] | None = None
        self.wrong: list[str] = []
        self.environment = {
            **os.environ,
            **row.get("environment", {}),
            "PYTHONPATH": os.pathsep.join(
                [
                    *(f"{self.folder / p}" for p in self._paths(row)),
                    f"{HERE.parents[2]}",
                    os.environ.get("PYTHONPATH", ""),
                ]
            ),
            "TOKENIZERS_PARALLELISM": "false",
        }
        for name in ("NANOCHAT_BASE_DIR", "OLMO_DATA_ROOT"):
            if name in row.get("environment", {}):
                self.environment[name] = f"{self.folder / row['environment'][name]}"

    @staticmethod
    def _paths(row: dict[str, Any]) -> list[str]:
        return [
            p for p in row.get("environment", {}).get("PYTHONPATH", "").split(":") if p
        ]

    def command(self, extra: str = "") -> list[str]:
        text = self.row["command"].format(port=_free_port(), gpus=self.gpus, here=HERE)
        return [*text.split(), *extra.split()]

    def start(
        self, column: str, command: list[str]
    ) -> subprocess.CompletedProcess[str] | None:
        """Run a command in the framework's folder; keep what it printed."""
        began = time.monotonic()
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=LIMIT,
                errors="replace",
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            (self.out / f"{column}.log").write_bytes((late.stdout or b"")[-200_000:])
            (self.out / f"{column}.err").write_bytes((late.stderr or b"")[-200_000:])
            self.results[column] = f"not ended after {LIMIT} s"
            self.wrong.append(f"{column}: not ended")
            return None
        (self.out / f"{column}.log").write_text(done.stdout[-200_000:])
        (self.out / f"{column}.err").write_text(done.stderr[-200_000:])
        seconds = time.monotonic() - began
        print(
            f"{self.name:24} {column:6} {seconds:5.0f} s, exit {done.returncode}",
            flush=True,
        )
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "Error" in line]
            print(
                "    " + "\n    ".join(line[:300] for line in errors[:2] + errors[-1:]),
                flush=True,
            )
        return done

    def losses(self, done: subprocess.CompletedProcess[str]) -> list[str]:
        return re.findall(self.row["loss"], done.stdout + done.stderr)

    def attached(
        self, column: str, *options: str, extra: str = "", steps: str = ""
    ) -> None:
        """Run attached; compare with the plain run and with what is right, and say so at once."""
        known = len(self.wrong)
        self._attached(column, options, extra, steps)
        found = {name: value for name, value in self.results.items() if name != "plain"}
        print(f"    {self.name} {column}: {found} {self.wrong[known:]}", flush=True)

    def _attached(
        self, column: str, options: tuple[str, ...], extra: str, steps: str
    ) -> None:
        report = self.out / f"{column}.json"
        capture = self.out / f"{column}.capture"
        window = ["--steps", steps] if steps else []
        command = [
            sys.executable, "-m", "fp8verify", "run", *window, *options, "--format", "json",
            "-o", f"{report}", "--trace-dir", f"{capture}", "--exit-zero", "--",
        ]  # fmt: skip
        done = self.start(column, [*command, *self.command(extra)])
        if done is None:
            return
        expected = self.plain.returncode if self.plain else 0
        if done.returncode != expected:
            self.wrong.append(f"{column}: exit {done.returncode}, plain {expected}")
        try:
            found = json.loads(report.read_text())
        except (OSError, ValueError):
            tail = done.stderr.strip().splitlines()[-2:]
            self.results[column] = "no report"
            self.wrong.append(f"{column}: no report: {tail}")
            return
        share = found["gemm"]["fp8_share_of_time"]
        self.results[column] = found["verdict"] + (
            f" {share:.1%}" if share is not None else ""
        )
        if found["verdict"] not in self.row["verdict"].split():
            self.wrong.append(
                f"{column}: {found['verdict']}, expected {self.row['verdict']}"
            )
        low, high = self.row.get("share", (0, 1))
        if share is not None and not low <= share <= high:
            self.wrong.append(f"{column}: share {share:.3f}, expected {low} to {high}")
        if self.plain and not self._compare_losses(self.plain, done):
            self.results[column] += " (losses differ)"
        ranks = found.get("ranks", [])
        if column == "run" and ranks:
            layers = ranks[0].get("named_layers")
            numerics = ranks[0].get("numerics")
            self.results["layers"] = "yes" if layers else "no"
            self.results["numerics"] = "figures" if numerics else "none"
            notes = " ".join(f["code"] for f in found["findings"])
            self.results["findings"] = notes

    def _compare_losses(
        self,
        reference: subprocess.CompletedProcess[str],
        done: subprocess.CompletedProcess[str],
    ) -> bool:
        plain, ours = self.losses(reference), self.losses(done)
        if not plain:
            self.wrong.append("no loss found in the plain run")
            return False
        if len(plain) != len(ours):
            self.wrong.append(f"{len(ours)} losses attached, {len(plain)} plain")
            return False
        gap = max(
            abs(float(a) - float(b)) / max(abs(float(a)), 1e-9)
            for a, b in zip(plain, ours, strict=True)
        )
        self.results["loss gap"] = (
            f"{max(gap, float(self.results.get('loss gap', 0))):.2g}"
        )
        return gap < 0.02

    def run(self, columns: list[str]) -> None:
        row = self.row
        if row.get("needs") and find_spec(row["needs"]) is None:
            self.results["plain"] = f"not tried: {row['needs']} is not installed"
            return
        if not self.folder.is_dir():
            self.results["plain"] = "not tried: no source"
            return
        if columns == ["time"]:
            self.attached("time", steps=row["steps"])
            return
        plain = self.start("plain", self.command())
        if plain is None:
            return
        self.plain = plain
        self.results["plain"] = f"exit {plain.returncode}"
        if plain.returncode:
            lines = [line for line in plain.stderr.splitlines() if "Error" in line]
            self.wrong.append(f"plain run failed: {lines[-1:] or plain.stderr[-300:]}")
            return
        if "run" in columns:
            self.attached("run", "--layers", "--numerics", steps=row["steps"])
        if "every" in columns:
            self.attached("every", "--every", "6", "--window", "2")
        if "auto" in columns:
            self.attached("auto")
        if "own" in columns and row.get("own_profiler"):
            self.attached("own", extra=row["own_profiler"], steps="8-10")


def payoff_table(trainings: list[Training]) -> str:
    """Return the estimates of FP8 runs beside the measured ratio of step times."""
    steps = {}
    for training in trainings:
        meta = sorted(training.out.glob("time.capture/rank0.meta.json"))
        found = json.loads(meta[0].read_text()).get("steps_outside") if meta else None
        steps[training.name] = found and found["median_ns"] / 1e6
    lines = ["| run | ms a step | estimate | measured |", "|---|---|---|---|"]
    for training in trainings:
        report = training.out / "time.json"
        ranks = json.loads(report.read_text())["ranks"] if report.exists() else []
        payoff = (ranks[0].get("payoff") if ranks else None) or {}
        estimate = payoff.get("speedup_estimate")
        own, other = steps[training.name], steps.get(training.row.get("against", ""))
        lines.append(
            f"| {training.row['framework']} | {own and format(own, '.2f')} | "
            f"{estimate and format(estimate, '.2f')} | "
            f"{format(other / own, '.2f') if own and other else '-'} |"
        )
    return "\n".join(lines) + "\n"


def read_rows(only: set[str], gpus: int, group: str) -> list[dict[str, Any]]:
    """Return the rows to run, with what `like` refers to filled in."""
    rows = tomllib.loads((HERE / "frameworks.toml").read_text())["training"]
    by_name = {row["name"]: row for row in rows}
    for row in rows:
        if "like" in row:
            row["command"] = by_name[row["like"]]["command"].replace(*row["replace"])
    return [
        row
        for row in rows
        if row.get("gpus", 1) == gpus
        and row.get("group", "") == group
        and (not only or row["name"] in only)
    ]


def set_up(rows: list[dict[str, Any]], sources: Path) -> None:
    """Prepare each source once, as the first of all its rows that says how."""
    known = tomllib.loads((HERE / "frameworks.toml").read_text())["training"]
    setups = {row.get("source"): row for row in reversed(known) if "setup" in row}
    for source in dict.fromkeys(row.get("source") for row in rows):
        row, folder = setups.get(source), sources / (source or ".")
        if row is None or not folder.is_dir():
            continue
        paths = [f"{folder / p}" for p in Training._paths(row)]
        path = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path}
        ended = subprocess.run(
            ["bash", "-c", row["setup"]], cwd=folder, env=environment, check=False
        )
        print(f"setup of {row['name']}: exit {ended.returncode}", flush=True)


def table(trainings: list[Training]) -> str:
    """Return the results as a table in Markdown."""
    columns = ["plain", "run", "layers", "numerics", "every", "own", "auto", "loss gap"]
    lines = [
        "| run | " + " | ".join(columns) + " |",
        "|" + "---|" * (len(columns) + 1),
        *(
            f"| {t.row['framework']} | "
            + " | ".join(t.results.get(column, "-") for column in columns)
            + " |"
            for t in trainings
        ),
    ]
    return "\n".join(lines) + "\n"


def versions() -> str:
    """Return the versions that the results hold for."""
    from importlib.metadata import PackageNotFoundError, version

    names = ("torch", "torchao", "transformer_engine", "transformers", "accelerate", "lightning",
             "deepspeed", "trl", "peft", "litgpt")  # fmt: skip
    found = []
    for name in names:
        with suppress(
            PackageNotFoundError
        ):  # also where a folder of the name has no metadata
            found.append(f"{name} {version(name)}")
    return ", ".join(found)


def main() -> int:
    """Run what is asked for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--group", default="", help="payoff: pairs for docs/payoff.md")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--columns", default="run,every,own")
    args = parser.parse_args()
    rows = read_rows(
        {name for name in args.only.split(",") if name}, args.gpus, args.group
    )
    sources, out = args.sources.resolve(), args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    set_up(rows, sources)
    trainings = [Training(row, sources, out) for row in rows]
    columns = args.columns.split(",")
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(lambda training: training.run(columns), trainings))
    text = f"{time.strftime('%Y-%m-%d')}, {versions()}\n\n{table(trainings)}"
    if args.group == "payoff":
        text += "\n" + payoff_table(trainings)
    (out / "frameworks.md").write_text(text)
    print(text)
    for training in trainings:
        for line in training.wrong:
            print(f"WRONG {training.name}: {line}")
        print(f"{training.name}: {training.results.get('findings', '')}")
    return int(any(training.wrong for training in trainings))


if __name__ == "__main__":
    sys.exit(main())
