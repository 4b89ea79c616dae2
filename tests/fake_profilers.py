"""An `nsys` and a `rocprofv3` that behave as the real ones are documented to, without a GPU.

Both run the command that they are given and record what the script under
`tests/integration/scripts/under_profiler.py` tells them through FAKE_PROFILER: when the capture
range begins and ends, steps, and whether operators are noted. Options that the real tools do not
have end them, as they would.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.hand_built import FP8_GRADIENT_KERNEL, FP8_KERNEL
from tests.other_tools import Export, Recording, Rocpd

ROOT = Path(__file__).parents[1]
EVENTS = "FAKE_PROFILER"
SAID = "FAKE_PROFILER_COMMAND"
# Nsight Systems User Guide, "CLI Profile Command Switch Options", 2025.5.
NSYS = {
    "--trace": r"(?:cuda|nvtx|osrt|none)(?:,(?:cuda|nvtx|osrt))*",
    "--sample": r"process-tree|system-wide|none",
    "--cpuctxsw": r"process-tree|system-wide|none",
    "--cuda-graph-trace": r"graph|node",
    "--capture-range": r"none|cudaProfilerApi|hotkey|nvtx",
    "--capture-range-end": r"none|stop|stop-shutdown|repeat(?::\d+)?|repeat-shutdown:\d+",
    "--wait": r"primary|all",
    "--output": r".+",
    "--discard-environment": r"true|false",
}
# `rocprofv3 --help` of rocprofiler-sdk (source/bin/rocprofv3.py).
ROCPROF_FLAGS = {
    "--kernel-trace", "--hip-runtime-trace", "--marker-trace", "--memory-copy-trace",
    "--selected-regions",
}  # fmt: skip
ROCPROF = {
    "--output-format": r"rocpd|csv|json",
    "--output-directory": r".+",
    "--output-file": r".+",
}


def install(folder: Path, *, without: Sequence[str] = (), **environment: str) -> dict[str, str]:
    """Write both programs; return the environment in which they are found.

    Args:
        folder: where to put them.
        without: options that this release does not have.
        environment: more of it, for the programs: FAKE_LOSES, FAKE_EXIT, FAKE_QDSTRM.
    """
    programs = folder / "bin"
    programs.mkdir()
    for name in ("nsys", "rocprofv3"):
        program = programs / name
        program.write_text(
            f"#!{sys.executable} -I\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
            f"from tests.fake_profilers import {name}\n{name}(sys.argv[1:], {list(without)!r})\n"
        )
        program.chmod(0o700)
    return {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        EVENTS: str(folder / "events.jsonl"),
        SAID: str(folder / "command.json"),
        **environment,
    }


# -- nsys ---------------------------------------------------------------------------------------


def nsys(words: list[str], without: Sequence[str]) -> None:
    """Do what `nsys profile` and `nsys export` do."""
    known = {name: values for name, values in NSYS.items() if name not in without}
    if words[0] == "profile" and "--help" in words:
        print("usage: nsys profile [<args>] [application] [<application args>]", *known, sep="\n")
    elif words[0] == "profile":
        options, command = _options(words[1:], known)
        sys.exit(_profile(options, command))
    elif words[:3] == ["export", "--type", "sqlite"] and words[3] == "--output":
        _export(Path(words[5]), Path(words[4]))
    else:
        sys.exit(f"unrecognised command {words}")


def _options(words: list[str], known: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    options: dict[str, str] = {}
    while words and words[0].startswith("--"):
        name, _, value = words.pop(0).partition("=")
        if name not in known or not re.fullmatch(known[name], value):
            sys.exit(f"unrecognised option '{name}={value}'")
        options[name] = value
    return options, words


def _profile(options: dict[str, str], command: list[str]) -> int:
    code = _run(command)
    output = options["--output"].replace("%%", "%")
    reports = list(_captured(options["--capture-range-end"]))
    lost = os.environ.get("FAKE_LOSES")
    for number, events in enumerate(reports, 1):
        suffix = "" if options["--capture-range-end"] == "stop" else f".{number}"
        ending = "qdstrm" if "FAKE_QDSTRM" in os.environ else "nsys-rep"
        if str(number) != lost:
            Path(f"{output}{suffix}.{ending}").write_text(json.dumps(events))
    return int(os.environ.get("FAKE_EXIT", code))


def _run(command: list[str]) -> int:
    Path(os.environ[SAID]).write_text(json.dumps(sys.argv))
    code = subprocess.run(command, check=False).returncode
    return code if code >= 0 else 128 - code


def _events() -> list[dict[str, Any]]:
    path = Path(os.environ[EVENTS])
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _captured(end: str) -> Iterator[list[dict[str, Any]]]:
    """Yield what happened, in any process, while a capture range was open; `stop` honors one."""
    kept, most = 0, 1 if end == "stop" else int(end.partition(":")[2] or 10**9)
    inside: list[dict[str, Any]] | None = None
    for event in sorted(_events(), key=lambda event: event["ns"]):
        if event["call"] == "cudaProfilerStart" and inside is None and kept < most:
            inside = []
        elif event["call"] == "cudaProfilerStop" and inside is not None:
            yield inside
            inside, kept = None, kept + 1
        elif inside is not None:
            inside.append(event)
    if inside is not None:
        yield inside


def _export(report: Path, target: Path) -> None:
    events = json.loads(report.read_text())
    export = Export(target)
    for process in dict.fromkeys(event["pid"] for event in events):
        own = [event for event in events if event["pid"] == process]
        recording, steps = _recording(own)
        export.add(recording, 1 << 48 | process << 24)
        for name, start, stop in steps:
            row = (name, start, stop, 1 << 48 | process << 24 | 1)
            export.run("CREATE TABLE IF NOT EXISTS NVTX_EVENTS "
                       "(text, textId, start, end, globalTid, eventType, domainId)")  # fmt: skip
            export.run("INSERT INTO NVTX_EVENTS VALUES (?, NULL, ?, ?, ?, 60, 0)", *row)
    export.close()


def _recording(
    events: list[dict[str, Any]],
) -> tuple[Recording, list[tuple[str, int, int | None]]]:
    """Return the work of each step, one FP8 layer, and the steps as ranges without a thread."""
    from tests.other_tools import PROCESS

    found, noted, number = Recording(gpu="NVIDIA H200"), False, 0
    steps: dict[Any, tuple[str, int, int | None]] = {}
    thread = PROCESS | 1
    for event in events:
        if event["call"] == "emit_nvtx":
            noted = event["shapes"]
        elif event["call"] == "range_start":
            steps[event["id"]] = (event["name"], event["ns"], None)
        elif event["call"] == "range_end" and event["id"] in steps:
            steps[event["id"]] = (*steps[event["id"]][:2], event["ns"])
        elif event["call"] == "work":
            for leg in range(3):
                number += 1
                at = event["ns"] + 100 * leg
                kernel = FP8_GRADIENT_KERNEL if leg else FP8_KERNEL
                found.calls.append((number, at + 20, at + 30, thread))
                found.kernels.append((kernel, at + 40, at + 60, 0, 7, number))
                if noted:
                    found.ranges += _operators(event["step"], leg, at, thread)
    return found, list(steps.values())


_SHAPES = ([[64, 32], [32, 16]], [[64, 16], [16, 32]], [[32, 64], [64, 16]])


def _operators(step: int, leg: int, at: int, thread: int) -> Iterator[tuple[str, int, int, int]]:
    if leg:
        name = f"autograd::engine::evaluate_function: MmBackward0, seq = {step}"
        yield name, at + 1, at + 90, thread
    yield (
        f"aten::_scaled_mm, seq = {step}, op_id = 1, sizes = {_SHAPES[leg]}",
        at + 5,
        at + 80,
        thread,
    )


# -- rocprofv3 ----------------------------------------------------------------------------------


def rocprofv3(words: list[str], without: Sequence[str]) -> None:
    """Do what `rocprofv3 … -- COMMAND` does, but for becoming the command by exec."""
    known = (ROCPROF_FLAGS | set(ROCPROF)) - set(without)
    if "--help" in words:
        print("usage: rocprofv3 [options] -- <application>", *known, "csv, json, rocpd", sep="\n")
        return
    at = words.index("--")
    ours, command = words[:at], words[at + 1 :]
    options: dict[str, str] = {}
    while ours:
        name = ours.pop(0)
        if name in ROCPROF and name in known:
            options[name] = ours.pop(0)
        elif name not in known:
            sys.exit(f"rocprofv3: error: unrecognized arguments: {name}")
    code = _run(command)
    for process in dict.fromkeys(event["pid"] for event in _events()):
        stem = options["--output-file"].replace("%pid%", str(process))
        path = Path(options["--output-directory"], f"{stem}_results.db")
        own = [event for event in _selected() if event["pid"] == process]
        recording, steps = _recording(own)
        recording.ranges += [(name, s, e or s, 1) for name, s, e in steps]
        Rocpd(path, newer=False).add(recording).close()
    sys.exit(code)


def _selected() -> Iterator[dict[str, Any]]:
    inside: set[int] = set()
    for event in _events():
        if event["call"] == "roctxProfilerResume":
            inside.add(event["pid"])
        elif event["call"] == "roctxProfilerPause":
            inside.discard(event["pid"])
        elif event["pid"] in inside:
            yield event


def tables(database: Path) -> set[str]:
    """Return the names of the tables of a database."""
    connection = sqlite3.connect(database)
    try:
        rows = connection.execute("SELECT name FROM sqlite_master").fetchall()
    finally:
        connection.close()
    return {row[0] for row in rows}
