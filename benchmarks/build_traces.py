"""Build big traces from a small capture: its events repeated, with shifted times and fresh ids.

    python benchmarks/build_traces.py CAPTURE.json.gz OUT.json --megabytes 119
    python benchmarks/build_traces.py CAPTURE.json.gz FOLDER --ranks 64

The layout is Kineto's own: the CPU section of all repeats first, then the GPU section.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

CPU_CATEGORIES = {
    "cpu_op",
    "user_annotation",
    "fwdbwd",
    "python_function",
    "cpu_instant_event",
}
ID_STRIDE = 1 << 20
STEP_PREFIX = "ProfilerStep#"


def load(path: Path) -> dict[str, Any]:
    """Read a whole trace the plain way."""
    raw = path.read_bytes()
    document = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    if not isinstance(document, dict):
        raise SystemExit(
            f"{path}: the old layout without metadata is not supported here."
        )
    return document


def template(event: dict[str, Any]) -> str:
    """Render an event as Kineto does, with fields for the time and the ids."""
    fields = dict(event)
    fields["ts"] = "@ts@"
    if "id" in fields:
        fields["id"] = f"@id{fields['id']}@"
    args = dict(fields.pop("args", {}))
    for key in ("External id", "correlation"):
        if key in args:
            args[key] = f"@id{args[key]}@"
    name = str(fields["name"])
    if name.startswith(STEP_PREFIX):
        fields["name"] = f"{STEP_PREFIX}@step{name[len(STEP_PREFIX) :]}@"
    head = [f'"{key}": {json.dumps(fields.pop(key))}' for key in _HEAD if key in fields]
    times = [
        f'"{key}": {json.dumps(fields.pop(key))}'
        for key in ("ts", "dur")
        if key in fields
    ]
    rest = [f'"{key}": {json.dumps(value)}' for key, value in fields.items()]
    lines = [", ".join(head), ", ".join(times + rest)]
    if args:
        inner = ", ".join(
            f'"{key}": {json.dumps(value)}' for key, value in args.items()
        )
        lines.append(f'"args": {{\n      {inner}\n    }}')
    return "  {\n    " + ",\n    ".join(lines) + "\n  }"


_HEAD = ("ph", "cat", "name", "id", "pid", "tid")


class Repeater:
    """Writes one section of events again and again."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        # Alternating literal text and fields: "ts", "id123", "step7".
        self._parts = [
            (template(event).replace('"@', "@").replace('@"', "@").split("@"), event)
            for event in events
        ]

    def render(self, repeat: int, shift: float, steps: int) -> str:
        """Return the section once more, `repeat` strides of ids and `shift` microseconds later."""
        texts = []
        for parts, event in self._parts:
            out = list(parts)
            for index in range(1, len(out), 2):
                out[index] = _field(out[index], event, repeat, shift, steps)
            texts.append("".join(out))
        return ",\n".join(texts)


def _field(
    field: str, event: dict[str, Any], repeat: int, shift: float, steps: int
) -> str:
    if field == "ts":
        return f"{event['ts'] + repeat * shift:.3f}"
    if field.startswith("id"):
        return str(int(field[2:]) + repeat * ID_STRIDE)
    # The template has no closing quote after a step's name: it is part of the field.
    return f'{int(field[4:]) + repeat * steps}"'


def build(source: Path, target: Path, size: int) -> int:
    """Write a trace of at least `size` bytes and return how many repeats it took."""
    document = load(source)
    events = [event for event in document.pop("traceEvents") if "cat" in event]
    events = [event for event in events if event["cat"] != "Trace"]
    cpu = [event for event in events if event["cat"] in CPU_CATEGORIES]
    gpu = [event for event in events if event["cat"] not in CPU_CATEGORIES]
    times = [event["ts"] for event in events]
    shift = round(max(times) - min(times) + 1000)
    steps = sum(event["name"].startswith(STEP_PREFIX) for event in cpu)
    sections = [Repeater(cpu), Repeater(gpu)]
    once = sum(len(section.render(0, shift, steps)) for section in sections)
    repeats = max(1, -(-size // once))
    with target.open("w", encoding="utf-8") as out:
        head = json.dumps(document, indent=2).removesuffix("\n}")
        out.write(head + ',\n  "traceEvents": [\n')
        first = True
        for section in sections:
            for repeat in range(repeats):
                out.write(
                    ("" if first else ",\n") + section.render(repeat, shift, steps)
                )
                first = False
        out.write("\n  ]\n}\n")
    return repeats


def build_ranks(source: Path, target: Path, count: int) -> None:
    """Write a folder with the capture once for each rank, under its number."""
    document = load(source)
    target.mkdir(parents=True)
    for rank in range(count):
        document["distributedInfo"] = {
            "backend": "nccl",
            "rank": rank,
            "world_size": count,
        }
        data = json.dumps(document, indent=1).encode()
        (target / f"rank{rank}.json.gz").write_bytes(gzip.compress(data, 6))


def main() -> None:
    """Parse the command line and build one trace, or one a rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--megabytes", type=int, default=119)
    parser.add_argument("--ranks", type=int, help="a folder of so many ranks instead")
    options = parser.parse_args()
    if options.ranks:
        build_ranks(options.source, options.target, options.ranks)
        return
    repeats = build(options.source, options.target, options.megabytes * 1_000_000)
    print(
        f"{options.target}: {options.target.stat().st_size / 1e6:.1f} MB, {repeats} repeats"
    )


if __name__ == "__main__":
    main()
