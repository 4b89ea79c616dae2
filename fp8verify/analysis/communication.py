"""What the collectives of a rank moved, in which elements, and how long they took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import asdict

from fp8verify.analysis.gemms import micros, rounded
from fp8verify.analysis.timeline import Timeline
from fp8verify.report.model.diagnosis import CollectiveRow, CommunicationReport, WeightGather
from fp8verify.terms import Collective, Role
from fp8verify.thresholds import FEW_ELEMENTS, LEAST_FP8_BYTES, MOST_FP8_BYTES
from fp8verify.trace import Trace

# Bytes of an element by NCCL's name for its type (c10::ScalarType, torch 2.11).
ELEMENT_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool"), 1),
    **dict.fromkeys(("Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
}
# NCCL has no 8-bit float that FSDP2 uses: torchao's FP8 weights travel as bytes (measured on an
# H200, torch 2.11, torchao 0.17).
_BYTES = ("Byte", "Char")
_GATHERS = ("allgather", "_allgather_base", "all_gather")
_SCATTERS = ("reduce_scatter", "_reduce_scatter_base", "reducescatter")


class CollectiveTotal(Collective, frozen=True, kw_only=True):
    """All collectives of one kind on a rank; `in_elements` and `out_elements` are per call.

    Without a record the name is the kernel's, the type is "" and the sizes are 0.
    """

    calls: int
    time_ns: int

    @property
    def is_scalar(self) -> bool:
        """Whether it moved one element, as the amax of a tensor or a loss."""
        return self.in_elements == self.out_elements == 1

    def bytes_of(self, elements: int) -> int:
        """Bytes of this number of elements in all calls; 0 if the type is not known."""
        return elements * self.calls * ELEMENT_BYTES.get(self.dtype, 0)

    def has_name(self, names: tuple[str, ...]) -> bool:
        """Whether its name begins with one of these."""
        return self.name.lower().startswith(names)


def collective_totals(trace: Trace, roles: Sequence[Role]) -> tuple[CollectiveTotal, ...]:
    """Add up the communication kernels of a trace by what they moved."""
    totals: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    columns = trace.kernels
    for place, (role, collective) in enumerate(zip(roles, columns.collective, strict=True)):
        if collective >= 0 or role is Role.COMMUNICATION:
            name = -1 if collective >= 0 else columns.name[place]
            total = totals[collective, name]
            total[0] += 1
            total[1] += columns.duration_ns[place]
    unknown = Collective(name="", dtype="", in_elements=0, out_elements=0, group_size=0)
    found = []
    for (number, name), (calls, time_ns) in totals.items():
        fields = asdict(trace.collectives[number] if number >= 0 else unknown)
        if number < 0:
            fields["name"] = trace.names[name].partition("(")[0][:80]
        found.append(CollectiveTotal(**fields, calls=calls, time_ns=time_ns))
    return tuple(found)


def communication_report(
    totals: Sequence[CollectiveTotal], timeline: Timeline
) -> CommunicationReport | None:
    """Return the collectives of a rank, the longest first; None if there are none."""
    if not totals:
        return None
    merged: dict[tuple[str, str, int], list[CollectiveTotal]] = defaultdict(list)
    for total in totals:
        merged[total.name, total.dtype, total.group_size].append(total)
    rows = [
        CollectiveRow(
            name=name,
            dtype=dtype or None,
            group_size=group_size or None,
            calls=sum(t.calls for t in same),
            bytes_in=sum(t.bytes_of(t.in_elements) for t in same) if known else None,
            bytes_out=sum(t.bytes_of(t.out_elements) for t in same) if known else None,
            time_us=micros(sum(t.time_ns for t in same)),
        )
        for (name, dtype, group_size), same in merged.items()
        for known in (dtype in ELEMENT_BYTES,)
    ]
    gathers = weight_gathers(totals)
    return CommunicationReport(
        time_us=micros(timeline.communication),
        exposed_us=micros(timeline.exposed),
        collectives=tuple(sorted(rows, key=lambda row: -row.time_us)),
        weight_gather=gathers if gathers.eight_bit_bytes or gathers.wider_bytes else None,
    )


def weight_gathers(totals: Sequence[CollectiveTotal]) -> WeightGather:
    """Add up the all-gathers of more than scalars, and compare bytes with the gradients reduced.

    FSDP2 also sends groups of mixed types as bytes, so the element type alone proves nothing:
    it is FP8 only if there is one byte per parameter.
    """
    gathers = [t for t in totals if t.has_name(_GATHERS) and t.in_elements > FEW_ELEMENTS]
    eight_bit = [t for t in gathers if ELEMENT_BYTES.get(t.dtype) == 1]
    wider = [t for t in gathers if ELEMENT_BYTES.get(t.dtype) != 1]
    narrow_bytes = sum(t.bytes_of(t.in_elements) for t in eight_bit)
    if any(total.dtype not in _BYTES for total in eight_bit):
        per_parameter: float | None = 1.0
    else:
        gradients = [t.in_elements for t in totals if t.has_name(_SCATTERS) and t.in_elements]
        # Bytes per parameter of the group whose size fits: between FP8 and two FP32.
        fitting = (
            [t.out_elements / count for count in gradients if 0.9 <= t.out_elements / count <= 4.2]
            for t in eight_bit
        )
        nearest = (min(fit, key=lambda ratio: abs(ratio - round(ratio))) for fit in fitting if fit)
        per_parameter = min(nearest, default=None)
    fp8 = None if per_parameter is None else LEAST_FP8_BYTES <= per_parameter < MOST_FP8_BYTES
    return WeightGather(
        fp8=fp8 if narrow_bytes else False,
        eight_bit_bytes=narrow_bytes,
        wider_bytes=sum(t.bytes_of(t.in_elements) for t in wider),
        bytes_per_parameter=rounded(per_parameter),
    )


def shards_gradients(totals: Sequence[CollectiveTotal]) -> bool:
    """Whether gradients are reduced to shards, as FSDP does and DDP does not."""
    return any(total.has_name(_SCATTERS) for total in totals)
