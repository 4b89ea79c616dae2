"""DeepSpeed's JSON, YAML of Lightning, LitGPT and torchtune, prime-rl's TOML, nanochat's flags."""

from __future__ import annotations

import re

from fp8verify.doctor.documents import Document
from fp8verify.doctor.frameworks.framework import ANY, FLAG, Framework, Key
from fp8verify.doctor.recipes import RECIPES
from fp8verify.doctor.training import Ask, Training, Values, truth, whole, word


def _is_deepspeed(document: Document) -> bool:
    values = document.values
    return document.kind == "json" and any(
        key in values
        for key in ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")
    )


def _read_deepspeed(values: Values) -> Training:
    asks = truth(values.get("fp8.enabled")) or truth(values.get("msamp.enabled"))
    return Training(
        ask=Ask("fp8", None, "msamp" if truth(values.get("msamp.enabled")) else None, "fp8")
        if asks
        else None,
        deepspeed=True,
    )


# DeepSpeed has no section for FP8: accelerate and Transformer Engine bring it. `msamp` is
# MS-AMP's own, which accelerate's plugin reads.
DEEPSPEED = Framework(
    name="DeepSpeed",
    recognises=_is_deepspeed,
    read=_read_deepspeed,
    keys={"msamp": ANY, "msamp.enabled": ANY, "msamp.opt_level": Key(("O1", "O2", "O3"))},
    sections=("fp8",),
    source="DeepSpeed 38327e0, runtime/config.py; accelerate utils/dataclasses.py (enable_msamp)",
)
PRECISIONS = (
    *("transformer-engine", "transformer-engine-float16", "16-true", "16-mixed", "bf16-true"),
    *("bf16-mixed", "32-true", "64-true", "64", "32", "16", "bf16"),
)


def _is_lightning(document: Document) -> bool:
    values = document.values
    if document.kind == "arguments":
        return "trainer.precision" in values
    return document.kind == "yaml" and (
        "trainer.precision" in values
        or ("trainer" in values and ("fit" in values or "data.class_path" in values))
        or "fit.trainer.precision" in values
    )


def precision_key(values: Values) -> str:
    """Return the key that holds the Trainer's precision."""
    return "fit.trainer.precision" if "fit.trainer.precision" in values else "trainer.precision"


def _read_lightning(values: Values) -> Training:
    return _read_fabric(values, precision_key(values))


def _read_fabric(values: Values, key: str) -> Training:
    asks = word(values.get(key)).startswith("transformer-engine")
    return Training(ask=Ask("fp8", "delayed", "te", key) if asks else None)


LIGHTNING = Framework(
    name="Lightning",
    recognises=_is_lightning,
    read=_read_lightning,
    keys={
        "trainer.precision": Key(PRECISIONS, otherwise="raises ValueError: precision"),
        "fit.trainer.precision": Key(PRECISIONS, otherwise="raises ValueError: precision"),
    },
    source="Lightning 7f0c343, fabric/connector.py:477, read 2026-11-22",
)


def _is_litgpt(document: Document) -> bool:
    values = document.values
    return (
        document.kind == "yaml"
        and "precision" in values
        and ("checkpoint_dir" in values or "model_name" in values)
        and ("devices" in values or "train" in values)
    )


_LITGPT_PRECISIONS = ("bf16-true", "bf16-mixed", "16-true", "16-mixed", "32-true", "")
LITGPT = Framework(
    name="LitGPT",
    recognises=_is_litgpt,
    read=lambda values: _read_fabric(values, "precision"),
    keys={"precision": Key((*PRECISIONS, *_LITGPT_PRECISIONS), otherwise="raises ValueError")},
    source="LitGPT 2685705, pretrain.py:52 and finetune/full.py:118 (Fabric's precision)",
)
_PRIME_RL_KEYS = ("trainer.model.quantization.type", "model.quantization.type")


def _is_prime_rl(document: Document) -> bool:
    values = document.values
    return document.kind == "toml" and (
        "trainer.model" in values or any(key in values for key in _PRIME_RL_KEYS)
    )


def _read_prime_rl(values: Values) -> Training:
    key = next((key for key in _PRIME_RL_KEYS if key in values), _PRIME_RL_KEYS[0])
    kind = word(values.get(key))
    # Its FP8 scales blocks of 128 (prime_rl/trainer/models/layers/fp8_linear.py).
    fmt = {"fp8": "fp8_block", "mxfp8": "mxfp8"}.get(kind)
    return Training(ask=Ask(fmt, kind, None, key) if fmt else None)


PRIME_RL = Framework(
    name="prime-rl",
    recognises=_is_prime_rl,
    read=_read_prime_rl,
    keys={key: Key(("fp8", "mxfp8")) for key in _PRIME_RL_KEYS},
    source="prime-rl 559b447, prime_rl/configs/trainer.py:142-175, read 2026-11-22",
)


def _is_torchtune(document: Document) -> bool:
    values = document.values
    parts = (values.get("model._component_"), values.get("checkpointer._component_"))
    return document.kind == "yaml" and (
        "enable_fp8_training" in values or any(word(p).startswith("torchtune.") for p in parts)
    )


def _read_torchtune(values: Values) -> Training:
    recipe = word(values.get("fp8_recipe_name")) or "tensorwise"
    asks = truth(values.get("enable_fp8_training"))
    return Training(
        ask=Ask("fp8", recipe, "torchao", "enable_fp8_training") if asks else None,
        compile=truth(values.get("compile", values.get("compile.model", False))),
        checkpointing=truth(values.get("enable_activation_checkpointing")),
        tensor_parallel=whole(values.get("tensor_parallel_dim")) or 1,
    )


TORCHTUNE = Framework(
    name="torchtune",
    recognises=_is_torchtune,
    read=_read_torchtune,
    keys={
        "enable_fp8_training": FLAG,
        "fp8_recipe_name": Key((*RECIPES, ""), otherwise="raises: not in valid names"),
    },
    source="torchtune bd2a0fc, recipes/full_finetune_distributed.py, read 2026-11-22",
)

_NANOCHAT_SCRIPT = re.compile(r"\bscripts[./]base_train\b")
_NANOCHAT_OPTIONS = {
    *("depth", "aspect-ratio", "device-batch-size", "target-param-data-ratio", "target-flops"),
    *("core-metric-every", "embedding-lr", "unembedding-lr", "matrix-lr", "window-pattern"),
}


def _is_nanochat(document: Document) -> bool:
    if document.kind not in ("shell", "arguments"):
        return False
    names = _NANOCHAT_OPTIONS & set(document.values)
    return len(names) >= 3 or (bool(names) and bool(_NANOCHAT_SCRIPT.search(document.text)))


def _read_nanochat(values: Values) -> Training:
    recipe = word(values.get("fp8-recipe")) or "tensorwise"
    asks = truth(values.get("fp8"))
    return Training(ask=Ask("fp8", recipe, None, "fp8") if asks else None, compile=True)


NANOCHAT = Framework(
    name="nanochat",
    recognises=_is_nanochat,
    read=_read_nanochat,
    keys={"fp8": FLAG, "fp8-recipe": Key(("tensorwise", "rowwise"))},
    source="nanochat 92d63d4, scripts/base_train.py:47 and 168, read 2026-11-22",
)
