"""What was to run in FP8, by module list, recipe and log, against what did."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8verify import Policy, Report
from fp8verify.verdict.judge import judge
from tests.hand_built import TraceBuilder, codes, found, module, present
from tests.log_text import WITH_PHASES, declared

M, N, K = 64, 32, 16
WIDE = 4096
OVERRIDE = "[Override] mxfp8_linear: {} MXFP8Linear.Config -> Linear.Config"
PINS = f"{OVERRIDE.format('head')}\n{OVERRIDE.format('next')}"


def capture(
    folder: Path, states: dict[str, tuple[str, int]], low: set[str], log: str = ""
) -> Report:
    """Record layers of a state and a number of outputs each, those of `low` in FP8."""
    build = TraceBuilder(folder, rank=0)
    for name, (_, outputs) in states.items():
        build.linear(M, outputs, K, fp8=name in low)
    modules = [
        module(name, outputs, K, state) for name, (state, outputs) in states.items()
    ]
    return build.capture(*modules, log=log)


@pytest.mark.parametrize(
    ("low", "verdict", "measured"),
    [({"a", "b", "c"}, "ACTIVE", 0.75), ({"a", "b"}, "PARTIAL", 0.25)],
)
def test_a_run_is_held_to_the_share_that_was_to_be_fp8(
    low: set[str], verdict: str, measured: float, tmp_path: Path
) -> None:
    sizes = {"a": N, "b": 2 * N, "c": 6 * N, "head": 3 * N}
    states = {
        n: ("high_precision" if n == "head" else "fp8", size)
        for n, size in sizes.items()
    }
    report = capture(tmp_path, states, low)
    expected = present(report.ranks[0].expected)
    assert (expected.share_of_flops, expected.measured_share_of_flops) == (
        0.75,
        measured,
    )
    assert (report.verdict, expected.left_out) == (verdict, ("head",))
    assert judge(report, Policy(expected=True)).exit_code == (verdict == "PARTIAL")


@pytest.mark.parametrize(("log", "verdict"), [("", "PARTIAL"), (PINS, "ACTIVE")])
def test_less_than_half_is_expected_only_where_the_log_says_so(
    log: str, verdict: str, tmp_path: Path
) -> None:
    states = {
        "up": ("fp8", N),
        "head": ("high_precision", WIDE),
        "next": ("high_precision", WIDE),
    }
    report = capture(tmp_path, states, {"up"}, log)
    expected = present(report.ranks[0].expected)
    assert expected.stated is bool(log)
    assert expected.share_of_flops == expected.measured_share_of_flops < 0.01
    assert judge(report, Policy()).verdict == report.verdict == verdict


def test_nothing_is_expected_where_a_class_is_not_known(tmp_path: Path) -> None:
    states = {"up": ("fp8", N), "own": ("unknown", 2 * N)}
    assert capture(tmp_path, states, {"up", "own"}).ranks[0].expected is None


@pytest.mark.parametrize(("low", "verdict"), [("abc", "ACTIVE"), ("ab", "PARTIAL")])
def test_without_shapes_the_list_says_how_many_gemms_are_fp8(
    low: str, verdict: str, tmp_path: Path
) -> None:
    build = TraceBuilder(tmp_path, rank=0)
    for name in "abcd":
        build.linear(M, N, K, fp8=name in low, us=5 if name == "c" else 10)
    for event in build.events:
        event["args"].pop("Input Dims", None)
    states = {name: "high_precision" if name == "d" else "fp8" for name in "abcd"}
    listed = [module(name, N, K, state) for name, state in states.items()]
    assert build.capture(*listed).verdict == verdict


def test_a_pinned_layer_that_did_not_run_is_not_the_one_that_ran_in_each_step(
    tmp_path: Path,
) -> None:
    build = TraceBuilder(tmp_path, rank=0)
    for step in (1, 2):
        build.step(step).linear(M, N, K, fp8=True)
    modules = [module(name, N, K, "fp8") for name in ("up", "down")]
    report = build.capture(*modules, log=OVERRIDE.format("down"))
    assert "pinned-layer-low" not in codes(report)


@pytest.mark.parametrize("low", [{"up", "down"}, {"up"}])
def test_a_pinned_layer_that_ran_lower_is_an_error(
    low: set[str], tmp_path: Path
) -> None:
    states = {"up": ("fp8", N), "down": ("fp8", 2 * N)}
    report = capture(tmp_path, states, low, OVERRIDE.format("down"))
    assert ("pinned-layer-low" in codes(report)) is ("down" in low)
    assert report.exit_code == ("down" in low)
    assert all(one.layers == ("down",) for one in found(report, "pinned-layer-low"))


def test_steps_of_a_warm_up_were_not_to_be_fp8(tmp_path: Path) -> None:
    log = "FP8 training from step 101\nstep 100 loss 2.1\nstep 110 loss 2.0\n"
    build = TraceBuilder(tmp_path, rank=0)
    for step in (100, 101):
        build.step(step).linear(M, N, K, fp8=step > 100)
    with declared({"Lab": WITH_PHASES}):
        report = build.capture(module("up", N, K), log=log)
    expected = present(report.ranks[0].expected)
    assert (expected.share_of_flops, expected.measured_share_of_flops) == (0.5, 0.5)
    assert "step-without-fp8" not in codes(report)


@pytest.mark.parametrize(
    ("until", "verdict"), [(100, "ACTIVE"), (99, "PARTIAL"), (90, "PARTIAL")]
)
def test_a_warm_up_in_plain_words_excuses_its_steps_alone(
    until: int, verdict: str, tmp_path: Path
) -> None:
    losses = "step 100 loss 2.1\nstep 110 loss 2.0\n"
    log = f"fp8: BF16 for the first {until} steps, then float8\n{losses}"
    build = TraceBuilder(tmp_path, rank=0)
    for step in (100, 101, 102):
        build.step(step).linear(M, N, K, fp8=step > 100)
    report = build.capture(module("up", N, K), log=log)
    assert report.verdict == verdict
    assert ("step-without-fp8" in codes(report)) is (verdict == "PARTIAL")


@pytest.mark.parametrize(
    ("after", "steps", "verdict"),
    [
        ("", (100, 101), "CONTRADICTED"),
        ("", (30, 31), "INACTIVE"),  # it was to begin later
        ("FP8 training disabled\n", (100, 101), "INACTIVE"),
    ],
)
def test_fp8_from_a_step_on_is_claimed_of_later_steps(
    after: str, steps: tuple[int, int], verdict: str, build: TraceBuilder
) -> None:
    for step in steps:
        build.step(step).linear(M, N, K, fp8=False)
    losses = "".join(f"step {step} loss 2.1\n" for step in range(20, 120, 10))
    log = f"FP8 training from step 50\n{after}{losses}"
    with declared({"Lab": WITH_PHASES}):
        report = build.report(log=log)
    assert report.verdict == verdict
    assert "claims FP8:" not in report.reason


@pytest.mark.parametrize(
    ("models", "share"), [("GD", 0.25), ("GG", 0.25), ("01", 0.25)]
)
def test_models_need_not_run_equally_often(
    models: str, share: float, tmp_path: Path
) -> None:
    """A discriminator in BF16 runs three times, a generator of its sizes once."""
    build = TraceBuilder(tmp_path, rank=0)
    for step in (1, 2):
        build.step(step)
        for fp8 in (True, False, False, False):
            build.linear(M, N, K, fp8=fp8)
    low, high = (f"{model}.up.{number}" for number, model in enumerate(models))
    listed = [module(low, N, K), module(high, N, K, "high_precision")]
    assert present(build.capture(*listed).ranks[0].expected).share_of_flops == share


@pytest.mark.parametrize(("low", "verdict"), [(100, "INACTIVE"), (101, "ACTIVE")])
def test_a_phase_in_high_precision_acquits_its_steps(
    low: int, verdict: str, build: TraceBuilder
) -> None:
    for step in (100, 101):
        build.step(step).linear(M, N, K, fp8=step < low)
    losses = "".join(f"step {step} loss 2.1\n" for step in range(20, 120, 10))
    log = f"FP8 training enabled\ntraining in bf16 for the first 2000 steps\n{losses}"
    with declared({"Lab": WITH_PHASES}):
        report = build.report(log=log)
    assert report.verdict == verdict
    assert not {"claimed-not-active", "step-without-fp8"} & codes(report)
