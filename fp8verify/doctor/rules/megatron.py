"""Rule on arguments of Megatron-LM that end the run, or keep a part of it out of FP8."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.frameworks.megatron import MEGATRON, MS_SWIFT, given_to, key_in
from fp8verify.doctor.rules.trap import Trap, told
from fp8verify.doctor.training import Config, truth, word

Given = Mapping[str, Any]
_ARGUMENTS = "megatron/training/arguments.py"
_CONFIG = "megatron/core/transformer/transformer_config.py"


def _on(given: Given, name: str) -> bool:
    return name in given and truth(given[name]) is not False


def _any_on(given: Given, *names: str) -> bool:
    return any(_on(given, name) for name in names)


def _fp8(given: Given) -> bool:
    return word(given.get("fp8-format")) in ("e4m3", "hybrid")


def _recipe(given: Given) -> Any:
    return given.get("fp8-recipe", "delayed")


def _trains(given: Given) -> bool:
    """Whether these are the arguments of a training as a whole, not a part of them."""
    infers = any("inference" in name for name in given)
    return not infers and ("train-iters" in given or "train-samples" in given)


def _wide_range(given: Given) -> bool:
    return given.get("fp8-recipe") == "mxfp8" and given.get("fp8-format") == "hybrid"


def _rest_in_fp32(given: Given) -> bool:
    return _fp8(given) and _trains(given) and not _any_on(given, "bf16", "fp16")


def _local(given: Given) -> bool:
    return _fp8(given) and given.get("transformer-impl") == "local"


def _interval(given: Given) -> bool:
    return str(given.get("fp8-interval", 1)) != "1"


def _delayed_with_bf16_layers(given: Given) -> bool:
    return _fp8(given) and _on(given, "first-last-layers-bf16") and _recipe(given) == "delayed"


def _both_formats(given: Given) -> bool:
    return "fp4-format" in given and _fp8(given)


def _reuse_without_overlap(given: Given) -> bool:
    wanted = ("reuse-grad-buf-for-mxfp8-param-ag", "fp8-param-gather")
    needed = ("overlap-param-gather", "overlap-grad-reduce")
    return all(_on(given, name) for name in wanted) and not all(_on(given, n) for n in needed)


def _gathers_in_fsdp2(given: Given) -> bool:
    return _on(given, "use-torch-fsdp2") and _on(given, "fp8-param-gather")


def _gathers_without_optimizer(given: Given) -> bool:
    places = ("use-distributed-optimizer", "use-torch-fsdp2", "use-megatron-fsdp")
    return _on(given, "fp8-param-gather") and _trains(given) and not _any_on(given, *places)


def _gathers_nothing(given: Given) -> bool:
    return _on(given, "fp8-param-gather") and _trains(given) and "fp8-format" not in given


def _pads_nothing(given: Given) -> bool:
    pads = _on(given, "moe-router-padding-for-quantization")
    return pads and _trains(given) and not {"fp8-format", "fp4-format"} & set(given)


def _projects_otherwise(given: Given) -> bool:
    return _on(given, "fp8-output-proj") and _fp8(given) and _recipe(given) != "mxfp8"


def _offloads(given: Given) -> bool:
    return (
        _on(given, "optimizer-cpu-offload")
        and _on(given, "fp8-param-gather")
        and _recipe(given) != "delayed"
    )


def _trap(applies: Callable[[Given], bool], *, status: Status, **texts: str) -> Trap:
    return Trap(status=status, applies=lambda config: applies(given_to(config)), **texts)


TRAPS = (
    _trap(
        _local,
        code="config-section-inert",
        status=Status.FAIL,
        key="transformer-impl",
        message="--fp8-format needs Transformer Engine's layers, and --transformer-impl is local",
        hint="Set --transformer-impl transformer_engine.",
        source="megatron/core/fp8_utils.py; Megatron-LM#883",
    ),
    _trap(
        _rest_in_fp32,
        code="fp8-without-bf16",
        status=Status.WARN,
        key="fp8-format",
        message="--fp8-format without --bf16 leaves everything that is not FP8 in FP32",
        hint="Add --bf16.",
        source=f"{_ARGUMENTS}:1194 (params_dtype); Megatron-LM#883",
    ),
    _trap(
        _wide_range,
        code="mxfp8-e5m2-gradients",
        status=Status.WARN,
        key="fp8-recipe",
        message="--fp8-recipe mxfp8 with --fp8-format hybrid keeps gradients in E5M2; runs with it "
        "have diverged",
        hint="Use --fp8-format e4m3: with the scales of MXFP8 its range is enough.",
        source="Megatron-Bridge#638",
    ),
    _trap(
        _interval,
        code="config-key-ignored",
        status=Status.WARN,
        key="fp8-interval",
        message="--fp8-interval is ignored since Transformer Engine 1.8",
        hint="Drop it.",
        source=f"{_CONFIG}:616",
    ),
    _trap(
        _delayed_with_bf16_layers,
        code="fp8-with-bf16-layers",
        status=Status.FAIL,
        key="first-last-layers-bf16",
        message="--first-last-layers-bf16 with delayed scaling raises “Delayed scaling does not "
        "support first / last layer in BF16.”",
        hint="Choose --fp8-recipe tensorwise, blockwise or mxfp8.",
        source=f"{_CONFIG}:1529",
    ),
    _trap(
        _both_formats,
        code="fp8-with-fp4",
        status=Status.FAIL,
        key="fp4-format",
        message="--fp4-format and --fp8-format exclude each other",
        hint="Choose one.",
        source=f"{_ARGUMENTS}:1100",
    ),
    _trap(
        _reuse_without_overlap,
        code="known-bad-versions",
        status=Status.FAIL,
        key="reuse-grad-buf-for-mxfp8-param-ag",
        message="--fp8-param-gather with --reuse-grad-buf-for-mxfp8-param-ag needs both "
        "--overlap-param-gather and --overlap-grad-reduce",
        hint="Add both, or use a Megatron-LM with #4769 (on main: #4800, May 2026); without either "
        "the loss becomes NaN.",
        source="Megatron-LM#2272, repaired by #4769",
    ),
    _trap(
        _gathers_in_fsdp2,
        code="all-gather-not-fp8",
        status=Status.WARN,
        key="use-torch-fsdp2",
        message="--use-torch-fsdp2 turns --fp8-param-gather off with Transformer Engine 2.0 or "
        "above: weights are gathered in BF16",
        hint="Use --use-megatron-fsdp or the distributed optimizer.",
        source=f"{_ARGUMENTS}:1051",
    ),
    _trap(
        _gathers_without_optimizer,
        code="param-gather-refused",
        status=Status.FAIL,
        key="fp8-param-gather",
        message="--fp8-param-gather is refused without the distributed optimizer, torch's FSDP2 or "
        "Megatron's FSDP",
        hint="Add --use-distributed-optimizer.",
        source=f"{_ARGUMENTS}:1095",
    ),
    _trap(
        _gathers_nothing,
        code="param-gather-refused",
        status=Status.FAIL,
        key="fp8-param-gather",
        message="--fp8-param-gather without --fp8-format raises “fp8_param must be used together "
        "with fp8 mode.”",
        hint="Add --fp8-format hybrid, or drop it.",
        source=f"{_CONFIG}:1566",
    ),
    _trap(
        _offloads,
        code="param-gather-refused",
        status=Status.FAIL,
        key="optimizer-cpu-offload",
        message="--optimizer-cpu-offload with --fp8-param-gather is refused for every recipe but "
        "delayed",
        hint="Choose --fp8-recipe delayed, or drop one of the two.",
        source=f"{_ARGUMENTS}:1889",
    ),
    _trap(
        _projects_otherwise,
        code="config-value-unknown",
        status=Status.FAIL,
        key="fp8-output-proj",
        message="--fp8-output-proj raises “fp8_output_proj requires fp8_recipe='mxfp8'”",
        hint="Choose --fp8-recipe mxfp8, or drop it.",
        source=f"{_CONFIG}:1572",
    ),
    _trap(
        _pads_nothing,
        code="config-section-inert",
        status=Status.FAIL,
        key="moe-router-padding-for-quantization",
        message="--moe-router-padding-for-quantization without --fp8-format or --fp4-format raises "
        "“fp8/fp4 must be specified”",
        hint="Add --fp8-format, or drop it.",
        source=f"{_CONFIG}:2650",
    ),
)


def megatron_traps(facts: Facts) -> Iterator[Check]:
    """Arguments that do not do what they say."""
    for config in facts.configs:
        if config.framework in (MEGATRON.name, MS_SWIFT.name):
            yield from told([_in(config, trap) for trap in TRAPS], config)


def _in(config: Config, trap: Trap) -> Trap:
    return trap._replace(key=key_in(config.values, trap.key))
