"""What a log says of single layers and of ranges of steps."""

from __future__ import annotations

import pytest

from fp8verify.logs.statements import LogReading, PhaseClaim
from tests.log_text import WITH_PHASES, declared, read_text

PREFIX = "[rank0]:[titan] 2026-08-21 12:00:00,000 - root - INFO - "
MATCH = "Context (MatchContext(module_path='{}', layer_number=0)) matched to quant config \"{}\""


def phases_of(found: LogReading) -> list[PhaseClaim]:
    return [one.phase for one in found.statements if one.phase]


def read(*lines: str) -> LogReading:
    return read_text("\n".join(lines))


@pytest.mark.parametrize(
    ("lines", "layer", "other", "format_"),
    [
        (
            [(f"{PREFIX}[Override] mxfp8: model.layers.3.attention.wq Linear.Config -> "
             "MXFP8Linear.Config with recipe='mxfp8_rceil'")],
            "layers.3.attention.wq",
            "layers.13.attention.wq",
            "mxfp8",
        ),
        (["[Override] bf16: layers.0.mlp.w2 Float8Linear.Config -> Linear.Config"],
         "layers.0.mlp.w2", "layers.0.mlp.w1", "high_precision"),
        (["INFO:megatron.core:" + MATCH.format("decoder.layers.0.fc1", "bf16")],
         "module.module.decoder.layers.0.fc1", "decoder.layers.0.fc2", "high_precision"),
        ([MATCH.format("decoder.layers.1.mlp.linear_fc1", "nvfp4_rows")],
         "decoder.layers.1.mlp.linear_fc1", "x", "nvfp4"),
        (["Ignored modules for Float8 conversion: ['lm_head.w_out', 'blocks.0.w1']"],
         "lm_head.w_out", "blocks.10.w1", "high_precision"),
        (["  'float8': {'filter_fqns': ['output', 'auto_filter_small_kn'], 'emulate': False}"],
         "model.output", "layers.0.auto_filter_small_kn", "high_precision"),
        (["  num_layers ... 4", "  first_last_layers_bf16 ... True", "  fp8 ... hybrid"],
         "decoder.layers.3.fc1", "decoder.layers.2.fc1", "high_precision"),
    ],
)  # fmt: skip
def test_a_line_about_layers_is_a_claim_for_them(
    lines: list[str], layer: str, other: str, format_: str
) -> None:
    (found,) = read(*lines).layers
    assert (found.format, found.is_pin) == (format_, format_ == "high_precision")
    assert found.covers(layer)
    assert not found.covers(other)
    assert found.line == len(lines)


@pytest.mark.parametrize(
    "line",
    [
        "[Override] rope: layers.0.rope RoPE.Config -> HelionRoPE.Config",
        "[Override] fused: layers.0.ffn Linear.Config -> FusedLinear.Config",
        MATCH.format("decoder.layers.0.mlp.linear_fc1", "experimental"),
        "filter_fqns = []",
    ],
)
def test_lines_that_name_no_format_claim_nothing_of_layers(line: str) -> None:
    assert read(line).layers == ()


@pytest.mark.parametrize(
    ("line", "phases"),
    [
        ("FP8 training from step 500", [("fp8", 500, None)]),
        ("Training in bf16 for the first 500 steps", [("high_precision", None, 500)]),
        # A row that leaves its step out holds for all.
        ("FP8 training enabled", []),
        # Sentences of no row: only a warm-up's steps are read.
        ("FP8 training enabled from step 500", []),
        (
            "BF16 warm-up for the first 500 steps, then FP8",
            [("high_precision", None, 500)],
        ),
    ],
)  # fmt: skip
def test_a_declared_line_may_hold_for_some_steps_only(
    line: str, phases: list[tuple[str, int | None, int | None]]
) -> None:
    with declared({"Lab": WITH_PHASES}):
        found = read(line)
    assert [(p.format, p.first_step, p.last_step) for p in phases_of(found)] == phases
    for phase, (_, first, last) in zip(phases_of(found), phases, strict=True):
        assert phase.covers(first or last or 0)
        assert not phase.covers((first or 1) - 1 if first else (last or 0) + 1)


def test_a_dump_of_mlperf_states_when_fp4_ends() -> None:
    found = read(
        "  fp4 ... e2m1", "  healing_iter ... 300", "  healing_precision ... fp8"
    )
    stated = [(p.format, p.first_step, p.last_step) for p in phases_of(found)]
    assert stated == [("fp4", None, 300), ("fp8", 301, None)]
