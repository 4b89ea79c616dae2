"""What `doctor --measure` makes of measured times: pays, loses or cannot tell; what to keep."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fp8verify import inspect
from fp8verify.capture.schema import ModuleRecord
from fp8verify.errors import UsageError
from fp8verify.preflight.afterwards import with_what_was_possible
from fp8verify.preflight.checks import Check, Status
from fp8verify.preflight.dry_start import DryModel
from fp8verify.preflight.interpreter import Interpreter
from fp8verify.preflight.measure import (
    Measurement,
    cache_file,
    keep,
    kept,
    measure,
    read_answers,
)
from fp8verify.preflight.probes import Plan, Probe, Shape, Use, parse_shape, plan
from fp8verify.preflight.roles import Role, role_of
from fp8verify.preflight.rules.measured import measured
from fp8verify.preflight.timings import Answer, Gemm, Measured, Timed, answer_of
from tests import doctor_files as files
from tests.doctor_files import facts_of, write
from tests.golden.expectations import ROOT

WHERE = {"gpu": "NVIDIA H200", "torch": "2.11.0+cu130", "torchao": "0.17.0"}
HERE = Interpreter(sys.executable, "", named=True)


def timed(us: float, *, gemm: float = 0.0, casts: float = 0.0, noise: float = 0.0) -> Timed:
    """One precision whose rounds lie within `noise` of `us`, and whose GEMMs take `gemm`."""
    rounds = tuple(us + noise * shift for shift in (-1, -0.5, 0, 0.5, 1))
    return Timed(rounds, (Gemm("fprop", 8192, 14336, 4096, gemm),) if gemm else (), casts)


def one(
    bf16: Timed, fp8: Timed, outputs: tuple[int, ...] = (14336,), role: Role = Role.OTHER
) -> Measured:
    """A probe of one recipe."""
    return Measured(8192, 4096, outputs, role, {"bf16": bf16, "tensorwise": fp8})


WIDE = one(timed(3000.0), timed(1800.0), (14336, 14336), Role.FEED_FORWARD_IN)
NARROW = one(timed(300.0), timed(340.0), (1024,))


def checks(*found: Measured, uses: Plan | None = None) -> dict[str, list[Check]]:
    """The checks about some probes, by code."""
    by_code: dict[str, list[Check]] = {}
    for check in measured(Measurement(found, WHERE), uses or {}):
        by_code.setdefault(check.code, []).append(check)
    return by_code


def test_each_size_is_told_whether_it_pays_and_what_to_leave_out() -> None:
    uses = {
        WIDE.probe: Use(("layers.0.mlp.gate_proj", "layers.0.mlp.up_proj"), 1),
        NARROW.probe: Use(("layers.0.attn.k_proj", "layers.1.attn.k_proj"), 2),
    }
    found = checks(WIDE, NARROW, uses=uses)
    pays, loses = found["measured"]
    assert pays.message.startswith("8192 tokens, 4096 -> 2 x 14336 (layers.0.mlp.gate_proj, ")
    assert pays.message.endswith("BF16 3000 µs a step, tensorwise 1800, 1.67x: pays")
    assert loses.message.startswith("8192 tokens, 4096 -> 1024 (layers.*.attn.k_proj (2)), 2 times")
    assert loses.message.endswith("BF16 300 µs a step, tensorwise 340, 0.88x: does not pay")
    assert [pays.status, loses.status] == [Status.OK, Status.WARN]
    assert found["measured-filter"][0].message == 'leave in BF16: filter_fqns = ["k_proj"]'


@pytest.mark.parametrize(
    ("fp8", "noise", "answer"),
    [
        (90.0, 0.0, Answer.PAYS),
        (97.0, 0.0, Answer.UNSURE),
        (104.0, 0.0, Answer.UNSURE),
        (110.0, 0.0, Answer.LOSES),
        # Rounds that differ by more than the gain: nothing can be said of it.
        (90.0, 15.0, Answer.UNSURE),
        (110.0, 15.0, Answer.UNSURE),
    ],
)
def test_a_gain_within_its_doubt_is_no_answer(fp8: float, noise: float, answer: Answer) -> None:
    probe = one(timed(100.0), timed(fp8, noise=noise))
    assert answer_of(probe) is answer
    (check,) = checks(probe)["measured"]
    assert check.message.endswith(f": {answer.value}")
    assert "measured-filter" not in checks(probe, uses={probe.probe: Use(("a.b",), 1)}) or (
        answer is Answer.LOSES
    )


def test_what_is_around_the_layers_counts_in_neither_precision() -> None:
    # 400 µs of norms and activations in both; of the layers' 600 µs FP8 saves 250.
    probe = one(timed(1000.0, gemm=600.0), timed(750.0, gemm=300.0, casts=450.0))
    assert probe.around_us == 400.0
    gain = probe.gain("tensorwise")
    assert gain.speed_up == pytest.approx(600 / 350)
    (parts,) = checks(probe)["measured-parts"]
    assert "fprop M=8192 N=14336 K=4096 600 -> 300" in parts.message
    assert "all else 400 -> 450 µs (+50 by casts; kernels that cast take 450)" in parts.message


def test_the_model_is_the_sum_of_its_groups_as_often_as_it_has_them() -> None:
    uses = {WIDE.probe: Use(("a.gate", "a.up"), 12), NARROW.probe: Use(("a.k",), 24)}
    (model,) = checks(WIDE, NARROW, uses=uses)["measured-model"]
    assert "BF16 43.2 ms a step, tensorwise 29.8 with casts, 1.45x: pays" in model.message


def test_layers_that_the_model_leaves_in_bf16_gain_nothing() -> None:
    uses = {WIDE.probe: Use(("head",), 1, converted=False), NARROW.probe: Use(("a.k",), 1)}
    (model,) = checks(WIDE, NARROW, uses=uses)["measured-model"]
    assert "BF16 3.3 ms a step, tensorwise 3.3 with casts, 0.99x: cannot tell" in model.message


def test_sizes_of_no_model_say_nothing_of_one() -> None:
    assert "measured-model" not in checks(WIDE, uses={WIDE.probe: Use()})


def answer_to(number: int, **rounds: list[float]) -> dict[str, Any]:
    """A line of the worker."""
    return {"probe": number, "rounds": rounds, "errors": {}, "traces": {}, "traced_steps": 3}


def test_a_recipe_that_fails_is_named_and_the_others_count() -> None:
    probe = Probe(8, 16, (32,), Role.OTHER)
    answer = answer_to(0, bf16=[10.0], tensorwise=[5.0])
    answer["errors"] = {"rowwise": "RuntimeError: Rowwise scaling is not supported"}
    (found,) = read_answers([probe], [WHERE, answer]).probes
    (check,) = checks(found)["measured"]
    assert "rowwise failed (RuntimeError: Rowwise" in check.message
    assert check.status is Status.OK


def test_a_probe_without_memory_for_bf16_says_so_and_no_model_is_judged() -> None:
    probe = Probe(8, 16, (32,), Role.OTHER)
    answer = {**answer_to(0), "errors": {"bf16": "OutOfMemoryError: CUDA out of memory"}}
    measurement = read_answers([probe], [WHERE, answer])
    assert measurement.failed == {probe: "OutOfMemoryError: CUDA out of memory"}
    both = measurement._replace(probes=(WIDE,))
    found = list(measured(both, {WIDE.probe: Use(("a",), 1), probe: Use(("b",), 1)}))
    assert "measured-model" not in {check.code for check in found}
    assert any("could not be measured: OutOfMemory" in check.message for check in found)


def test_gemms_and_casts_are_read_from_the_worker_s_trace() -> None:
    trace = str(ROOT / "fp8_compiled" / "rank0.json.gz")
    answer = answer_to(0, bf16=[9000.0])
    answer["traces"], answer["traced_steps"] = {"bf16": trace}, 1
    (found,) = read_answers([Probe(8, 16, (32,), Role.OTHER)], [WHERE, answer]).probes
    report = inspect(trace)
    assert found.times["bf16"].gemm_us == pytest.approx(sum(report.ranks[0].gemm.time_us.values()))
    assert {gemm.leg for gemm in found.times["bf16"].gemms} == {"fprop", "dgrad", "wgrad"}
    assert found.times["bf16"].cast_us > 0


def test_a_machine_without_a_gpu_measures_nothing() -> None:
    (check,) = measured(Measurement(why_none="torch sees no GPU"), {})
    assert (check.status, check.code) == (Status.SKIPPED, "measured")


def test_what_the_worker_prints_among_other_lines_is_read(tmp_path: Path) -> None:
    lines = ["a library says hello", "fp8verify: " + json.dumps(WHERE)]
    lines += ["fp8verify: " + json.dumps(answer_to(0, bf16=[10.0], tensorwise=[5.0]))]
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\ncat >/dev/null\n" + "".join(f"echo '{x}'\n" for x in lines))
    python.chmod(0o755)
    probe = Probe(8, 16, (32,), Role.OTHER)
    found = measure(Interpreter(str(python), "", named=True), [probe])
    assert found.where["gpu"] == "NVIDIA H200"
    assert [one.probe for one in found.probes] == [probe]


@pytest.mark.train
def test_the_worker_says_that_there_is_no_gpu() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    found = measure(HERE, [Probe(8, 16, (32,), Role.OTHER)])
    assert found.why_none == "torch sees no GPU"


@pytest.mark.train
def test_the_worker_times_both_precisions_amid_every_surroundings() -> None:
    # Emulated on the CPU: the times say nothing, but all of the worker runs.
    probes = [
        Probe(32, 16, (32, 32) if role is Role.FEED_FORWARD_IN else (32,), role) for role in Role
    ]
    found = measure(
        HERE, probes, ["tensorwise"],
        device="cpu", emulate=True, rounds=2, round_ms=1, compile=False,
    )  # fmt: skip
    assert found.failed == {}
    assert [one.probe for one in found.probes] == probes
    for one_probe in found.probes:
        assert one_probe.errors == {}
        assert {name: len(t.rounds_us) for name, t in one_probe.times.items()} == {
            "bf16": 2,
            "tensorwise": 2,
        }


def test_a_python_that_cannot_measure_says_why(tmp_path: Path) -> None:
    probe = Probe(8, 16, (32,), Role.OTHER)
    found = measure(Interpreter(str(tmp_path / "none"), "", named=True), [probe])
    assert "FileNotFoundError" in found.why_none
    assert "--shape" in measure(Interpreter("x", "", named=True), []).why_none


@pytest.mark.parametrize("text", ["3", "8192x4096", "axbxc", "0x16x16", "8192x4096x14336x2"])
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no matrix size"):
        parse_shape(text)


def test_shapes_come_from_the_configuration_with_its_tokens(tmp_path: Path) -> None:
    facts = facts_of(write(tmp_path, "k.toml", files.KEMPNERFORGE))
    given = [parse_shape("64x32x16"), parse_shape("8x768x50304")]
    assert plan(facts, given, None) == {
        Probe(64, 32, (16,), Role.OTHER): Use(),
        Probe(8, 768, (50304,), Role.HEAD): Use(),
        Probe(32768, 4096, (4096, 1024, 1024), Role.ATTENTION_IN): Use(
            ("attention q", "attention k, v"), 32
        ),
        Probe(32768, 4096, (4096,), Role.ATTENTION_OUT): Use(("attention o",), 32),
        Probe(32768, 4096, (14336, 14336), Role.FEED_FORWARD_IN): Use(("feed-forward in",), 32),
        Probe(32768, 14336, (4096,), Role.FEED_FORWARD_OUT): Use(("feed-forward out",), 32),
        Probe(32768, 4096, (128256,), Role.HEAD): Use(("output head",), 1),
    }
    assert Probe(100, 4096, (4096,), Role.ATTENTION_OUT) in plan(facts, [], 100)


def linear(fqn: str, k: int, n: int, state: str = "fp8") -> ModuleRecord:
    """A linear layer of the census."""
    return ModuleRecord(
        fqn=fqn, class_name="Linear", kind="linear", state=state, in_features=k, out_features=n
    )


def test_layers_of_a_model_that_read_one_input_are_measured_together(tmp_path: Path) -> None:
    modules = [
        linear(f"layers.{i}.{name}", k, n)
        for i in range(2)
        for name, k, n in (
            ("attn.q_proj", 64, 64),
            ("attn.k_proj", 64, 16),
            ("attn.o_proj", 64, 64),
            ("mlp.down_proj", 128, 64),
            ("mlp.experts.0.w1", 64, 128),
        )
    ]
    head = linear("lm_head", 64, 512, "high_precision")
    facts = facts_of(write(tmp_path, "k.toml", files.KEMPNERFORGE))
    found = plan(facts._replace(model=DryModel((*modules, head))), [], 8)
    assert found[Probe(8, 64, (64, 16), Role.ATTENTION_IN)].repeats == 2
    assert set(found) == {
        Probe(8, 64, (64, 16), Role.ATTENTION_IN),
        Probe(8, 64, (64,), Role.ATTENTION_OUT),
        Probe(8, 128, (64,), Role.FEED_FORWARD_OUT),
        Probe(8, 64, (512,), Role.HEAD),
    }
    assert found[Probe(8, 64, (512,), Role.HEAD)] == Use(("lm_head",), 1, converted=False)


@pytest.mark.parametrize(
    ("fqn", "role"),
    [
        ("layers.0.attn.q_proj", Role.ATTENTION_IN),
        ("transformer.h.0.attn.c_attn", Role.ATTENTION_IN),
        ("transformer.h.0.attn.c_proj", Role.ATTENTION_OUT),
        ("transformer.h.0.mlp.c_proj", Role.FEED_FORWARD_OUT),
        ("bert.encoder.layer.0.attention.output.dense", Role.ATTENTION_OUT),
        ("bert.encoder.layer.0.intermediate.dense", Role.FEED_FORWARD_IN),
        ("bert.encoder.layer.0.output.dense", Role.FEED_FORWARD_OUT),
        ("layers.3.feed_forward.w2", Role.FEED_FORWARD_OUT),
        ("output", Role.HEAD),
        ("layers.3.output", Role.OTHER),
        ("classifier", Role.OTHER),
        ("0", Role.OTHER),
    ],
)
def test_the_role_of_a_layer_is_told_by_its_name(fqn: str, role: Role) -> None:
    assert role_of(fqn) is role


def test_what_was_measured_is_in_the_report_of_a_later_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    report = inspect(ROOT / "bf16_width4096")
    assert with_what_was_possible(report) == report
    shape = next(
        Shape(row.shape[1], row.shape[3], row.shape[2])
        for row in report.ranks[0].kernels
        if row.shape is not None and row.leg == "fprop"
    )
    where = {**WHERE, "gpu": str(report.environment.gpu)}
    times = {"bf16": timed(3000.0), "tensorwise": timed(1500.0)}
    keep(Measurement((Measured(shape.m, shape.k, (shape.n,), Role.OTHER, times),), where))
    assert cache_file().is_relative_to(tmp_path)
    note = with_what_was_possible(report).notes[-1]
    assert "knows 1 of the" in note
    assert "FP8 pays for 1 of them" in note
    assert "2.00x as fast" in note
    assert kept("NVIDIA L4") == ()
