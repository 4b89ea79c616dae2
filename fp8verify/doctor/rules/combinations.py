"""Rules on what does not go together with FP8, or makes it slower than BF16."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.frameworks.accelerate import fp8_values
from fp8verify.doctor.rules.keys import place
from fp8verify.doctor.training import Config, truth
from fp8verify.doctor.versions import parsed, within


def tensor_parallel(facts: Facts) -> Iterator[Check]:
    """KempnerForge refuses FP8 with tensor parallelism."""
    for config in facts.configs:
        training = config.training
        if config.framework == "KempnerForge" and training.ask and training.tensor_parallel > 1:
            yield Check(
                code="fp8-with-tensor-parallel",
                status=Status.FAIL,
                message=f'mixed_precision = "fp8" and tp = {training.tensor_parallel}: '
                "KempnerForge raises “FP8 + Tensor Parallelism is not yet supported”",
                hint="Set tp = 1 and shard with dp_shard, or train in bf16.",
                source="kempnerforge/config/job.py, validate(); docs/distributed/fp8.md",
                **place(config, "distributed.tp"),
            )


def deepspeed(facts: Facts) -> Iterator[Check]:
    """Accelerate's DeepSpeed state overrode FP8 with bf16 from 0.34.3 until 1.4."""
    outside = any(c.framework == "accelerate" and c.training.ask for c in facts.configs)
    for config in facts.configs:
        training = config.training
        asks = training.ask or (config.framework.startswith("TRL") and outside)
        if not (asks and training.deepspeed) or config.framework == "LLaMA-Factory":
            continue  # LLaMA-Factory had FP8 only after the repair
        version = facts.versions.get("accelerate")
        if parsed(version) is not None and not within(version, ">0.34.2,<1.4.0"):
            continue
        yield Check(
            code="fp8-with-deepspeed",
            status=Status.WARN if version is None else Status.FAIL,
            message="FP8 with DeepSpeed trains in BF16 without a word with accelerate above 0.34.2 "
            f"and below 1.4.0 (here {version or 'not known'})",
            hint="Use accelerate 1.4.0 or above, or FSDP; `fp8verify run` proves what ran.",
            source="accelerate#3054, #3360, fixed by #3361; transformers#34027",
            **place(
                config, "distributed_type" if "distributed_type" in config.values else "deepspeed"
            ),
        )


def accelerate_overrides(facts: Facts) -> Iterator[Check]:
    """Values that accelerate hands to Transformer Engine as what that cannot take."""
    for config in facts.configs:
        ask = config.training.ask
        if config.framework == "accelerate" and ask is not None and ask.backend == "te":
            yield from _no_list(config)
            yield from _dropped_arguments(config)


def _no_list(config: Config) -> Iterator[Check]:
    override = fp8_values(config.values).get("override_linear_precision")
    if isinstance(override, (str, bool)) and config.in_file:
        raised = (
            "is a string, whose first three letters are taken for three flags: ValueError, invalid "
            "truth value"
            if isinstance(override, str)
            else "is a bool, of which three parts are taken: TypeError"
        )
        yield Check(
            code="config-value-unknown",
            status=Status.FAIL,
            message=f"override_linear_precision: {override} {raised}",
            hint="Write a list: [false, false, false].",
            source="accelerate 16cb6eb, utils/launch.py:92-94, utils/environment.py:71",
            **place(config, "fp8_config.override_linear_precision"),
        )


def _dropped_arguments(config: Config) -> Iterator[Check]:
    """Yield what DelayedScaling had once: only what is not the default is handed to it."""
    fp8 = fp8_values(config.values)
    override = fp8.get("override_linear_precision")
    changed = ["interval"] if str(fp8.get("interval", 1)) != "1" else []
    if isinstance(override, list) and any(truth(part) for part in override):
        changed.append("override_linear_precision")
    for name in changed[:1]:
        yield Check(
            code="config-value-unknown",
            status=Status.WARN,
            message=f"{name} is handed to DelayedScaling, which no longer takes it (TypeError)",
            hint="Leave it at its default.",
            source="accelerate utils/transformer_engine.py; TE common/recipe/__init__.py:250ff",
            **place(config, f"fp8_config.{name}"),
        )


def compile_off(facts: Facts) -> Iterator[Check]:
    """Eager casts of torchao cost more than FP8 gains."""
    for config in facts.configs:
        ask, compiled = config.training.ask, config.training.compile
        if ask is None or ask.backend != "torchao" or compiled is True:
            continue
        key = next((key for key in _COMPILE_KEYS if key in config.values), ask.key)
        yield Check(
            code="compile-off",
            status=Status.WARN if compiled is False else Status.OK,
            message="the model is not compiled: each cast of torchao runs as several kernels"
            if compiled is False
            else "nothing here says whether the model is compiled",
            hint="Compile the model: eager FP8 took 2.6 times as long as compiled FP8.",
            source="measured on H200 with torch 2.11, examples/train_gpt.py; ao#685, #1199",
            **place(config, key),
        )


_COMPILE_KEYS = (
    "train.compile_model",
    "compile.enable",
    "training.compile",
    "compile.enabled",
    "torch_compile",
    "dynamo_config.dynamo_backend",
    "dynamo_backend",
    "compile",
)


def delayed_under_compile(facts: Facts) -> Iterator[Check]:
    """Transformer Engine refuses delayed scaling under torch.compile."""
    for config in facts.configs:
        ask = config.training.ask
        delayed = ask is not None and ask.backend == "te" and ask.recipe == "delayed"
        if delayed and config.training.compile:
            yield Check(
                code="delayed-scaling-compiled",
                status=Status.WARN,
                message="delayed scaling under torch.compile raises RuntimeError in current "
                "Transformer Engine",
                hint="Leave the model uncompiled, or take another recipe than delayed scaling.",
                source="TE pytorch/quantization.py:228 (TE d0067d0)",
                **place(config, ask.key if ask else ""),
            )
