"""Measure what reading a trace costs: CPU seconds, wall seconds and peak memory.

    python benchmarks/trace_speed.py CAPTURE.json.gz --megabytes 119 --folder /tmp/big

Builds a big trace from the capture (see build_traces.py) and reads it in a separate process for
each reader, three times each; the median is shown. Readers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

READERS = {
    "fp8verify read_trace": (
        "fp8verify",
        "from pathlib import Path\nfrom fp8verify.trace import read_trace\nread_trace(Path(path))",
    ),
    "json.load": (
        "json",
        (
            "import gzip, json\n"
            "json.load(gzip.open(path) if path.endswith('.gz') else open(path, 'rb'))"
        ),
    ),
    "orjson.loads": (
        "orjson",
        (
            "import gzip, orjson\n"
            "orjson.loads((gzip.open(path) if path.endswith('.gz') else open(path, 'rb')).read())"
        ),
    ),
    "HTA kernel breakdown": (
        "hta",
        (
            "from hta.trace_analysis import TraceAnalysis\n"
            "TraceAnalysis(trace_files={0: path}).get_gpu_kernel_breakdown(visualize=False)"
        ),
    ),
}

MEASURE = """
import json, resource, sys, time
path, wall = sys.argv[1], time.perf_counter()
{code}
wall = time.perf_counter() - wall
usage = resource.getrusage(resource.RUSAGE_SELF)
cpu = usage.ru_utime + usage.ru_stime
print(json.dumps({{"cpu_s": cpu, "wall_s": wall, "peak_mb": usage.ru_maxrss / 1024}}))
"""


def measure(code: str, trace: Path, repeats: int) -> dict[str, float]:
    """Return the medians over fresh processes; CPU time includes starting Python."""
    runs = []
    for _ in range(repeats):
        command = [sys.executable, "-c", MEASURE.format(code=code), str(trace)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def pack(trace: Path) -> Path:
    """Return the trace compressed as the profiler would."""
    packed = trace.with_suffix(".json.gz")
    with trace.open("rb") as plain, gzip.open(packed, "wb", compresslevel=6) as out:
        shutil.copyfileobj(plain, out)
    return packed


def main() -> None:
    """Build the trace, measure every reader on it and print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("capture", type=Path)
    parser.add_argument("--megabytes", type=int, default=119)
    parser.add_argument("--folder", type=Path, required=True, help="where the big traces go")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", help="measure readers whose name contains this")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    plain = options.folder / f"{options.megabytes}mb.json"
    # A child's peak counts from its parent's size, so the building is left to a child too.
    builder = [sys.executable, str(Path(__file__).with_name("build_traces.py"))]
    size = ["--megabytes", str(options.megabytes)]
    subprocess.run([*builder, str(options.capture), str(plain), *size], check=True)
    print(f"| {plain.stat().st_size / 1e6:.0f} MB of JSON | CPU s | wall s | peak MB |")
    print("|---|---|---|---|")
    for name, (module, code) in READERS.items():
        if importlib.util.find_spec(module) is None or (options.only or "") not in name:
            continue
        for trace in (plain, pack(plain)):
            row = measure(code, trace, options.repeats)
            label = f"{name}{', .gz' if trace.suffix == '.gz' else ''}"
            print(f"| {label} | {row['cpu_s']:.2f} | {row['wall_s']:.2f} | {row['peak_mb']:.0f} |")


if __name__ == "__main__":
    main()
