"""Rule on arguments of Megatron-LM that end the run, or keep a part of it out of FP8."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from fp8verify.preflight.checks import Check, Status
from fp8verify.preflight.facts import Facts
from fp8verify.preflight.frameworks.megatron import plain
from fp8verify.preflight.rules.keys import place
from fp8verify.preflight.training import Config, truth, word

Given = Mapping[str, Any]


class Trap(NamedTuple):
    """Arguments that do not do what they say; `argument` is the one whose line is shown."""

    code: str
    status: Status
    argument: str
    applies: Callable[[Given], bool]
    message: str
    hint: str
    source: str


def _on(given: Given, name: str) -> bool:
    return name in given and truth(given[name]) is not False


def _any_on(given: Given, *names: str) -> bool:
    return any(_on(given, name) for name in names)


def _fp8(given: Given) -> bool:
    return word(given.get("fp8-format")) in ("e4m3", "hybrid")


def _trains(given: Given) -> bool:
    """Whether these are the arguments of a training as a whole, not a part of them."""
    infers = any("inference" in name for name in given)
    return not infers and ("train-iters" in given or "train-samples" in given)


def _reuse_without_overlap(given: Given) -> bool:
    wanted = ("reuse-grad-buf-for-mxfp8-param-ag", "fp8-param-gather")
    needed = ("overlap-param-gather", "overlap-grad-reduce")
    return all(_on(given, name) for name in wanted) and not all(_on(given, n) for n in needed)


def _delayed_with_bf16_layers(given: Given) -> bool:
    recipe = given.get("fp8-recipe", "delayed")
    return _fp8(given) and _on(given, "first-last-layers-bf16") and recipe == "delayed"


TRAPS = (
    Trap(
        code="config-section-inert",
        status=Status.FAIL,
        argument="transformer-impl",
        applies=lambda given: _fp8(given) and given.get("transformer-impl") == "local",
        message="--fp8-format needs Transformer Engine's layers, and --transformer-impl is local",
        hint="Set --transformer-impl transformer_engine.",
        source="megatron/core/fp8_utils.py; Megatron-LM#883",
    ),
    Trap(
        code="fp8-without-bf16",
        status=Status.WARN,
        argument="fp8-format",
        applies=lambda given: (
            _fp8(given)
            and _trains(given)
            and not _any_on(given, "bf16", "fp16", "use-precision-aware-optimizer")
        ),
        message="--fp8-format without --bf16 leaves everything that is not FP8 in FP32",
        hint="Add --bf16.",
        source="Megatron-LM#883",
    ),
    Trap(
        code="mxfp8-e5m2-gradients",
        status=Status.WARN,
        argument="fp8-recipe",
        applies=lambda given: (
            given.get("fp8-recipe") == "mxfp8" and given.get("fp8-format") == "hybrid"
        ),
        message="--fp8-recipe mxfp8 with --fp8-format hybrid keeps gradients in E5M2; runs with it "
        "have diverged",
        hint="Use --fp8-format e4m3: with the scales of MXFP8 its range is enough.",
        source="Megatron-Bridge#638",
    ),
    Trap(
        code="config-key-ignored",
        status=Status.WARN,
        argument="fp8-interval",
        applies=lambda given: str(given.get("fp8-interval", 1)) != "1",
        message="--fp8-interval is ignored since Transformer Engine 1.8",
        hint="Drop it.",
        source="megatron/core/transformer/transformer_config.py:616",
    ),
    Trap(
        code="fp8-with-bf16-layers",
        status=Status.FAIL,
        argument="first-last-layers-bf16",
        applies=_delayed_with_bf16_layers,
        message="--first-last-layers-bf16 with delayed scaling raises “Delayed scaling does not "
        "support first / last layer in BF16.”",
        hint="Choose --fp8-recipe tensorwise, blockwise or mxfp8.",
        source="megatron/core/transformer/transformer_config.py:1529",
    ),
    Trap(
        code="fp8-with-fp4",
        status=Status.FAIL,
        argument="fp4-format",
        applies=lambda given: "fp4-format" in given and _fp8(given),
        message="--fp4-format and --fp8-format exclude each other",
        hint="Choose one.",
        source="megatron/training/arguments.py:1100",
    ),
    Trap(
        code="known-bad-versions",
        status=Status.FAIL,
        argument="reuse-grad-buf-for-mxfp8-param-ag",
        applies=_reuse_without_overlap,
        message="--fp8-param-gather with --reuse-grad-buf-for-mxfp8-param-ag needs both "
        "--overlap-param-gather and --overlap-grad-reduce",
        hint="Add both, or use a Megatron-LM with #4769 (on main: #4800, May 2026); without either "
        "the loss becomes NaN.",
        source="Megatron-LM#2272, repaired by #4769",
    ),
    Trap(
        code="all-gather-not-fp8",
        status=Status.WARN,
        argument="use-torch-fsdp2",
        applies=lambda given: _on(given, "use-torch-fsdp2") and _on(given, "fp8-param-gather"),
        message="--use-torch-fsdp2 turns --fp8-param-gather off with Transformer Engine 2.0 or "
        "above: weights are gathered in BF16",
        hint="Use --use-megatron-fsdp or the distributed optimizer.",
        source="megatron/training/arguments.py:1051",
    ),
    Trap(
        code="param-gather-refused",
        status=Status.FAIL,
        argument="fp8-param-gather",
        applies=lambda given: (
            _on(given, "fp8-param-gather")
            and _trains(given)
            and not _any_on(
                given, "use-distributed-optimizer", "use-torch-fsdp2", "use-megatron-fsdp"
            )
        ),
        message="--fp8-param-gather is refused without the distributed optimizer, torch's FSDP2 or "
        "Megatron's FSDP",
        hint="Add --use-distributed-optimizer.",
        source="megatron/training/arguments.py:1095",
    ),
)


def megatron_traps(facts: Facts) -> Iterator[Check]:
    """Arguments that do not do what they say."""
    for config in facts.configs:
        if config.framework != "Megatron-LM":
            continue
        given = plain(config.values)
        for trap in TRAPS:
            if trap.applies(given):
                yield Check(
                    code=trap.code,
                    status=trap.status,
                    message=trap.message,
                    hint=trap.hint,
                    source=trap.source,
                    **place(config, _key(config, trap.argument)),
                )


def _key(config: Config, name: str) -> str:
    return name if name in config.values else f"MODEL_ARGS.--{name}"
