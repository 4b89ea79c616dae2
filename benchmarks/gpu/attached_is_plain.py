"""Train on a GPU plain and attached: `python -m benchmarks.gpu.attached_is_plain`.

Compiled FP8 with --layers and --numerics, and steps that change threads, each several times; exit
code 1 if one differs. The profiler's own memory is not counted.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.harness import pair

SCRIPT = Path(__file__).with_name("attached_loops.py")

CASES = (
    (("compiled",), ("--steps", "6-8")),
    (("compiled",), ("--steps", "6-8", "--layers", "--numerics")),
    (("compiled",), ("--steps", "1-2", "--layers")),
    *(
        (("threads", steps), ("--steps", "3-5,9-10"))
        for steps in (
            "ABBABBBBBBBB",
            "MMMABABMMMMM",
            "MMMAAAAAAAAAAAAAAAA",
            "AAAAAAAAAAAA",
        )
    ),
)


def main() -> int:
    differ = False
    for command, options in CASES:
        with tempfile.TemporaryDirectory() as name:
            plain, attached = pair(Path(name), SCRIPT, *command, options=options)
            found = plain.differences(attached, spare_mb=8192)
            report = (Path(name) / "attached" / "report").read_text(encoding="utf-8")
        differ |= bool(found) or plain.code != 0
        verdict = next(
            (line for line in report.splitlines() if line[:1].isupper()), "no verdict"
        )
        print(*command, *options, "|", found or "the same", "|", verdict, flush=True)
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
