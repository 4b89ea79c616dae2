"""Hold the kernel-name grammars against tables of labeled names.

usage: python benchmarks/kernel_names.py [CSV ...] [--json] [--show]

Prints, for each table and family, how many roles and precisions are right, unknown and wrong,
then the same for GEMM rows whose label is certain. `--show` lists the wrong ones. Columns read:
kernel_name or name, family, role, precision_class or precision, confidence; or name and truth,
where the truth is a precision, "no GEMM", "attention" or "undecidable", and all others are certain.
The label fp4 leaves the kind of scales open: nvfp4 and mxfp4 are right there; below16, fp32/tf32 and
16bit leave the format open.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
import zlib
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from fp8verify.kernels import classify, decode
from fp8verify.terms import KernelName, Precision, Role

_LISTS = Path(__file__).resolve().parents[2] / "shared" / "kernels"
DEFAULT = sorted(_LISTS.glob("kernel_names*.csv"))
ROLES = {
    "scale": "cast_quantize",
    "memcpy": "memory",
}  # labels that are no role of ours
CLASSES = frozenset(precision.value for precision in Precision)
# Labels that our classes tell apart.
REFINED = {
    "fp4": ("nvfp4", "mxfp4"),
    "fp32/tf32": ("fp32", "tf32"),
    "16bit": ("bf16", "fp16"),
}
TRUTHS = {"no GEMM": "other", "attention": "attention"}  # that are roles
LOW = {one.value for one in Precision if one.is_low}
GEMM_ROLES = ("gemm", "grouped_gemm")


TRUTH = "truth"
REQUIRED = frozenset({"family", "role", "confidence"})


class Row(NamedTuple):
    """A labeled name and what was decoded from it."""

    name: str
    family: str
    role: str
    precision: str
    certain: bool
    found: KernelName

    def outcome(self, what: str) -> str:
        """Compare the "role" or the "precision" with its label."""
        if what == "role":
            right = self.found.role.value == self.role
            unknown = self.found.role is Role.OTHER
            if self.family == TRUTH:  # only GEMM, attention and the rest are told apart
                is_gemm = self.found.role.is_gemm
                right = is_gemm == (self.role == "gemm")
                unknown = not is_gemm
        else:
            right = self.found.precision.value in (
                self.precision,
                *REFINED.get(self.precision, ()),
            )
            is_open = (
                self.found.precision is Precision.BELOW16 and self.precision in LOW
            )
            unknown = self.found.precision is Precision.UNKNOWN or is_open
            if self.family == TRUTH and self.role != "gemm":
                right = not self.found.role.is_gemm
        return "right" if right else "unknown" if unknown else "wrong"

    @property
    def falsely_fp8(self) -> bool:
        """Whether it is called FP8 and labeled otherwise."""
        labeled = self.precision in CLASSES and Precision(self.precision).is_fp8
        judged = self.found.role.is_gemm or self.precision != "unknown"
        return judged and self.found.precision.is_fp8 and not labeled

    @property
    def half(self) -> int:
        """The half of the table (0 or 1) that the name falls in, by its checksum."""
        return zlib.crc32(self.name.encode()) & 1


def read(path: Path) -> list[Row]:
    """Read the table and decode every name in it."""
    with path.open(newline="", encoding="utf-8") as stream:
        rows = csv.DictReader(stream)
        columns = set(rows.fieldnames or ())
        if TRUTH in columns:
            return [_of_truth(row["name"], row[TRUTH]) for row in rows]
        missing = REQUIRED - columns
        if missing:
            sys.exit(f"{path} lacks the columns {', '.join(sorted(missing))}.")
        return [
            Row(
                row.get("kernel_name") or row["name"],
                row["family"] or "(none)",
                ROLES.get(row["role"], row["role"]),
                row.get("precision_class") or row["precision"],
                row["confidence"] == "certain",
                decode(row.get("kernel_name") or row["name"]),
            )
            for row in rows
        ]


def _of_truth(name: str, truth: str) -> Row:
    """Label a name by its truth, and decide it as far as a kernel without operator is."""
    role = TRUTHS.get(truth, "gemm")
    precision = "unknown" if truth in TRUTHS or truth == "undecidable" else truth
    found = classify(decode(name), None)
    return Row(name, TRUTH, role, precision, truth != "undecidable", found)


def tally(rows: list[Row]) -> dict[str, dict[str, int]]:
    """Count the outcomes of role and precision."""
    counts = {
        what: {"right": 0, "unknown": 0, "wrong": 0} for what in ("role", "precision")
    }
    for row in rows:
        for what, count in counts.items():
            count[row.outcome(what)] += 1
    return counts


def summary(rows: list[Row], seconds: float) -> dict[str, object]:
    """Gather every figure of the report."""
    families: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        families[row.family].append(row)
    gemms = [row for row in rows if row.certain and row.role in GEMM_ROLES]
    return {
        "names": len(rows),
        "microseconds_per_name": round(1e6 * seconds / max(len(rows), 1), 1),
        "called_fp8_but_not_labeled_so": sum(row.falsely_fp8 for row in rows),
        "all": tally(rows),
        "certain": tally([row for row in rows if row.certain]),
        "certain_gemm": tally(gemms),
        "certain_gemm_by_half": [
            tally([row for row in gemms if row.half == n]) for n in (0, 1)
        ],
        "families": {name: tally(families[name]) for name in sorted(families)},
    }


def show(rows: list[Row]) -> None:
    """List the rows that are wrong in role or precision, and certain GEMMs left unknown."""
    for row in rows:
        gemm = row.certain and row.role in GEMM_ROLES
        bad = [w for w in ("role", "precision") if row.outcome(w) == "wrong"]
        bad += [
            w for w in ("role", "precision") if gemm and row.outcome(w) == "unknown"
        ]
        if bad:
            label = f"{row.role}/{row.precision}{'' if row.certain else ' (inferred)'}"
            found = f"{row.found.role.value}/{row.found.precision.value}"
            print(f"[{row.family}] label {label}, found {found}: {row.name[:180]}")


def line(title: str, counts: dict[str, dict[str, int]]) -> str:
    """Format one line of the table."""
    cells = [
        f"{counts[w][o]:5d}" for w in counts for o in ("right", "unknown", "wrong")
    ]
    return f"{title:34s} {' '.join(cells[:3])}   {' '.join(cells[3:])}"


def report(rows: list[Row], seconds: float) -> None:
    """Print the figures as a table."""
    figures = summary(rows, seconds)
    print(f"{'':34s} {'role':^17s}   {'precision':^17s}")
    print(
        f"{'family':34s} {'right':>5s} {'unkn.':>5s} wrong   {'right':>5s} {'unkn.':>5s} wrong"
    )
    families: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        families[row.family].append(row)
    for name in sorted(families):
        print(line(name, tally(families[name])))
    gemms = [row for row in rows if row.certain and row.role in GEMM_ROLES]
    print(line("all", tally(rows)))
    print(line("certain", tally([row for row in rows if row.certain])))
    print(line("certain GEMM", tally(gemms)))
    for half in (0, 1):
        print(
            line(
                f"certain GEMM, half {half}",
                tally([r for r in gemms if r.half == half]),
            )
        )
    print(f"called FP8 and not labeled so: {figures['called_fp8_but_not_labeled_so']}")
    print(f"{figures['microseconds_per_name']} µs a name")


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tables", nargs="*", type=Path, default=DEFAULT)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--show", action="store_true", help="list what is wrong")
    arguments = parser.parse_args()
    figures = {}
    for table in arguments.tables:
        if not table.is_file():
            print(
                f"{table}: no such table\nName the CSV files as arguments.",
                file=sys.stderr,
            )
            return 2
        start = time.perf_counter()
        rows = read(table)
        seconds = time.perf_counter() - start
        figures[table.name] = summary(rows, seconds)
        if not arguments.json:
            print(f"== {table.name}")
            report(rows, seconds)
        if arguments.show:
            show(rows)
    if arguments.json:
        print(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
