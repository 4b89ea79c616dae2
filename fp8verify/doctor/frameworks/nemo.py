"""NeMo and its relatives: NeMo 1's YAML, Megatron-Bridge's overrides, Automodel's YAML."""

from __future__ import annotations

import re

from fp8verify.doctor.documents import Document
from fp8verify.doctor.frameworks.framework import ANY, FLAG, Framework, Key, keys
from fp8verify.doctor.training import (
    Ask,
    LayerSize,
    Training,
    Values,
    llama_layers,
    truth,
    whole,
    word,
)

_FORMATS = {"mxfp8": "mxfp8", "blockwise": "fp8_block", "block": "fp8_block"}
_RECIPES = Key(("tensorwise", "delayed", "mxfp8", "blockwise", "custom"))


def _is_nemo(document: Document) -> bool:
    values = document.values
    return document.kind == "yaml" and (
        "model.transformer_engine" in values
        or "model.fp8" in values
        or ("model.micro_batch_size" in values and "trainer" in values)
    )


def _read_nemo(values: Values) -> Training:
    asks = truth(values.get("model.fp8")) is True
    recipe = word(values.get("model.fp8_recipe")) or "delayed"
    tensor_parallel = whole(values.get("model.tensor_model_parallel_size")) or 1
    return Training(
        ask=Ask(_FORMATS.get(recipe, "fp8"), recipe, "te", "model.fp8") if asks else None,
        checkpointing=values.get("model.activations_checkpoint_granularity") is not None,
        tensor_parallel=tensor_parallel,
        layers=_layers(values, tensor_parallel),
    )


def _layers(values: Values, shards: int) -> tuple[LayerSize, ...]:
    dim, count = whole(values.get("model.hidden_size")), whole(values.get("model.num_layers"))
    if dim is None or count is None:
        return ()
    return llama_layers(
        dim,
        whole(values.get("model.ffn_hidden_size")) or 4 * dim,
        count,
        whole(values.get("model.num_attention_heads")),
        whole(values.get("model.num_query_groups")),
        gated=word(values.get("model.activation")).endswith("glu"),
        shards=shards,
    )


NEMO = Framework(
    name="NeMo",
    recognises=_is_nemo,
    read=_read_nemo,
    keys={
        "model.transformer_engine": FLAG,
        **{f"model.{name}": FLAG for name in ("fp8", "fp8_e4m3", "fp8_hybrid", "fp8_params")},
        **keys("model", "fp8_margin", "fp8_interval", "fp8_amax_history_len", "fp8_format"),
        "model.fp8_amax_compute_algo": Key(("max", "most_recent")),
        "model.fp8_recipe": _RECIPES,
        "model.fp8_param": FLAG,
        "model.fp8_wgrad": FLAG,
        **keys("model", "fp8_dot_product_attention", "fp8_multi_head_attention"),
    },
    source="NeMo 8cfedd7, examples/nlp/language_modeling/conf, read 2026-11-22",
)


# A recipe's name tells what it trains with: qwen3_30b_a3b_pretrain_8gpu_gb200_fp8mx_config.
_BRIDGE_RECIPE = re.compile(
    r"(?=\w{1,200}$)\w+_(?:pretrain|sft|peft|lora|dora|finetune)_(?:\w+_)?config"
)


def _is_bridge(document: Document) -> bool:
    values = document.values
    if document.kind not in ("yaml", "shell", "arguments"):
        return False
    if document.kind != "yaml" and (
        _BRIDGE_RECIPE.fullmatch(str(values.get("recipe")))
        or values.get(_COMPUTE_DTYPE) in _COMPUTE_DTYPES
    ):
        return True
    mixed = values.get("mixed_precision")
    named = isinstance(mixed, str) and ("_mixed" in mixed or "_with_" in mixed)
    direct = word(values.get("model.fp8")) in ("e4m3", "hybrid")
    return named or direct or any(key.startswith("mixed_precision.") for key in values)


# Parts of the names that training/mixed_precision.py registers, and what they ask for.
_NAMED = {
    "mxfp8": ("mxfp8", "mxfp8"),
    "nvfp4": ("nvfp4", "nvfp4"),
    "fp8_subchannel": ("fp8_block", "blockwise"),
    "fp8_current": ("fp8", "tensorwise"),
    "fp8_delayed": ("fp8", "delayed"),
    "fp8": ("fp8", None),
}
# Parts of the names of perf_recipes/, which are the words of `--compute_dtype` without `_`:
# perf_recipes/_common.py:99 `_perf_precision`; `fp8sc` sets fp8_recipe = "blockwise".
_SHORT = {
    "fp8cs": ("fp8", "tensorwise"),
    "fp8ds": ("fp8", "delayed"),
    "fp8mx": ("mxfp8", "mxfp8"),
    "fp8sc": ("fp8_block", "blockwise"),
}
_COMPUTE_DTYPE = "compute_dtype"
_COMPUTE_DTYPES = ("fp8_cs", "fp8_ds", "fp8_mx", "fp8_sc", "nvfp4")


def _read_bridge(values: Values) -> Training:
    return Training(
        ask=_ask_bridge(values),
        tensor_parallel=whole(values.get("model.tensor_model_parallel_size")) or 1,
    )


def _ask_bridge(values: Values) -> Ask | None:
    if ask := _named_in(values, "mixed_precision"):
        return ask
    if word(values.get("mixed_precision.fp8")) in ("e4m3", "hybrid"):
        recipe = word(values.get("mixed_precision.fp8_recipe")) or "tensorwise"
        return Ask(_FORMATS.get(recipe, "fp8"), recipe, "te", "mixed_precision.fp8")
    if "mixed_precision" in values or "mixed_precision.fp8" in values:
        return None  # which comes after the recipe
    return _named_in(values, "recipe") or _named_in(values, _COMPUTE_DTYPE)


def _named_in(values: Values, key: str) -> Ask | None:
    named = word(values.get(key))
    if key == _COMPUTE_DTYPE:
        named = named.replace("_", "")
    for part, (fmt, recipe) in (_NAMED if key == "mixed_precision" else _SHORT | _NAMED).items():
        if part in named:
            return Ask(fmt, recipe, "te", key)
    return None


BRIDGE = Framework(
    name="Megatron-Bridge",
    recognises=_is_bridge,
    read=_read_bridge,
    keys={
        "mixed_precision.fp8": Key(("e4m3", "hybrid", "none", "")),
        "mixed_precision.fp8_recipe": _RECIPES,
        **keys("mixed_precision", "fp8_margin", "fp8_amax_history_len", "fp8_param"),
        **keys("mixed_precision", "fp8_amax_compute_algo", "fp8_wgrad", "fp8_param_gather"),
        **keys("mixed_precision", "fp8_dot_product_attention", "fp8_multi_head_attention"),
        **keys("mixed_precision", "reuse_grad_buf_for_mxfp8_param_ag"),
        **keys("model", "fp8", "fp8_recipe", "fp8_param"),
        **keys("ddp", "fp8_param_gather"),
    },
    source="Megatron-Bridge 067f987, training/mixed_precision.py, read 2026-11-22",
)


def _is_automodel(document: Document) -> bool:
    values = document.values
    return document.kind == "yaml" and (
        "fp8.enabled" in values
        or "fp8.recipe_name" in values
        or "model.transformer_engine_fp8" in values
        or any(key.endswith("te_fp8.recipe") for key in values)
        or ("model._target_" in values and "step_scheduler" in values)
    )


def _read_automodel(values: Values) -> Training:
    return Training(ask=_ask_automodel(values), compile=truth(values.get("compile.enabled")))


def _ask_automodel(values: Values) -> Ask | None:
    if truth(values.get("fp8.enabled")):
        recipe = word(values.get("fp8.recipe_name")) or "tensorwise"
        return Ask("fp8", recipe, "torchao", "fp8.enabled")
    if truth(values.get("model.transformer_engine_fp8")):
        recipe = word(values.get("model.transformer_engine_fp8_recipe")) or "delayed"
        return Ask("fp8", recipe, "te", "model.transformer_engine_fp8")
    for key, value in values.items():
        if key.endswith("te_fp8.recipe"):
            return Ask(_FORMATS.get(word(value), "fp8"), word(value), "te", key)
    return None


AUTOMODEL = Framework(
    name="NeMo Automodel",
    recognises=_is_automodel,
    read=_read_automodel,
    keys={
        "fp8": ANY,
        "fp8._target_": ANY,
        "fp8.enabled": FLAG,
        "fp8.recipe_name": Key(("tensorwise", "rowwise", "rowwise_with_gw_hp", "none", "")),
        **keys("fp8", "filter_fqns"),
        **{
            f"fp8.{name}": FLAG
            for name in (
                "enable_fsdp_float8_all_gather",
                "precompute_float8_dynamic_scale_for_fsdp",
                "force_recompute_fp8_weight_in_bwd",
                "emulate",
            )
        },
    },
    sections=("fp8",),
    words=("float8",),
    source="NeMo Automodel 36044ad, docs/guides/fp8-training.mdx, read 2026-11-22",
)
