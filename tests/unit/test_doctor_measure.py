"""What `doctor --measure` makes of measured times: pays, loses or cannot tell; what to keep."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fp8verify import inspect
from fp8verify.capture.schema import ModuleRecord
from fp8verify.doctor.afterwards import with_what_was_possible
from fp8verify.doctor.blocks import Group, Heads, heads_of
from fp8verify.doctor.checks import Check, Status, report_of
from fp8verify.doctor.dry_start import DryModel
from fp8verify.doctor.forms import to_text
from fp8verify.doctor.interpreter import Interpreter
from fp8verify.doctor.measure import (
    Measurement,
    Variant,
    blocks_to_part,
    cache_file,
    keep,
    kept,
    measure,
    read_answers,
    whole_variants,
)
from fp8verify.doctor.probes import Plan, Probe, Shape, Use, parse_shape, plan
from fp8verify.doctor.roles import Role, role_of
from fp8verify.doctor.rules.measured import measured
from fp8verify.doctor.timings import Answer, Gemm, Kernel, Measured, Timed, answer_of
from fp8verify.errors import UsageError
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
    """A probe of one group, by one recipe."""
    return Measured(8192, (Group(4096, outputs, role),), {"bf16": bf16, "tensorwise": fp8})


def single(tokens: int, k: int, outputs: tuple[int, ...], role: Role = Role.OTHER) -> Probe:
    """A probe of one group."""
    return Probe(tokens, (Group(k, outputs, role),))


def block(
    width: int, hidden: int, attention: tuple[int, ...], low: tuple[bool, ...] = (True,) * 4
) -> tuple[Group, ...]:
    """The groups of a gated decoder block."""
    return (
        Group(width, attention, Role.ATTENTION_IN, low[0]),
        Group(width, (width,), Role.ATTENTION_OUT, low[1]),
        Group(width, (hidden, hidden), Role.FEED_FORWARD_IN, low[2]),
        Group(hidden, (width,), Role.FEED_FORWARD_OUT, low[3]),
    )


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
        WIDE.probe: Use((("layers.0.mlp.gate_proj", "layers.0.mlp.up_proj"),), 1),
        NARROW.probe: Use((("layers.0.attn.k_proj", "layers.1.attn.k_proj"),), 2),
    }
    found = checks(WIDE, NARROW, uses=uses)
    pays, loses = found["measured"]
    assert pays.message.startswith("8192 tokens, in no decoder block, 4096 -> 2 x 14336 (")
    assert pays.message.endswith(" µs a step (3000 in the layers), tensorwise 1800, 1.67x: pays")
    assert loses.message.startswith("8192 tokens, 4096 -> 1024 (layers.*.attn.k_proj (2)), 2 times")
    assert loses.message.endswith("(300 in the layers), tensorwise 340, 0.88x: does not pay")
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
    assert "measured-filter" not in checks(probe, uses={probe.probe: Use((("a.b",),), 1)}) or (
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
    uses = {WIDE.probe: Use((("a.gate", "a.up"),), 12), NARROW.probe: Use((("a.k",),), 24)}
    (model,) = checks(WIDE, NARROW, uses=uses)["measured-model"]
    assert "BF16 43.2 ms a step, tensorwise 29.8 with casts, 1.45x: pays" in model.message


def test_layers_that_the_model_leaves_in_bf16_gain_nothing() -> None:
    uses = {WIDE.probe: Use((("head",),), 1, in_bf16=1), NARROW.probe: Use((("a.k",),), 1)}
    (model,) = checks(WIDE, NARROW, uses=uses)["measured-model"]
    assert "BF16 3.3 ms a step, tensorwise 3.3 with casts, 0.99x: cannot tell" in model.message


def test_sizes_of_no_model_say_nothing_of_one() -> None:
    assert "measured-model" not in checks(WIDE, uses={WIDE.probe: Use()})


def answer_to(number: int, **rounds: list[float]) -> dict[str, Any]:
    """A line of the worker."""
    return {
        "probe": number,
        "rounds": rounds,
        "errors": {},
        "traces": {},
        "traced_steps": 3,
        "copies": 1,
    }


def test_a_recipe_that_fails_is_named_and_the_others_count() -> None:
    probe = single(8, 16, (32,))
    answer = answer_to(0, bf16=[10.0], tensorwise=[5.0])
    answer["errors"] = {"rowwise": "RuntimeError: Rowwise scaling is not supported"}
    (found,) = read_answers([probe], [WHERE, answer]).probes
    (check,) = checks(found)["measured"]
    assert "rowwise failed (RuntimeError: Rowwise" in check.message
    assert check.status is Status.OK


def test_a_probe_without_memory_for_bf16_says_so_and_no_model_is_judged() -> None:
    probe = single(8, 16, (32,))
    answer = {**answer_to(0), "errors": {"bf16": "OutOfMemoryError: CUDA out of memory"}}
    measurement = read_answers([probe], [WHERE, answer])
    assert measurement.failed == {probe: "OutOfMemoryError: CUDA out of memory"}
    both = measurement._replace(probes=(WIDE,))
    found = list(measured(both, {WIDE.probe: Use((("a",),), 1), probe: Use((("b",),), 1)}))
    assert "measured-model" not in {check.code for check in found}
    assert any("could not be measured: OutOfMemory" in check.message for check in found)


def test_gemms_and_casts_are_read_from_the_worker_s_trace() -> None:
    trace = str(ROOT / "fp8_compiled" / "rank0.json.gz")
    answer = answer_to(0, bf16=[9000.0])
    answer["traces"], answer["traced_steps"] = {"bf16": trace}, 1
    (found,) = read_answers([single(8, 16, (32,))], [WHERE, answer]).probes
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
    lines += ['fp8verify: {"done": true}']
    python.write_text("#!/bin/sh\nread -r request\n" + "".join(f"echo '{x}'\n" for x in lines))
    python.chmod(0o755)
    probe = single(8, 16, (32,))
    found = measure(Interpreter(str(python), "", named=True), {probe: Use()})
    assert found.where["gpu"] == "NVIDIA H200"
    assert [one.probe for one in found.probes] == [probe]


@pytest.mark.train
def test_the_worker_says_that_there_is_no_gpu() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    found = measure(HERE, {single(8, 16, (32,)): Use()})
    assert found.why_none == "torch sees no GPU"


@pytest.mark.train
def test_the_worker_times_blocks_their_parts_and_layers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Emulated on the CPU: the times say nothing, but all of the worker runs. Threads that wait for
    # each other on a busy machine would take most of the time.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    few_keys = block(32, 64, (32, 16, 16))
    fused = tuple(
        group._replace(outputs=(sum(group.outputs),))
        for group in block(32, 64, (32, 32, 32), (False, True, True, True))
    )
    wanted = {Probe(32, few_keys): Use((), 3), Probe(32, fused): Use((), 1)}
    wanted |= {single(32, 16, (16,) if r is Role.OTHER else (32, 32), r): Use() for r in Role}
    found = measure(
        HERE, wanted, ["tensorwise"],
        device="cpu", emulate=True, rounds=2, round_ms=1, compile=False,
    )  # fmt: skip
    assert found.failed == {}
    assert [one.probe for one in found.probes] == list(wanted)
    assert [one.probe for one in found.alone] == list(wanted)[:2]
    for one_probe in (*found.probes, *found.alone):
        assert one_probe.errors == {}
        assert {len(times.rounds_us) for times in one_probe.times.values()} == {2}
    alone = [role.value for role in Role][:4]
    assert list(found.alone[0].times) == ["bf16", *alone]
    assert list(found.alone[1].times) == ["bf16", *alone[1:]]  # the model has its first in BF16


@pytest.mark.train
def test_a_variant_has_its_groups_in_fp8_and_every_parameter_a_gradient() -> None:
    import torch

    from fp8verify.doctor.worker import measure_linear as worker

    groups = [group._asdict() for group in block(32, 64, (32, 16, 16))]
    with torch.random.fork_rng():
        model = worker.surroundings.build({"groups": groups, "heads": [32, 16, 16]}).bfloat16()
        worker.convert(model, {"recipe": "tensorwise", "groups": [0, 3]}, emulate=True)
        inputs = [torch.randn(2, 16, width, dtype=torch.bfloat16) for width in model.widths]
        torch.autograd.backward([one.sum() for one in model(inputs, None)])
    low = [name for name, module in model.named_modules() if type(module).__name__ != "Linear"]
    low = [name for name in low if name.count(".") == 4]
    assert low == [
        f"blocks.{place}.groups.{layer}"
        for place in (0, 1)
        for layer in ("0.0", "0.1", "0.2", "3.0")
    ]
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_python_that_cannot_measure_says_why(tmp_path: Path) -> None:
    probe = single(8, 16, (32,))
    found = measure(Interpreter(str(tmp_path / "none"), "", named=True), {probe: Use()})
    assert "FileNotFoundError" in found.why_none
    assert "--shape" in measure(Interpreter("x", "", named=True), {}).why_none


@pytest.mark.parametrize("text", ["3", "8192x4096", "axbxc", "0x16x16", "8192x4096x14336x2"])
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no matrix size"):
        parse_shape(text)


def test_shapes_come_from_the_configuration_with_its_tokens(tmp_path: Path) -> None:
    facts = facts_of(write(tmp_path, "k.toml", files.KEMPNERFORGE))
    given = [parse_shape("64x32x16"), parse_shape("8x768x50304")]
    assert plan(facts, given, None) == {
        single(64, 32, (16,)): Use(),
        single(8, 768, (50304,), Role.HEAD): Use(),
        Probe(32768, block(4096, 14336, (4096, 1024, 1024))): Use(
            (
                ("attention q", "attention k, v"),
                ("attention o",),
                ("feed-forward in",),
                ("feed-forward out",),
            ),
            32,
        ),
        single(32768, 4096, (128256,), Role.HEAD): Use((("output head",),), 1),
    }
    assert {probe.tokens for probe in plan(facts, [], 100)} == {100}


def linear(fqn: str, k: int, n: int, state: str = "fp8") -> ModuleRecord:
    """A linear layer of the census."""
    return ModuleRecord(
        fqn=fqn, class_name="Linear", kind="linear", state=state, in_features=k, out_features=n
    )


def planned(tmp_path: Path, *modules: ModuleRecord) -> Plan:
    """What to measure of a model with these layers, at 8 tokens."""
    facts = facts_of(write(tmp_path, "k.toml", files.KEMPNERFORGE))
    return plan(facts._replace(model=DryModel(modules)), [], 8)


def decoder(place: int, hidden: int = 128, state: str = "fp8") -> list[ModuleRecord]:
    """The layers of one block of width 64."""
    sizes = {
        "attn.q_proj": (64, 64),
        "attn.k_proj": (64, 16),
        "attn.v_proj": (64, 16),
        "attn.o_proj": (64, 64),
        "mlp.gate_proj": (64, hidden),
        "mlp.up_proj": (64, hidden),
        "mlp.down_proj": (hidden, 64),
    }
    return [linear(f"layers.{place}.{name}", *size, state) for name, size in sizes.items()]


def test_blocks_that_are_alike_are_one_probe(tmp_path: Path) -> None:
    head = linear("lm_head", 64, 512, "high_precision")
    expert = linear("layers.1.mlp.experts.0.w1", 64, 128)
    modules = [*decoder(0), *decoder(1), *decoder(2, hidden=256), expert, head]
    found = planned(tmp_path, *modules)
    narrow, wide = (Probe(8, block(64, hidden, (64, 16, 16))) for hidden in (128, 256))
    assert list(found) == [narrow, wide, single(8, 64, (512,), Role.HEAD)]
    assert found[narrow].repeats == 2
    assert found[narrow].layers[3] == ("layers.0.mlp.down_proj", "layers.1.mlp.down_proj")
    assert found[single(8, 64, (512,), Role.HEAD)] == Use((("lm_head",),), 1, in_bf16=1)


def test_a_block_in_bf16_is_counted_and_one_partly_in_fp8_is_its_own(tmp_path: Path) -> None:
    partly = [
        linear(one.fqn, one.in_features or 0, one.out_features or 0, "high_precision")
        if "attn" in one.fqn
        else one
        for one in decoder(2)
    ]
    found = planned(tmp_path, *decoder(0), *decoder(1, state="high_precision"), *partly)
    whole = Probe(8, block(64, 128, (64, 16, 16)))
    part = Probe(8, block(64, 128, (64, 16, 16), (False, False, True, True)))
    assert (found[whole].repeats, found[whole].in_bf16) == (2, 1)
    assert (found[part].repeats, found[part].in_bf16) == (1, 0)
    assert whole_variants(part, ["rowwise"]) == {"rowwise": Variant("rowwise", (2, 3))}


def test_layers_that_make_no_block_are_measured_alone(tmp_path: Path) -> None:
    without_output = [one for one in decoder(0) if "o_proj" not in one.fqn]
    found = planned(tmp_path, *without_output, linear("net.0", 32, 16))
    assert set(found) == {
        single(8, 64, (64, 16, 16), Role.ATTENTION_IN),
        single(8, 64, (128, 128), Role.FEED_FORWARD_IN),
        single(8, 128, (64,), Role.FEED_FORWARD_OUT),
        single(8, 32, (16,)),
    }


@pytest.mark.parametrize(
    ("attention", "heads"),
    [
        ((768, 768, 768), Heads(768, 768, 64)),
        ((2304,), Heads(768, 768, 64)),
        ((768, 256, 256), Heads(768, 256, 64)),
        ((768, 512), Heads(768, 256, 64)),
        ((768, 256, 128), None),
        ((768,), None),
        ((768, 768, 768, 768), None),
    ],
)
def test_widths_tell_the_heads_of_attention(
    attention: tuple[int, ...], heads: Heads | None
) -> None:
    assert heads_of(block(768, 2048, attention)) == heads


def parted(saved: dict[Role, float], gemm: float = 100.0) -> Measured:
    """A block of 1000 µs in which each role alone saves so much; its GEMMs take `gemm` each."""
    groups = block(64, 128, (64, 64, 64))
    gemms = [
        Gemm(leg, m, n, k, gemm * count)
        for count, width, outputs in ((4, 64, 64), (2, 64, 128), (1, 128, 64))
        for leg, m, n, k in (
            ("fprop", 8192, outputs, width),
            ("dgrad", 8192, width, outputs),
            ("wgrad", outputs, width, 8192),
        )
    ]
    bf16 = Timed((10000.0,) * 5, tuple(gemms))
    alone = {role.value: timed(10000.0 - us) for role, us in saved.items()}
    return Measured(8192, groups, {"bf16": bf16, **alone})


def test_each_part_of_a_block_is_told_whether_it_pays() -> None:
    one_block = parted(
        {
            Role.ATTENTION_IN: -300.0,
            Role.ATTENTION_OUT: 10.0,
            Role.FEED_FORWARD_IN: 200.0,
            Role.FEED_FORWARD_OUT: -50.0,
        }
    )
    # wgrad of up (128 x 64) and of down (64 x 128) are one size: each layer has its part of it.
    found_us = [round(one_block.group_us(group)) for group in one_block.groups]
    assert found_us == [900, 300, 600, 300]
    names = (("l.0.q", "l.0.k", "l.0.v"), ("l.0.o",), ("l.0.gate", "l.0.up"), ("l.0.down",))
    whole = msgspec.structs.replace(
        one_block, times={"bf16": one_block.times["bf16"], "tensorwise": timed(10200.0)}
    )
    found = Measurement((whole,), WHERE, alone=(one_block,))
    checks_found = list(measured(found, {whole.probe: Use(names, 1)}))
    answers = [
        check.message.rpartition(": ")[2] for check in checks_found if " alone in " in check.message
    ]
    assert answers == ["does not pay", "cannot tell", "pays", "does not pay"]
    (left_out,) = (check for check in checks_found if check.code == "measured-filter")
    assert (
        left_out.message == 'leave in BF16: filter_fqns = ["l.0.q", "l.0.k", "l.0.v", "l.0.down"]'
    )


@pytest.mark.parametrize(
    ("capture", "width", "hidden"), [("bf16_compiled", 2048, 8192), ("bf16_width4096", 4096, 14336)]
)
def test_the_gemms_of_a_training_are_those_of_its_blocks_and_head(
    capture: str, width: int, hidden: int
) -> None:
    answer = answer_to(0, bf16=[9000.0])
    answer["traces"] = {"bf16": str(ROOT / capture / "rank0.json.gz")}
    head = Group(width, (32000,), Role.HEAD)
    probe = Probe(8192, (*block(width, hidden, (width,) * 3), head))
    (found,) = read_answers([probe], [WHERE, answer]).probes
    shares = [found.group_us(group) for group in probe.groups]
    assert sum(shares) == pytest.approx(found.times["bf16"].gemm_us)
    assert shares[0] == pytest.approx(3 * shares[1])
    assert shares[2] == pytest.approx(2 * shares[3], rel=0.05)


def test_the_longest_kernels_are_told_in_json_only() -> None:
    kernels = (Kernel("triton_red_fused_abs_max_0", 120.0), Kernel("nvjet", 80.0))
    bf16 = msgspec.structs.replace(timed(3000.0), kernels=kernels)
    report = report_of(measured(Measurement((one(bf16, timed(1800.0)),), WHERE), {}))
    assert "bf16, µs a step: 120 triton_red_fused_abs_max_0, 80 nvjet" in report.to_json()
    assert "triton" not in to_text(report)


def test_a_part_whose_gain_rounds_hide_is_no_answer() -> None:
    one_block = parted({Role.ATTENTION_OUT: 0.0})
    one_block.times[Role.ATTENTION_OUT.value] = timed(9900.0, noise=300.0)
    gain = one_block.gain_alone(one_block.groups[1])
    assert gain is not None
    assert gain.speed_up == pytest.approx(1.5)
    assert gain.answer is Answer.UNSURE


def test_parts_are_measured_only_where_the_model_does_not_clearly_pay() -> None:
    groups = block(64, 128, (64, 64, 64))
    bf16 = timed(1000.0)
    fast, slow = (
        Measured(8192, groups, {"bf16": bf16, "tensorwise": timed(us)}) for us in (500.0, 990.0)
    )
    uses = {fast.probe: Use((), 12)}
    assert blocks_to_part(Measurement((fast,), WHERE), uses) == {}
    assert blocks_to_part(Measurement((slow,), WHERE), uses)[slow.probe] == {
        group.role.value: Variant("tensorwise", (place,)) for place, group in enumerate(groups)
    }


def test_the_times_of_a_stack_are_those_of_one_block() -> None:
    answer = {**answer_to(0, bf16=[10.0], tensorwise=[5.0]), "copies": 2}
    (found,) = read_answers([Probe(8, block(64, 128, (64, 64, 64)))], [WHERE, answer]).probes
    assert (found.times["bf16"].us, found.times["tensorwise"].us) == (5.0, 2.5)


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
    groups = (Group(shape.k, (shape.n,), Role.OTHER),)
    keep(Measurement((Measured(shape.m, groups, times),), where))
    assert cache_file().is_relative_to(tmp_path)
    note = with_what_was_possible(report).notes[-1]
    assert "knows 1 of the" in note
    assert "FP8 pays for 1 of them" in note
    assert "2.00x as fast" in note
    assert kept("NVIDIA L4") == ()
