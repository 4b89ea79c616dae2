"""Rules on the numbers of a run: each on a record that has the fault, and on one that has not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fp8verify.analysis.gather import gather
from fp8verify.analysis.rank import NO_LOSSES, NO_META, RankEvidence, Recorded
from fp8verify.analysis.recorded import numerics_report, scalars_of
from fp8verify.capture.files import read_numerics
from fp8verify.capture.schema import (
    FrameworkSteps,
    GradientRecord,
    MeasuredRecord,
    NumericsRecord,
    RankMeta,
    RankNumerics,
    RecipeRecord,
    ScalesRecord,
    SlotRecord,
    TensorRecord,
    WindowRecord,
)
from fp8verify.errors import InputError
from fp8verify.logs.losses import LossSeries
from fp8verify.logs.statements import LogReading
from fp8verify.model.verdict import Finding
from fp8verify.trace import Trace
from fp8verify.verdict.expected import collect_requested
from fp8verify.verdict.findings import join_findings, rank_findings
from tests.hand_built import present

# These facts have numbers and no kernels.
OF_NO_TRACE = (
    "no-gpu-kernels",
    "no-training-step",
    "window-not-complete",
    "ranks-not-observed",
)
NAMES = [f"layers.{n}.down" for n in range(6)]


def tensor(layer: str = NAMES[0], kind: str = "input", **fields: Any) -> TensorRecord:
    usual = {
        "source": "replay", "format": "e4m3", "scaling": "tensorwise", "amax": 4.0, "rms": 1.0,
        "flushed": 0.0, "saturated": 0.0, "zero_rows": 0.0, "sqnr_db": 31.5,
    }  # fmt: skip
    return TensorRecord(layer=layer, tensor=kind, **{**usual, **fields})


def all_layers(**odd: Any) -> list[TensorRecord]:
    """Return sound rows of six layers; `odd` is what the third one's tensor has instead."""
    rows = [
        tensor(name, kind)
        for name in NAMES
        for kind in ("input", "weight", "grad_output")
    ]
    kind = odd.pop("kind", "input")
    return [
        replace(row, **odd) if row.layer == NAMES[2] and row.tensor == kind else row
        for row in rows
    ]


def recipe(**fields: Any) -> RecipeRecord:
    usual = {
        "name": "DelayedScaling", "forward": "e4m3", "backward": "e5m2", "margin": 0,
        "interval": 1, "history_length": 16, "algorithm": "max", "reduces_amax": True,
    }  # fmt: skip
    return RecipeRecord(**{**usual, **fields})


def slot(
    scale: float, before: float | None, amax: Sequence[float], **fields: Any
) -> SlotRecord:
    """Return a scale whose history held all of `amax`, the last three recorded in the window."""
    known = list(amax)
    usual = {
        "layer": NAMES[0], "tensor": "input", "gemm": 0, "format": "e4m3", "largest": 448.0,
        "recipe": 0, "group": -1, "tensor_parallel": -1, "scale": repr(scale),
        "scale_before": None if before is None else repr(before), "amax": tuple(known),
        "amax_before": known[-4] if len(known) > 3 else None, "staged": 0.0, "staged_before": 0.0,
        "largest_amax": max(known, default=0.0),
        "largest_amax_before": max(known[:-3], default=0.0),
    }  # fmt: skip
    return SlotRecord(**{**usual, **fields})


def measured_step(
    step: int, rows: Sequence[TensorRecord], recomputed: Sequence[str] = ()
) -> MeasuredRecord:
    return MeasuredRecord(
        step=step, time=0.0, rows=tuple(rows), recomputed_high=tuple(recomputed), gradient=None,
        notes=(),
    )  # fmt: skip


def facts_of(
    rows: Sequence[TensorRecord] = (),
    slots: Sequence[SlotRecord] = (),
    *,
    rank: int = 0,
    recipes: Sequence[RecipeRecord] = (),
    groups: Sequence[tuple[int, ...]] = (),
    series: Sequence[MeasuredRecord] = (),
    recomputed: Sequence[str] = (),
    losses: LossSeries | None = None,
    loss_scales: Sequence[float | None] = (),
    meta: RankMeta = NO_META,
) -> RankEvidence:
    measured = measured_step(5, rows, recomputed)
    window = ScalesRecord(
        last_step=3, recipes=tuple(recipes) or (recipe(),), groups=tuple(groups),
        slots=tuple(slots), loss_scales=tuple(loss_scales),
    )  # fmt: skip
    record = NumericsRecord(
        schema=1, rank=rank, windows=(window,), measured=measured, reason=None
    )
    numerics = RankNumerics(record=record, series=tuple(series))
    recorded = Recorded(meta, numerics=numerics, losses=losses or NO_LOSSES)
    return RankEvidence(gather(Trace(source="made", rank=rank)), recorded)


def found(*facts: RankEvidence) -> list[Finding]:
    requested = collect_requested(LogReading(), facts)
    findings = join_findings(
        facts, [rank_findings(one, requested) for one in facts], requested
    )
    return [finding for finding in findings if finding.code not in OF_NO_TRACE]


def codes(*facts: RankEvidence) -> list[str]:
    return [finding.code for finding in found(*facts)]


def test_sound_rows_have_no_finding() -> None:
    assert codes(facts_of(all_layers())) == []


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"nan": 0.01}, "nan-or-inf"),
    ({"rows_not_finite": 1, "amax": None}, "nan-or-inf"),
    ({"kind": "grad_output", "flushed": 0.10}, "gradient-flushed"),
    ({"kind": "grad_output", "flushed": 0.01}, "underflow-high"),
    ({"flushed": 0.3}, "underflow-high"),
    ({"sqnr_db": 20.0}, "sqnr-low"),
    ({"sqnr_db": 22.0, "scaling": "mxfp8"}, "sqnr-low"),
    ({"kind": "weight", "amax": 400.0}, "outlier-layer"),
    ({"kind": "grad_output", "amax": 400.0}, "outlier-layer"),
    ({"rms": 4.0 / 2**13}, "outlier-layer"),
    ({"saturated": 1e-5, "scaling": "delayed"}, "saturates"),
    ({"top_blocks": 0.05, "scaling": "mxfp8"}, "mx-last-bucket"),
    ({"zero_rows": 0.01, "scaling": "rowwise"}, "zero-rows"),
]


@pytest.mark.parametrize(("odd", "code"), FAULTS)
def test_a_fault_is_found_on_its_layer(odd: dict[str, Any], code: str) -> None:
    (finding,) = found(facts_of(all_layers(**odd)))
    assert (finding.code, finding.layers) == (code, (NAMES[2],))
    assert finding.hint


def series_of(steps: dict[int, Sequence[TensorRecord]]) -> list[MeasuredRecord]:
    return [measured_step(step, rows) for step, rows in steps.items()]


@pytest.mark.parametrize(("odd", "code"), FAULTS)
def test_a_fault_of_later_steps_is_found_with_its_first(
    odd: dict[str, Any], code: str
) -> None:
    bad = all_layers(**odd)
    series = series_of(
        {5: all_layers(), 6: all_layers(), 7: bad, 8: bad, 9: all_layers()}
    )
    (finding,) = found(facts_of(all_layers(), series=series))
    assert (finding.code, finding.layers) == (code, (NAMES[2],))
    assert finding.message.endswith("; in 2 of 5 measured steps, first in step 7")


def test_the_worst_step_is_named_beside_the_first() -> None:
    steps = {n: all_layers(kind="grad_output", flushed=n / 20) for n in (5, 6, 7, 8)}
    steps[9] = all_layers(kind="grad_output", flushed=0.9995)
    steps[10] = all_layers()
    (finding,) = found(facts_of(steps[5], series=series_of(steps)))
    assert "flushes 100.0% of it to zero" in finding.message
    assert finding.message.endswith(
        "in 5 of 6 measured steps, first in step 5, worst in step 9"
    )


def test_tensors_that_break_after_the_first_one_are_counted() -> None:
    broken = [
        replace(row, inf=0.1) if n in (3, 5) else row
        for n, row in enumerate(all_layers())
    ]
    (finding,) = found(facts_of(broken))
    assert finding.message.endswith("with infinity in step 5, before 1 other tensor")


def test_scalars_keep_a_layer_that_is_all_nan() -> None:
    (line,) = series_of(
        {7: [tensor(nan=1.0, amax=None, sqnr_db=None), tensor(NAMES[1])]}
    )
    assert scalars_of(line)["fp8/not_finite_fwd"] == 1.0
    assert "fp8/not_finite_bwd" not in scalars_of(line)


@pytest.mark.parametrize(
    "odd",
    [
        {"kind": "grad_output", "flushed": 0.009}, {"sqnr_db": 20.1}, {"sqnr_db": None},
        {"sqnr_db": 22.1, "scaling": "mxfp8"},
        {"sqnr_db": 20.1, "scaling": "mxfp8", "format": "e5m2"}, {"kind": "weight", "amax": 399.0},
        {"kind": "grad_output", "format": "e5m2", "rms": 4.0 / 2**14},
        {"scaling": "rowwise", "rms": 4.0 / 2**14}, {"rms": 4.001 / 2**13},
        {"top_blocks": 0.049, "scaling": "mxfp8"}, {"zero_rows": 0.009, "scaling": "rowwise"},
        {"saturated": 0.99e-5}, {"zero_rows": 0.5}, {"saturated": 0.01, "source": "bytes"},
    ],
)  # fmt: skip
def test_what_sound_runs_show_is_no_fault(odd: dict[str, Any]) -> None:
    assert codes(facts_of(all_layers(**odd))) == []


def test_what_follows_from_an_outlier_is_not_accused() -> None:
    rows = [
        replace(row, amax=4000.0) if (row.layer, row.tensor) in {
            (NAMES[1], "weight"), (NAMES[3], "input")
        } else row
        for row in all_layers()
    ]  # fmt: skip
    (finding,) = found(facts_of(rows))
    assert finding.layers == (NAMES[1],)
    assert (
        "the weight of layers.1.down reaches 4e+03, 1e+03 times the median"
        in finding.message
    )


def test_an_input_that_made_its_weight_grow_is_the_cause() -> None:
    later = [
        replace(row, amax=4000.0)
        if (row.layer, row.tensor) == (NAMES[2], "weight")
        else row
        for row in all_layers(amax=4000.0)
    ]
    steps = {7: all_layers(amax=4000.0), 8: later}
    (finding,) = found(facts_of(series=series_of(steps)))
    assert finding.message.startswith("the input of layers.2.down reaches 4e+03")


def test_the_gradient_that_is_flushed_first_is_accused_and_nothing_else() -> None:
    # As the backward pass meets them: the last layer is sound, the one before it is the cause.
    shares = [("layers.5.down", 0.001), ("layers.4.down", 0.7), ("layers.3.down", 0.8)]
    rows = [
        tensor(
            layer,
            "grad_output",
            format="e5m2",
            flushed=share,
            sqnr_db=25.0 if share < 0.1 else 4,
        )
        for layer, share in shares
    ]
    (finding,) = found(facts_of(rows))
    assert (finding.code, finding.layers) == (
        "gradient-flushed",
        ("layers.4.down", "layers.3.down"),
    )
    assert "grad_output of layers.4.down flushes 70.0% of it to zero" in finding.message


def test_a_gradient_below_every_scale_is_not_sent_to_other_scales() -> None:
    rows = [
        tensor(
            NAMES[0], "grad_output", format="e5m2", flushed=1.0, amax=1e-30, sqnr_db=0.0
        )
    ]
    (finding,) = found(facts_of(rows))
    assert "largest value is 1e-30" in finding.hint
    assert "rowwise" not in finding.hint


@pytest.mark.parametrize("name", [NAMES[0], NAMES[-1]])
def test_an_outlier_is_held_against_all_its_peers(name: str) -> None:
    rows = [
        tensor(one, amax=2000.0 if one == name else 4.0 + n)
        for n, one in enumerate(NAMES)
    ]
    (finding,) = found(facts_of(rows))
    assert (finding.code, finding.layers) == ("outlier-layer", (name,))


def test_with_few_peers_nobody_is_an_outlier() -> None:
    rows = [tensor(NAMES[0]), tensor(NAMES[1]), tensor(NAMES[2], amax=1e6, rms=1e5)]
    assert codes(facts_of(rows)) == []


STEADY = [4.0, 4.2, 3.9, 4.1, 4.0, 4.1, 3.95]
SOUND = 448.0 / 4.2


def line(step: int, amax: float) -> MeasuredRecord:
    return measured_step(step, [tensor(amax=amax)])


def scale(*arguments: Any, **settings: Any) -> dict[str, Any]:
    """Return one scale, under a recipe with other settings than usual."""
    return {"slots": [slot(*arguments)], "recipes": [recipe(**settings)]}


UNSTABLE = "scale-unstable"
SCALES: dict[str, tuple[dict[str, Any], str]] = {
    "the largest amax": (scale(SOUND, SOUND, STEADY), ""),
    "the newest": (scale(448.0 / 3.95, 448.0 / 4.1, STEADY, algorithm="most_recent"), ""),
    "a step that the history just lost": (
        {"slots": [slot(44.8, 44.8, STEADY, largest_amax_before=10.0)]}, ""),
    "an unused slot": (scale(1.0, 1.0, [0.0] * 7), ""),
    "a history of no step": (scale(1.0, 1.0, []), ""),
    "with a margin": (scale(SOUND / 2, SOUND / 2, STEADY, margin=1), ""),
    "never updated": ({"slots": [slot(1.0, 1.0, STEADY)]}, "scale-stuck"),
    "of a history that just began": ({"slots": [slot(1.0, 1.0, STEADY[:3])]}, ""),
    "never rolled": (
        {"slots": [slot(1.0, 1.0, [], staged=3.0, staged_before=2.0)]}, "scale-stuck"),
    "clipped by half": (
        {"slots": [slot(448.0 / 9.2, SOUND, [4.0, 4.1, 4.2, 4.05, 9.0, 9.1, 9.2])]}, "saturates"),
    "without the margin": (scale(SOUND / 2, SOUND / 2, STEADY), "scale-stuck"),
    "of each step": (scale(2 * SOUND, 2 * SOUND, STEADY), "scale-stuck"),
    "of every tenth step": (scale(2 * SOUND, 2 * SOUND, STEADY, interval=10), ""),
    "a jump": (scale(448.0 / 20, SOUND, [*STEADY, 20.0]), "amax-spike"),
    "zero": (scale(0.0, 1.0, STEADY), UNSTABLE),
    "infinity": (scale(math.inf, 1.0, STEADY), UNSTABLE),
    "octaves": (scale(7.0, 7.0, [1.0, 64.0, 2.0, 50.0, 1.5, 60.0, 1.0]), UNSTABLE),
    "four octaves in five steps": (scale(28.0, 28.0, [1.0, 16.0, 1.0, 16.0, 1.0]), UNSTABLE),
    "in four steps": (scale(28.0, 28.0, [1.0, 16.0, 1.0, 16.0]), ""),
    "less than four octaves": (scale(28.0, 28.0, [1.0, 15.9, 1.0, 15.9, 1.0]), ""),
    "a rise of four octaves": (scale(28.0, 28.0, [1.0, 2.0, 4.0, 8.0, 16.0]), ""),
    "a jump by four": (scale(28.0, 28.0, [4.0, 4.0, 4.0, 4.0, 16.0]), "amax-spike"),
    "a jump by less": (scale(448.0 / 15.9, 448.0 / 15.9, [4.0, 4.0, 4.0, 4.0, 15.9]), ""),
    "a jump after three steps": (scale(28.0, 28.0, [4.0, 4.0, 4.0, 16.0]), ""),
    "an unread history": (
        {"recipes": [recipe(algorithm="most_recent", history_length=1024)]}, "history-unused"),
    "a history of one step": (
        {"recipes": [recipe(algorithm="max", history_length=1)]}, "history-unused"),
    "the newest of one step": (
        {"recipes": [recipe(algorithm="most_recent", history_length=1)]}, ""),
    "a long history": ({"recipes": [recipe(algorithm="max", history_length=1024)]}, ""),
    "the newest of 16 steps": (
        {"recipes": [recipe(algorithm="most_recent", history_length=16)]}, ""),
    "another recipe's": ({"recipes": [recipe(name="Own", algorithm="max", history_length=1)]}, ""),
    "a hybrid MXFP8": ({"recipes": [recipe(name="MXFP8BlockScaling")]}, "mxfp8-e5m2-gradients"),
    "a loss scale": ({"loss_scales": [65536.0]}, ""),
    "a loss scale of one": ({"loss_scales": [1.0]}, ""),
    "a halved loss scale": ({"loss_scales": [0.25]}, UNSTABLE),
    "an infinite loss scale": ({"loss_scales": [None]}, UNSTABLE),
    "growth before the warm-up": ({"series": [line(10 * n, 2.0**n) for n in range(12)]}, ""),
    "growth while it begins to learn": (
        {"series": [line(100 * n, min(2.0**n, 64.0)) for n in range(14)]}, ""),
}  # fmt: skip


@pytest.mark.parametrize(("facts", "expected"), SCALES.values(), ids=SCALES)
def test_what_a_scale_shows(facts: dict[str, Any], expected: str) -> None:
    assert codes(facts_of(**facts)) == ([expected] if expected else [])


def test_the_worst_scale_is_named_first() -> None:
    jumps = [
        slot(448.0 / amax, SOUND, [*STEADY, amax], layer=name)
        for name, amax in zip(NAMES[:3], (20.0, 40.0, 30.0), strict=True)
    ]
    (finding,) = found(facts_of(slots=jumps))
    assert finding.message.startswith(
        f"the amax of the input of {NAMES[1]} jumped to 9.5 times"
    )
    assert finding.message.endswith(", one of 3 layers: layers.*.down (3)")
    assert finding.layers == tuple(NAMES[:3])


def test_recomputation_in_high_precision_names_its_layer() -> None:
    (finding,) = found(facts_of(recomputed=[NAMES[1]]))
    assert (finding.code, finding.layers) == ("recompute-not-fp8", (NAMES[1],))


def test_scales_differ_between_ranks_of_one_group() -> None:
    ranks = [
        facts_of(
            slots=[slot(SOUND * (1 + r), None, STEADY, group=0)],
            rank=r,
            groups=[(0, 1)],
        )
        for r in range(2)
    ]
    (finding,) = [
        one for one in found(*ranks) if one.code == "scales-differ-between-ranks"
    ]
    assert finding.ranks == (0, 1)
    assert (
        f"{SOUND:.4g} on rank 0 and {2 * SOUND:.4g} on rank 1 (scales that differ: 1)"
        in finding.message
    )


def test_ranks_of_different_groups_or_of_tensor_parallel_weights_may_differ() -> None:
    alike = [
        facts_of(slots=[slot(SOUND, None, STEADY, group=0)], rank=r, groups=[(0, 1)])
        for r in range(2)
    ]
    apart = [
        facts_of(
            slots=[slot(SOUND * (1 + r), None, STEADY, group=0)], rank=r, groups=[(r,)]
        )
        for r in range(2)
    ]
    weights = [
        facts_of(slots=[slot(SOUND * (1 + r), None, STEADY, tensor="weight", tensor_parallel=0)],
                 rank=r, groups=[(0, 1)])
        for r in range(2)
    ]  # fmt: skip
    for ranks in (alike, apart, weights):
        assert "scales-differ-between-ranks" not in codes(*ranks)


@pytest.mark.parametrize(
    ("counted", "where"), [(False, "step 2"), (True, "logged value 2")]
)
def test_a_loss_that_is_no_number_is_told_at_its_first_step(
    counted: bool, where: str
) -> None:
    losses = LossSeries(
        "a plain loop", {1: 2.0, 2: math.nan, 3: math.inf}, counted=counted
    )
    (finding,) = found(facts_of(losses=losses))
    assert finding.message == f"the loss in the log is nan at {where}"


def test_the_losses_of_a_resumed_run_stand_at_the_frameworks_steps() -> None:
    windows = [
        WindowRecord(
            first=step, last=step + 1, state="complete",
            framework=FrameworkSteps(name="x", counter="step", first=step + 99, last=step + ahead),
        )
        for step, ahead in ((1, 90), (3, 101))
    ]  # fmt: skip
    meta = RankMeta(schema=1, rank=0, steps_seen=9, windows=tuple(windows))
    losses = LossSeries("a plain loop", {105: 2.5, 106: math.nan, 5: 9.0}, False)
    series = [line(5, 4.0), line(6, 4.0), line(7, 4.0)]
    trend = present(
        numerics_report(facts_of(series=series, losses=losses, meta=meta))
    ).trend
    assert [point.scalars.get("train/loss") for point in trend] == [2.5, None, None]
    trend = present(numerics_report(facts_of(series=series, losses=losses))).trend
    assert [point.scalars.get("train/loss") for point in trend] == [9.0, None, None]


@pytest.mark.parametrize(
    ("reason", "notes", "said"),
    [
        (None, (), "no FP8 layer was seen in step 5"),
        (None, ("a: no cast", "b: no cast"), "a: no cast; b: no cast"),
        ("the run ended", ("a: no cast",), "the run ended"),
    ],
)
def test_a_step_without_rows_has_a_reason(
    reason: str | None, notes: tuple[str, ...], said: str
) -> None:
    measured = replace(measured_step(5, ()), notes=notes)
    record = NumericsRecord(
        schema=1, rank=0, windows=(), measured=measured, reason=reason
    )
    recorded = Recorded(numerics=RankNumerics(record=record, series=()))
    rank = RankEvidence(gather(Trace(source="made", rank=0)), recorded)
    assert present(numerics_report(rank)).reason == said


@pytest.mark.parametrize(
    ("finite", "loss_scales", "expected"),
    [
        ((False, False), (), ["nan-or-inf"]),
        ((False, False), (1024.0,), []),  # GradScaler leaves such steps out
        ((False, True), (), []),
        ((False,), (), []),
    ],
)
def test_gradients_that_stay_broken_are_told(
    finite: tuple[bool, ...], loss_scales: tuple[float, ...], expected: list[str]
) -> None:
    series = [
        replace(line(step, 4.0), gradient=GradientRecord(
            norm=1.0 if ok else None, finite=ok, sharded=False, step=step))
        for step, ok in enumerate(finite, 5)
    ]  # fmt: skip
    assert codes(facts_of(series=series, loss_scales=loss_scales)) == expected


def test_an_amax_that_grows_over_a_long_run_is_told() -> None:
    grown = [line(100 * n, 2.0**n) for n in range(12)]
    (finding,) = found(facts_of(series=grown))
    assert (finding.code, finding.layers) == ("scale-unstable", (NAMES[0],))
    assert "grew by a factor of 32 from step 600 to 1100" in finding.message
    assert codes(facts_of(series=[line(100 * n, 4.0 + n % 2) for n in range(12)])) == []
    halts = [2.0 ** (n // 2) for n in range(18)]
    falls = [value / 4 if n % 3 == 1 else value for n, value in enumerate(halts)]
    for values, code in ((halts, ["scale-unstable"]), (falls, [])):
        assert (
            codes(facts_of(series=[line(1000 + n, v) for n, v in enumerate(values)]))
            == code
        )
    for factor, code in ((8.0, ["scale-unstable"]), (7.9, [])):
        slowly = [line(1000 + n, factor ** (max(0, n - 6) / 5)) for n in range(12)]
        assert codes(facts_of(series=slowly)) == code


def test_what_clips_a_tensor_is_told_once() -> None:
    clipped = slot(448.0 / 9.2, SOUND, [4.0, 4.1, 4.2, 4.05, 9.0, 9.1, 9.2])
    measured = [tensor(scaling="delayed", saturated=0.01, what_if={})]
    assert codes(facts_of(measured, [clipped])) == ["saturates"]
    jumped = slot(
        SOUND, SOUND, [*STEADY, 20.0], amax_before=STEADY[-1]
    )  # a window of one step
    assert codes(facts_of(slots=[jumped])) == ["amax-spike"]


@pytest.mark.parametrize(
    ("row", "said", "unsaid"),
    [
        # What would help is what the figures say, and nothing against them.
        (
            {"what_if": {"rowwise_e4m3": 31.0}},
            "rowwise_e4m3 would keep 31.0 dB",
            "BF16",
        ),
        # A few large values keep their dB whatever becomes of the others.
        ({"what_if": {"rowwise_e4m3": 31.6}, "sqnr_db": 31.5}, "Scale by row", "dB"),
        ({"what_if": {"rowwise_e4m3": 7.2}}, "Keep the layer in BF16", "Scale by row"),
        ({"what_if": {}}, "Scale by row or block", "none of the usual recipes"),
        ({"scaling": "delayed"}, "Lower a margin above 0", "none of the usual recipes"),
        ({"scaling": "delayed", "saturated": 0.1}, "no margin", "Lower a margin"),
        ({"scaling": "rowwise"}, "Keep the layer in BF16", "none of the usual recipes"),
        (
            {"kind": "grad_output", "flushed": 0.05},
            "Cast gradients to E5M2",
            "Scale by row or",
        ),
        (
            {"kind": "grad_output", "flushed": 0.05, "format": "e5m2"},
            "Scale by row or",
            "E5M2",
        ),
        ({"amax": 1e-12}, "Scale by row or block", "No scale helps"),
        ({"amax": 0.9e-12}, "No scale helps", "Scale by row"),
    ],
)
def test_advice_fits_the_figures(row: dict[str, Any], said: str, unsaid: str) -> None:
    told = found(facts_of(all_layers(**{"flushed": 0.3, "sqnr_db": 7.0, **row})))
    (hint,) = [finding.hint for finding in told if finding.code == "underflow-high"]
    assert said in hint
    assert unsaid not in hint


def test_clipping_and_zeros_of_one_tensor_get_one_advice() -> None:
    told = found(facts_of(all_layers(scaling="delayed", saturated=0.1, flushed=0.3)))
    assert {finding.code for finding in told} == {"saturates", "underflow-high"}
    assert all("no margin" in finding.hint for finding in told)


def test_a_clipped_tensor_of_a_scripts_own_scale_is_not_sent_to_a_margin() -> None:
    (finding,) = found(facts_of(all_layers(saturated=0.1)))
    assert (finding.code, "margin" in finding.hint) == ("saturates", False)
    (finding,) = found(facts_of(all_layers(saturated=0.1, scaling="mxfp8")))
    assert "RCEIL" in finding.hint


@pytest.mark.parametrize(
    "odd",
    [
        {"rows": [{"layer": "a", "tensor": "bias", "source": "replay"}]},
        {"rows": [{"layer": "a", "tensor": "input", "source": "replay", "amax": -1.0}]},
        {
            "rows": [
                {"layer": "a", "tensor": "input", "source": "replay", "elements": -1}
            ]
        },
        {"slots": [{"scale": "one"}]},
        {"slots": [{"scale": "1e9999"}]},
        {"slots": [{"amax": [1e300]}]},
        {"slots": [{"largest_amax": -1.0}]},
        {"slots": [{"largest": 0.0}]},
    ],
    ids=str,
)
def test_a_file_of_other_numbers_is_damaged(
    odd: dict[str, Any], tmp_path: Path
) -> None:
    record = facts_of(slots=[slot(SOUND, SOUND, STEADY)]).recorded.numerics
    written = msgspec.json.decode(msgspec.json.encode(record.record))
    path = tmp_path / "rank0.numerics.json"
    path.write_bytes(msgspec.json.encode(written))
    assert read_numerics(tmp_path)[0] == record
    written["measured"]["rows"] = odd.get("rows", [])
    written["windows"][0]["slots"][0] |= odd.get("slots", [{}])[0]
    path.write_bytes(msgspec.json.encode(written))
    with pytest.raises(InputError, match="has no numerics"):
        read_numerics(tmp_path)


@pytest.mark.parametrize("amax", [5e-324, 1e-30, 1e38])
@pytest.mark.parametrize("scale", ["0.0", "nan", "-1.0", "inf", "1e-45", "3e38"])
@pytest.mark.parametrize("margin", [-64, 0, 64, None])
def test_any_scale_is_judged(amax: float, scale: str, margin: int | None) -> None:
    kept = replace(slot(1.0, None, [amax] * 7), scale=scale, scale_before=scale)
    facts = facts_of(slots=[kept], recipes=[recipe(margin=margin)])
    assert {one.code for one in found(facts)} <= {
        "scale-unstable",
        "scale-stuck",
        "saturates",
    }
    assert numerics_report(facts) is not None


def test_of_a_series_that_is_too_long_every_nth_line_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = facts_of(all_layers()).recorded.numerics
    (tmp_path / "rank0.numerics.json").write_bytes(msgspec.json.encode(record.record))
    lines = [msgspec.json.encode(line(step, 1.0)) for step in range(1000, 1100)]
    path = tmp_path / "rank0.numerics.jsonl"
    path.write_bytes(b"\n".join([*lines, lines[0][:50]]))
    assert len(read_numerics(tmp_path)[0].series) == 100
    for limit, value in (("MAX_LINES", 30), ("MAX_SERIES", path.stat().st_size // 3)):
        with monkeypatch.context() as patched:
            patched.setattr(f"fp8verify.capture.files.{limit}", value)
            steps = [found.step for found in read_numerics(tmp_path)[0].series]
        assert 25 <= len(steps) <= 34
        assert steps[0] == 1000
