"""Traps of the frameworks' configurations: values that do nothing, or that are refused together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.frameworks.accelerate import fp8_values
from fp8verify.doctor.rules.trap import Trap, told
from fp8verify.doctor.training import Config, truth, whole, word


def _on(config: Config, key: str) -> bool:
    return bool(truth(config.values.get(key)))


def _asks(config: Config) -> bool:
    return config.training.ask is not None


def _backend(config: Config) -> str | None:
    return config.training.ask.backend if config.training.ask else None


def _pure_e5m2(config: Config) -> bool:
    return _backend(config) == "te" and word(fp8_values(config.values).get("format")) == "e5m2"


def _amax_of_mxfp8(config: Config) -> bool:
    """Whether amax keys are handed to a recipe that has none; their defaults are not handed on."""
    fp8 = fp8_values(config.values)
    length, algorithm = fp8.get("amax_history_len", 1024), fp8.get("amax_compute_algo")
    changed = str(length) != "1024" or word(algorithm) not in ("", "most_recent")
    ask = config.training.ask
    return ask is not None and ask.format == "mxfp8" and changed


def _section_of_another_precision(config: Config) -> bool:
    given = any(key.startswith("fp8_config.") for key in config.values)
    return given and word(config.values.get("mixed_precision")) in ("no", "bf16", "fp16")


def _loads_on_one_rank(config: Config) -> bool:
    key = "fsdp_config.fsdp_cpu_ram_efficient_loading"
    return _backend(config) == "torchao" and _on(config, key)


def _axolotl_checkpoints(config: Config) -> bool:
    return _asks(config) and _on(config, "fsdp_config.activation_checkpointing")


_ALL_GATHER = "fp8_enable_fsdp_float8_all_gather"


def _gathers_in_fsdp1(config: Config) -> bool:
    return _on(config, _ALL_GATHER) and str(config.values.get("fsdp_version")) != "2"


def _gathers_without_fp8(config: Config) -> bool:
    return _on(config, _ALL_GATHER) and not _on(config, "fp8")


def _quantized_model(config: Config) -> bool:
    return (
        config.training.ask is not None and whole(config.values.get("quantization_bit")) is not None
    )


def _nemo_without_te(config: Config) -> bool:
    return (
        _on(config, "model.fp8") and truth(config.values.get("model.transformer_engine")) is False
    )


def _overwritten_in_bridge(config: Config) -> bool:
    own = word(config.values.get("model.fp8")) in ("e4m3", "hybrid")
    return own and not _asks(config)


def _torchtune_recipe_alone(config: Config) -> bool:
    return bool(word(config.values.get("fp8_recipe_name"))) and not _on(
        config, "enable_fp8_training"
    )


def _torchtune_adapters(config: Config) -> bool:
    return _asks(config) and "lora" in word(config.values.get("model._component_"))


def _torchtune_context_parallel(config: Config) -> bool:
    shards = whole(config.values.get("context_parallel_dim")) or 1
    return _asks(config) and shards > 1


def _prime_rl_implementation(config: Config) -> bool:
    given = [config.values.get(name) for name in ("trainer.model.impl", "model.impl")]
    other = any(word(impl) not in ("custom", "auto", "") for impl in given)
    return _asks(config) and other


TRAPS: Mapping[str, tuple[Trap, ...]] = {
    "accelerate": (
        Trap(
            code="config-section-inert",
            status=Status.WARN,
            key="fp8_config",
            applies=_section_of_another_precision,
            message="fp8_config is only read with mixed_precision: fp8; it is {}",
            shows="mixed_precision",
            hint="Set mixed_precision: fp8, or drop fp8_config.",
            source="accelerate utils/launch.py:176 (setup_fp8_env)",
        ),
        Trap(
            code="fp8-with-ram-efficient-loading",
            status=Status.FAIL,
            key="fsdp_config.fsdp_cpu_ram_efficient_loading",
            applies=_loads_on_one_rank,
            message="torchao with FSDP and cpu_ram_efficient_loading raises ValueError",
            hint="Set fsdp_cpu_ram_efficient_loading: false.",
            source="accelerate accelerator.py:517-527",
        ),
        Trap(
            code="config-value-unknown",
            status=Status.FAIL,
            key="fp8_config.fp8_format",
            applies=_pure_e5m2,
            message="accelerate takes fp8_format: E5M2 and Transformer Engine raises “Pure E5M2 "
            "training is not supported.”",
            hint="Write HYBRID (E5M2 for gradients only) or E4M3.",
            source="TE common/recipe/__init__.py:264 (TE d0067d0)",
        ),
        Trap(
            code="config-value-unknown",
            status=Status.FAIL,
            key="fp8_config.use_mxfp8_block_scaling",
            applies=_amax_of_mxfp8,
            message="use_mxfp8_block_scaling with amax_history_len or amax_compute_algo raises "
            "ValueError: MXFP8 has no history of maxima",
            hint="Drop both amax keys.",
            source="accelerate 16cb6eb, utils/transformer_engine.py, apply_fp8_autowrap",
        ),
    ),
    "axolotl": (
        Trap(
            code="fp8-with-checkpointing",
            status=Status.WARN,
            key="fsdp_config.activation_checkpointing",
            applies=_axolotl_checkpoints,
            message="activation checkpointing casts again in the backward pass; FP8 may be slower "
            "than BF16",
            hint="Set activation_checkpointing: false in fsdp_config where memory allows.",
            source="axolotl utils/schemas/validation.py:434; axolotl#2926; ao#893, #2445",
        ),
        Trap(
            code="all-gather-needs-fsdp2",
            status=Status.FAIL,
            key=_ALL_GATHER,
            applies=_gathers_in_fsdp1,
            message=f"{_ALL_GATHER} without fsdp_version: 2 raises ValueError",
            hint="Set fsdp_version: 2, or drop the key.",
            source="axolotl utils/schemas/validation.py:444",
        ),
        Trap(
            code="config-section-inert",
            status=Status.WARN,
            key=_ALL_GATHER,
            applies=_gathers_without_fp8,
            message=f"{_ALL_GATHER} does nothing without fp8: true",
            hint="Set fp8: true, or drop the key.",
            source="axolotl core/trainers/base.py:686",
        ),
    ),
    "LLaMA-Factory": (
        Trap(
            code="config-section-inert",
            status=Status.WARN,
            key=_ALL_GATHER,
            applies=_gathers_without_fp8,
            message=f"{_ALL_GATHER} without fp8: true trains in BF16, although the log says "
            "“Setting fp8=True”: it sets it where the Trainer does not look",
            hint="Set fp8: true, or drop the key.",
            source="LLaMA-Factory ff6d4d1, hparams/parser.py:543-550 (model_args.fp8 = True)",
        ),
        Trap(
            code="fp8-with-quantization",
            status=Status.FAIL,
            key="quantization_bit",
            applies=_quantized_model,
            message="fp8: true with quantization_bit raises “FP8 training is not compatible with "
            "quantization”",
            hint="Drop one of the two.",
            source="LLaMA-Factory ff6d4d1, hparams/parser.py:521-527",
        ),
    ),
    "DeepSpeed": (
        Trap(
            code="config-section-inert",
            status=Status.WARN,
            key="fp8",
            applies=lambda config: _on(config, "fp8.enabled"),
            message="DeepSpeed has no section fp8: nothing reads it",
            hint="Ask for FP8 where the model is made: accelerate's mixed_precision: fp8, or "
            "Transformer Engine's modules and autocast.",
            source="DeepSpeed 38327e0, runtime/config.py; microsoft/DeepSpeed docs, config-json",
        ),
    ),
    "NeMo": (
        Trap(
            code="config-section-inert",
            status=Status.WARN,
            key="model.fp8",
            applies=_nemo_without_te,
            message="model.fp8 is only read by Transformer Engine's layers, and "
            "model.transformer_engine is false",
            hint="Set model.transformer_engine: true.",
            source="NeMo examples/nlp/language_modeling/conf: “enables fp8 in TransformerLayer”",
        ),
    ),
    "Megatron-Bridge": (
        Trap(
            code="config-key-ignored",
            status=Status.WARN,
            key="model.fp8",
            applies=_overwritten_in_bridge,
            message="model.fp8 is overwritten by the recipe's mixed_precision, such as bf16_mixed, "
            "without a word in the log: the training stays in BF16",
            hint="Set mixed_precision=bf16_with_fp8_current_scaling_mixed, or another of them.",
            source="Megatron-Bridge 067f987, training/config.py:2012, mixed_precision.py:138",
        ),
    ),
    "torchtune": (
        Trap(
            code="config-section-inert",
            status=Status.WARN,
            key="fp8_recipe_name",
            applies=_torchtune_recipe_alone,
            message="fp8_recipe_name does nothing without enable_fp8_training: True",
            hint="Set enable_fp8_training: True, or drop the key.",
            source="torchtune bd2a0fc, recipes/full_finetune_distributed.py:211, 617",
        ),
        Trap(
            code="config-section-inert",
            status=Status.WARN,
            key="enable_fp8_training",
            applies=_torchtune_adapters,
            message="only the recipe full_finetune_distributed reads enable_fp8_training, and this "
            "model has adapters (LoRA)",
            hint="Fine-tune the full model, or drop the key.",
            source="torchtune bd2a0fc, recipes/full_finetune_distributed.py:211: no other reads it",
        ),
        Trap(
            code="fp8-with-context-parallel",
            status=Status.FAIL,
            key="context_parallel_dim",
            applies=_torchtune_context_parallel,
            message="enable_fp8_training with context_parallel_dim above 1 raises “Context "
            "Parallel for fp8 training is not currently supported”",
            hint="Set context_parallel_dim: 1.",
            source="torchtune bd2a0fc, recipes/full_finetune_distributed.py:623",
        ),
    ),
    "prime-rl": (
        Trap(
            code="config-value-unknown",
            status=Status.FAIL,
            key="trainer.model.impl",
            applies=_prime_rl_implementation,
            message="quantization is refused for an impl other than custom or auto (ValueError)",
            hint='Set impl = "custom" in the section of the model.',
            source="prime-rl 559b447, prime_rl/configs/trainer.py:329",
        ),
    ),
}


def traps(facts: Facts) -> Iterator[Check]:
    """Values that do nothing, or that are refused together."""
    for config in facts.configs:
        yield from told(TRAPS.get(config.framework, ()), config)
