"""Measure what every start costs: `fp8verify --version`, and `inspect` of a trace of 0.5 MB.

    python benchmarks/door.py [OTHER ...]

OTHER are folders that hold another version's package (a checkout, say); versions run by turns, each
command in a process of its own, and the least of the times counts: other work on the machine only
adds to it. Byte code is written before. The table goes to results/door.md.
"""

from __future__ import annotations

import argparse
import compileall
import datetime
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
TRACE = HERE / "traces" / "fp8_cudagraphs" / "rank0.json.gz"
RESULT = HERE / "benchmarks" / "results" / "door.md"
COMMANDS = {
    "`--version`": ["--version"],
    "`inspect` of a trace of 0.5 MB": ["inspect", str(TRACE)],
}
MAIN = "from fp8verify.cli import main; main()"


def cost(package: Path, args: list[str]) -> tuple[float, float]:
    """Return wall and CPU seconds of one command."""
    environment = {**os.environ, "PYTHONPATH": str(package)}
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, *args],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd="/",
    ) as process:
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime


def version(package: Path) -> str:
    """Return the version that a folder holds."""
    text = (package / "fp8verify" / "version.py").read_text(encoding="utf-8")
    return str(re.findall(r'"([\d.]+)"', text)[0])


def main() -> None:
    """Measure, print a table and write it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("others", nargs="*", type=Path)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    packages = [HERE, *(path.resolve() for path in options.others)]
    for package in packages:
        compileall.compile_dir(package / "fp8verify", quiet=2)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    lines = [
        f"# What every start costs\n\n{datetime.date.today()}, {machine}.\n",
        "| command | version | wall (s) | CPU (s) |\n|---|---|---|---|",
    ]
    for command, args in COMMANDS.items():
        found: dict[Path, list[tuple[float, float]]] = {
            package: [] for package in packages
        }
        for _ in range(options.repeats):
            for package in packages:
                found[package].append(cost(package, args))
        for package, costs in found.items():
            wall, cpu = (min(column) for column in zip(*costs, strict=True))
            lines.append(f"| {command} | {version(package)} | {wall:.3f} | {cpu:.3f} |")
    print("\n".join(lines))
    options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
