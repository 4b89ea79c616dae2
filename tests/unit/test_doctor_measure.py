"""What `doctor --measure` makes of measured times: pays, loses or cannot tell."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fp8verify import inspect
from fp8verify.capture.schema import ModuleRecord
from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.decoder import Group, Heads, Role, heads_of, role_of
from fp8verify.doctor.dry_start import DryModel
from fp8verify.doctor.installed import Interpreter
from fp8verify.doctor.measure import (
    Answer,
    Measured,
    Measurement,
    measure,
    measured,
    read_answers,
)
from fp8verify.doctor.probes import Plan, Probe, Use, parse_shape, plan
from fp8verify.errors import UsageError
from tests import doctor_files as files
from tests.doctor_files import facts_of, write
from tests.golden.expectations import ROOT

WHERE = {"gpu": "NVIDIA H200", "torch": "2.11.0+cu130", "torchao": "0.17.0"}
HERE = Interpreter(sys.executable, "", named=True)
RECIPES = ["tensorwise"]


def one(
    bf16: float,
    fp8: float,
    outputs: tuple[int, ...] = (14336,),
    role: Role = Role.OTHER,
    *,
    gemm: float = 0.0,
    noise: float = 0.0,
) -> Measured:
    """A probe of one group, by one recipe, whose rounds in FP8 lie within `noise` of `fp8`."""
    rounds = tuple(fp8 + noise * shift for shift in (-1, -0.5, 0, 0.5, 1))
    times = {"bf16": (bf16,) * 5, "tensorwise": rounds}
    return Measured(Probe(8192, (Group(4096, outputs, role),)), times, gemm)


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


WIDE = one(3000.0, 1800.0, (14336, 14336), Role.FEED_FORWARD_IN)
NARROW = one(300.0, 340.0, (1024,))


def checks(*found: Measured, uses: Plan | None = None) -> dict[str, list[Check]]:
    """The checks about some probes, by code."""
    by_code: dict[str, list[Check]] = {}
    for check in measured(Measurement(found, WHERE), uses or {}):
        by_code.setdefault(check.code, []).append(check)
    return by_code


def test_each_size_is_told_whether_it_pays() -> None:
    uses = {
        WIDE.probe: Use(("layers.0.mlp.gate_proj", "layers.0.mlp.up_proj"), 1),
        NARROW.probe: Use(("layers.0.attn.k_proj", "layers.1.attn.k_proj"), 2),
    }
    found = checks(WIDE, NARROW, uses=uses)
    pays, loses = found["measured"]
    assert pays.message.startswith("8192 tokens, in no decoder block, 4096 -> 2 x 14336 (")
    assert pays.message.endswith(" µs a step (3000 in the layers), tensorwise 1800, 1.67x: pays")
    assert loses.message.startswith("8192 tokens, 4096 -> 1024 (layers.*.attn.k_proj (2)), 2 times")
    assert loses.message.endswith("(300 in the layers), tensorwise 340, 0.88x: does not pay")
    assert [pays.status, loses.status] == [Status.OK, Status.WARN]
    assert loses.hint.startswith("Leave these layers in BF16")


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
    probe = one(100.0, fp8, noise=noise)
    assert probe.answer is answer
    (check,) = checks(probe)["measured"]
    assert check.message.endswith(f": {answer.value}")


def test_what_is_around_the_layers_counts_in_neither_precision() -> None:
    # 400 µs of norms and activations in both; of the layers' 600 µs FP8 saves 250.
    probe = one(1000.0, 750.0, gemm=600.0)
    assert probe.layers_us == 600.0
    assert probe.gain("tensorwise").speed_up == pytest.approx(600 / 350)


@pytest.mark.parametrize(
    ("wide", "narrow", "says"),
    [
        (Use(("a",), 12), Use(("b",), 24), "BF16 43.2 ms a step, tensorwise 29.8 with casts, 1.45"),
        (Use(("a",), 1, in_bf16=1), Use(("b",), 1), "BF16 3.3 ms a step, tensorwise 3.3 with"),
        (Use(), Use(), None),
    ],
)
def test_the_model_is_the_sum_of_its_probes_as_often_as_it_has_them(
    wide: Use, narrow: Use, says: str | None
) -> None:
    found = checks(WIDE, NARROW, uses={WIDE.probe: wide, NARROW.probe: narrow})
    assert [says in check.message for check in found.get("measured-model", ()) if says] == (
        [True] if says else []
    )


def answer_of(errors: dict[str, str] | None = None, **rounds: list[float]) -> dict[str, Any]:
    """A line of the worker."""
    return {
        "rounds": rounds,
        "errors": errors or {},
        "trace": "gone.json",
        "traced_steps": 3,
        "copies": 1,
    }


def test_a_recipe_that_fails_is_named_and_the_others_count() -> None:
    errors = {"rowwise": "RuntimeError: Rowwise scaling is not supported"}
    answer = answer_of(errors, bf16=[10.0], tensorwise=[5.0])
    (found,) = read_answers([single(8, 16, (32,))], [WHERE, answer]).probes
    (check,) = checks(found)["measured"]
    assert "rowwise failed (RuntimeError: Rowwise" in check.message
    assert check.status is Status.OK


def test_a_probe_without_memory_for_bf16_says_so_and_no_model_is_judged() -> None:
    probe = single(8, 16, (32,))
    answer = answer_of({"bf16": "OutOfMemoryError: CUDA out of memory"})
    measurement = read_answers([probe], [WHERE, answer])
    assert measurement.failed == {probe: "OutOfMemoryError: CUDA out of memory"}
    both = measurement._replace(probes=(WIDE,))
    found = list(measured(both, {WIDE.probe: Use(("a",), 1), probe: Use(("b",), 1)}))
    assert "measured-model" not in {check.code for check in found}
    assert any("could not be measured: OutOfMemory" in check.message for check in found)


def test_the_time_of_gemms_is_read_from_the_worker_s_trace() -> None:
    trace = str(ROOT / "bf16_compiled" / "rank0.json.gz")
    answer = {**answer_of(bf16=[9000.0]), "trace": trace, "traced_steps": 1}
    (found,) = read_answers([single(8, 16, (32,))], [WHERE, answer]).probes
    report = inspect(trace)
    assert found.gemm_us == pytest.approx(sum(report.ranks[0].gemm.time_us.values()))


def test_the_times_of_a_stack_are_those_of_one_block() -> None:
    answer = {**answer_of(bf16=[10.0], tensorwise=[5.0]), "copies": 2}
    (found,) = read_answers([Probe(8, block(64, 128, (64, 64, 64)))], [WHERE, answer]).probes
    assert (found.us("bf16"), found.us("tensorwise")) == (5.0, 2.5)


def test_what_the_worker_prints_among_other_lines_is_read(tmp_path: Path) -> None:
    lines = ["a library says hello", "fp8verify: " + json.dumps(WHERE)]
    lines += ["fp8verify: " + json.dumps(answer_of(bf16=[10.0], tensorwise=[5.0]))]
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\ncat >/dev/null\n" + "".join(f"echo '{x}'\n" for x in lines))
    python.chmod(0o755)
    probe = single(8, 16, (32,))
    found = measure(Interpreter(str(python), "", named=True), {probe: Use()}, RECIPES)
    assert found.where["gpu"] == "NVIDIA H200"
    assert [one.probe for one in found.probes] == [probe]


def test_a_python_that_cannot_measure_says_why(tmp_path: Path) -> None:
    wanted = {single(8, 16, (32,)): Use()}
    found = measure(Interpreter(str(tmp_path / "none"), "", named=True), wanted, RECIPES)
    assert "FileNotFoundError" in found.why_none
    assert "--shape" in measure(Interpreter("x", "", named=True), {}, RECIPES).why_none
    (check,) = measured(found, {})
    assert (check.status, check.code) == (Status.SKIPPED, "measured")


@pytest.mark.train
def test_the_worker_says_that_there_is_no_gpu() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    found = measure(HERE, {single(8, 16, (32,)): Use()}, RECIPES)
    assert found.why_none == "torch sees no GPU"


@pytest.mark.train
def test_the_worker_times_blocks_and_layers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # Emulated on the CPU: the times say nothing, but all of the worker runs. Threads that wait for
    # each other on a busy machine would take most of the time.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    fused = tuple(
        group._replace(outputs=(sum(group.outputs),))
        for group in block(32, 64, (32, 32, 32), (False, True, True, True))
    )
    wanted = {Probe(32, block(32, 64, (32, 16, 16))): Use((), 3), Probe(32, fused): Use((), 1)}
    wanted |= {single(32, 16, (16, 32), role): Use() for role in (Role.OTHER, Role.HEAD)}
    found = measure(
        HERE, wanted, RECIPES,
        device="cpu", emulate=True, rounds=2, round_ms=1, compile=False,
    )  # fmt: skip
    assert (found.failed, found.why_none) == ({}, "")
    assert [one.probe for one in found.probes] == list(wanted)
    for one_probe in found.probes:
        assert one_probe.errors == {}
        assert {name: len(us) for name, us in one_probe.rounds_us.items()} == {
            "bf16": 2,
            "tensorwise": 2,
        }


@pytest.mark.train
def test_the_layers_of_a_block_that_the_model_has_in_fp8_are_converted() -> None:
    import torch

    from fp8verify.doctor import worker

    groups = [g._asdict() for g in block(32, 64, (32, 16, 16), (True, False, False, True))]
    with torch.random.fork_rng():
        model = worker.build({"groups": groups, "heads": [32, 16, 16]}).bfloat16()
        worker.convert(model, "tensorwise", emulate=True)
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
                "attention q",
                "attention k, v",
                "attention o",
                "feed-forward in",
                "feed-forward out",
            ),
            32,
        ),
        single(32768, 4096, (128256,), Role.HEAD): Use(("output head",), 1),
    }
    assert {probe.tokens for probe in plan(facts, [], 100)} == {100}


def linear(fqn: str, k: int, n: int, state: str = "fp8") -> ModuleRecord:
    """A linear layer of the census."""
    return ModuleRecord(
        fqn=fqn, class_name="Linear", kind="linear", state=state, in_features=k, out_features=n
    )


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


HIGH = "high_precision"
ATTENTION = (64, 16, 16)
WHOLE, LARGE = (Probe(8, block(64, hidden, ATTENTION)) for hidden in (128, 256))
PARTLY = Probe(8, block(64, 128, ATTENTION, (False, False, True, True)))
HEAD = single(8, 64, (512,), Role.HEAD)
# Layers of a model, what is measured of it: how often it has that, and how often in BF16.
MODELS: list[tuple[list[ModuleRecord], dict[Probe, tuple[int, int]]]] = [
    # Blocks that are alike are one probe; experts are not measured.
    ([*decoder(0), *decoder(1), *decoder(2, hidden=256),
      linear("layers.1.mlp.experts.0.w1", 64, 128), linear("lm_head", 64, 512, HIGH)],
     {WHOLE: (2, 0), LARGE: (1, 0), HEAD: (1, 1)}),
    # A block in BF16 is counted, and one partly in FP8 is its own.
    ([*decoder(0), *decoder(1, state=HIGH), *decoder(2)[4:],
      *(one for one in decoder(2, state=HIGH) if "attn" in one.fqn)],
     {WHOLE: (2, 1), PARTLY: (1, 0)}),
    # Layers that make no block are measured alone.
    ([*(one for one in decoder(0) if "o_proj" not in one.fqn), linear("net.0", 32, 16)],
     {single(8, 64, ATTENTION, Role.ATTENTION_IN): (1, 0),
      single(8, 64, (128, 128), Role.FEED_FORWARD_IN): (1, 0),
      single(8, 128, (64,), Role.FEED_FORWARD_OUT): (1, 0),
      single(8, 32, (16,)): (1, 0)}),
]  # fmt: skip


@pytest.mark.parametrize(("modules", "expected"), MODELS)
def test_what_is_measured_of_a_model(
    tmp_path: Path, modules: list[ModuleRecord], expected: dict[Probe, tuple[int, int]]
) -> None:
    facts = facts_of(write(tmp_path, "k.toml", files.KEMPNERFORGE))
    found = plan(facts._replace(model=DryModel(tuple(modules))), [], 8)
    assert {probe: (use.repeats, use.in_bf16) for probe, use in found.items()} == expected
    names = [name for use in found.values() for name in use.names]
    assert set(names) == {one.fqn for one in modules if "experts" not in one.fqn}


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
