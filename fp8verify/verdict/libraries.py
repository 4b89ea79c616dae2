"""Which library and generation of kernels ran each low-precision GEMM, and what changed in it.

A GEMM that leaves cuBLASLt, CUTLASS or Composable Kernel for a slower kernel of the same format
keeps its share of FP8: only the library tells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import msgspec

from fp8verify.model.kernels import KernelRow
from fp8verify.model.report import Report
from fp8verify.model.verdict import Finding
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import Leg
from fp8verify.text import abridged, listed, shown_size
from fp8verify.thresholds import SLOWER_KERNEL
from fp8verify.verdict.clauses import optional
from fp8verify.verdict.findings_table import finding

MAX_ORIGINS = 5000
_SHOWN = 3
_OTHER_LEGS = (Leg.ATTENTION, Leg.OPTIMIZER, None)
# In kernels' names: nvjet_sm90_…, cutlass3x_sm100_…, cutlass::arch::Sm90, …_gfx950.
_GENERATION = lazy_pattern(
    r"(?:(?<![A-Za-z0-9])(?P<family>sm|gfx)_?|Sm)(?P<number>\d{2,3})(?!\d)"
)


Key: TypeAlias = tuple[str, str, str]


class GemmOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """What ran the GEMMs of one size, leg and format.

    Attributes:
        leg: fprop, dgrad, wgrad, backward, recompute or unknown.
        size: "8192x4096x14336" (M x N x K), empty where no shapes were recorded.
        precision: the format.
        libraries: where the kernels come from.
        generation: the newest architecture in their names, as "sm90"; empty if they name none.
        us: mean time of a GEMM in µs, 0 where the size is not known.
    """

    leg: str
    size: str
    precision: str
    libraries: tuple[str, ...]
    generation: str = ""
    us: float = 0.0

    @property
    def key(self) -> Key:
        """Leg, size and format: what two runs have in common."""
        return self.leg, self.size, self.precision

    def __str__(self) -> str:
        """Name the libraries: "cuBLAS (sm90)"."""
        generation = optional(f" ({self.generation})", when=self.generation)
        return f"{listed(self.libraries)}{generation}"


def origins_of(report: Report) -> tuple[GemmOrigin, ...]:
    """Return what ran the low-precision GEMMs of a run's layers, by leg, size and format."""
    rows: dict[Key, list[KernelRow]] = defaultdict(list)
    for rank in report.ranks:
        for row in filter(_is_low_gemm_of_layer, rank.kernels):
            rows[_key_of(row)].append(row)
    keys = sorted(rows)[:MAX_ORIGINS]
    return tuple(_origin(key, rows[key]) for key in keys)


def _is_low_gemm_of_layer(row: KernelRow) -> bool:
    is_low_gemm = row.role.is_gemm and row.precision.is_low
    return is_low_gemm and row.leg not in _OTHER_LEGS


def _key_of(row: KernelRow) -> Key:
    batch, *sides = row.shape or (1,)
    size = shown_size(sides)
    if batch != 1:
        size = f"{batch} x {size}"
    leg = row.leg.value if row.leg is not None else ""
    return leg, size, row.precision.value


def _origin(key: Key, rows: Iterable[KernelRow]) -> GemmOrigin:
    leg, size, precision = key
    launches = 0
    time_us = 0.0
    libraries = set()
    names = []
    for row in rows:
        libraries.add(row.library)
        names.append(row.name)
        time_us += row.time_us
        # A kernel that adds up the parts of a GEMM has no FLOPs of its own, and is no launch of it.
        if row.tflops is not None:
            launches += row.kernels
    return GemmOrigin(
        leg=leg,
        size=size,
        precision=precision,
        libraries=tuple(sorted(libraries)),
        generation=_newest(names),
        us=round(time_us / launches, 3) if size and launches else 0.0,
    )


def _newest(names: Iterable[str]) -> str:
    """Return the newest architecture that names of kernels have, "" if they have none."""
    newest = (0, "")
    for name in names:
        for found in _GENERATION.finditer(name[:4096]):
            text = f"{found['family'] or 'sm'}{found['number']}"
            newest = max(newest, (int(found["number"]), text))
    return newest[1]


def changes(
    before: Iterable[GemmOrigin], now: Iterable[GemmOrigin]
) -> Iterator[Finding]:
    """Yield a finding for each library that GEMMs of the same format left for another one."""
    changed: dict[_Change, list[str]] = defaultdict(list)
    pairs = _pairs(tuple(before), tuple(now))
    for was, is_now in pairs:
        is_older = _is_older(was, is_now)
        longer = is_now.us / was.us if was.us and is_now.us else 0.0
        is_faster = 0.0 < longer <= 1 / SLOWER_KERNEL and not is_older
        if is_faster or not _is_another(was, is_now):
            continue
        change = _Change(
            precision=is_now.precision,
            was=str(was),
            now=str(is_now),
            is_worse=is_older or longer >= SLOWER_KERNEL,
        )
        where = f"{is_now.leg} {is_now.size}".rstrip()
        if longer:
            where += f" ({longer:.1f} times as long)"
        changed[change].append(where)
    # The worse ones first: the first finding gives the exit code's reason.
    for change in sorted(changed, key=lambda one: not one.is_worse):
        yield finding(
            "library-changed",
            optional("as-fast", when=not change.is_worse),
            format=change.precision,
            was=change.was,
            now=change.now,
            where=abridged(changed[change], _SHOWN),
        )


class _Change(NamedTuple):
    """Another library for GEMMs of a format, and whether it is older or slower."""

    precision: str
    was: str
    now: str
    is_worse: bool


def _is_another(was: GemmOrigin, now: GemmOrigin) -> bool:
    """Whether a kernel ran that is of another library, or of an older generation."""
    known = set(was.libraries)
    is_new = not known.issuperset(now.libraries)
    return is_new or _is_older(was, now)


def _is_older(was: GemmOrigin, now: GemmOrigin) -> bool:
    first = _GENERATION.fullmatch(was.generation)
    second = _GENERATION.fullmatch(now.generation)
    if first is None or second is None:
        return False
    if first["family"] != second["family"]:
        return False
    return int(second["number"]) < int(first["number"])


def _pairs(
    before: tuple[GemmOrigin, ...], now: tuple[GemmOrigin, ...]
) -> Iterator[tuple[GemmOrigin, GemmOrigin]]:
    """Yield what ran the same GEMMs before and now; of other sizes, what ran the leg as a whole."""
    known = {origin.key: origin for origin in before}
    common = [origin for origin in now if origin.key in known]
    for origin in common:
        yield known[origin.key], origin
    compared = {(origin.leg, origin.precision) for origin in common}
    wholes = _by_leg(before)
    for key, one in _by_leg(now).items():
        if key not in compared and key in wholes:
            yield wholes[key], one


def _by_leg(
    origins: Iterable[GemmOrigin],
) -> Mapping[tuple[str, str], GemmOrigin]:
    groups: dict[tuple[str, str], list[GemmOrigin]] = defaultdict(list)
    for one in origins:
        groups[one.leg, one.precision].append(one)
    wholes = {}
    for (leg, precision), alike in groups.items():
        libraries: set[str] = set()
        for one in alike:
            libraries.update(one.libraries)
        wholes[leg, precision] = GemmOrigin(
            leg=leg,
            size="",
            precision=precision,
            libraries=tuple(sorted(libraries)),
            generation=_newest(one.generation for one in alike),
        )
    return wholes
