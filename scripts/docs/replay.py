"""Stands for a run under `fp8verify run --every 1000`: its windows are captures of traces/.

It leaves each where the agent leaves a window that is over, so the watch judges, keeps and
reports them as it does those of a run. For the picture of docs/live.md.
"""

import json
import shutil
import sys
from pathlib import Path

TRACES = Path(__file__).parents[2] / "traces"
WINDOWS = ("fp8_compiled", "fp8_compiled", "bf16_filter_rejects_all", "fp8_compiled")


def close(live: Path, first: int, capture: str) -> None:
    """Leave a window of two steps."""
    folder = live / f"step-{first:09d}"
    shutil.copytree(
        TRACES / capture, folder, ignore=shutil.ignore_patterns("expected*")
    )
    meta = folder / "rank0.meta.json"
    record = json.loads(meta.read_text(encoding="utf-8"))
    record["window"][0].update(first=first, last=first + 1)
    meta.write_text(json.dumps(record), encoding="utf-8")
    (folder / "rank0.closed").touch()


if __name__ == "__main__":
    for number, capture in enumerate(WINDOWS, 1):
        close(Path(sys.argv[1], "live"), 1000 * number, capture)
