"""Megatron-LM: arguments of a command, of a launch script, or of its YAML (MODEL_ARGS).

ms-swift's `megatron sft` takes the same arguments, written with `_`.
"""

from __future__ import annotations

import re
from typing import Any

from fp8verify.doctor.documents import Document
from fp8verify.doctor.frameworks.framework import ANY, FLAG, Framework, Key
from fp8verify.doctor.training import (
    Ask,
    Config,
    LayerSize,
    Training,
    Values,
    llama_layers,
    product,
    truth,
    whole,
)

_MARKS = {
    *("num-layers", "hidden-size", "num-attention-heads", "tensor-model-parallel-size"),
    *("micro-batch-size", "global-batch-size", "pipeline-model-parallel-size"),
    *("fp8-format", "fp4-format", "transformer-impl", "train-iters"),
}
_FORMATS = {"mxfp8": "mxfp8", "blockwise": "fp8_block"}
_NESTED = "MODEL_ARGS.--"


def plain(values: Values) -> dict[str, Any]:
    """Return the arguments by name without dashes, whichever form they were in."""
    return {
        key.removeprefix(_NESTED).replace("_", "-"): value
        for key, value in values.items()
        if not key.startswith("ENV_VARS")
    }


def given_to(config: Config) -> dict[str, Any]:
    """Return the arguments of a configuration, and those that its framework gives by itself."""
    given = plain(config.values)
    return {**_SWIFT_DEFAULTS, **given} if config.framework == MS_SWIFT.name else given


def key_in(values: Values, name: str) -> str:
    """Return an argument's name as these values have it."""
    names = (name, _NESTED + name, name.replace("-", "_"))
    return next((known for known in names if known in values), name)


# How its own scripts are called; others may have an argument of the name, too.
_SCRIPT = re.compile(r"\bpretrain_\w+\.py\b")


def _recognises(document: Document) -> bool:
    if document.kind not in ("shell", "arguments", "yaml"):
        return False
    marks = _MARKS & {key.removeprefix(_NESTED) for key in document.values}
    asks = marks & {"fp8-format", "fp4-format"}
    return len(marks) >= 3 or bool(asks and _SCRIPT.search(document.text))


def _read(values: Values) -> Training:
    given = plain(values)
    return Training(
        ask=_ask(given),
        checkpointing="recompute-granularity" in given or "recompute-activations" in given,
        tensor_parallel=whole(given.get("tensor-model-parallel-size")) or 1,
        layers=_layers(given),
        tokens=product(given.get("micro-batch-size"), given.get("seq-length")),
    )


def _ask(given: Values) -> Ask | None:
    if truth(given.get("fp4-format")) is None and "fp4-format" in given:
        return Ask("nvfp4", "nvfp4", "te", "fp4-format")
    if given.get("fp8-format") in ("e4m3", "hybrid"):
        recipe = str(given.get("fp8-recipe", "delayed"))
        return Ask(_FORMATS.get(recipe, "fp8"), recipe, "te", "fp8-format")
    return None


def _layers(given: Values) -> tuple[LayerSize, ...]:
    dim, count = whole(given.get("hidden-size")), whole(given.get("num-layers"))
    if dim is None or count is None:
        return ()
    return llama_layers(
        dim,
        whole(given.get("ffn-hidden-size")) or 4 * dim,
        count,
        whole(given.get("num-attention-heads")),
        whole(given.get("num-query-groups")) if "group-query-attention" in given else None,
        gated=bool(truth(given.get("swiglu", False))),
        shards=whole(given.get("tensor-model-parallel-size")) or 1,
    )


_CHOICE = "ends with argparse's `invalid choice`"
_PLAIN_KEYS = {
    "fp8-format": Key(("e4m3", "hybrid"), otherwise=_CHOICE),
    "fp8-recipe": Key(("tensorwise", "delayed", "mxfp8", "blockwise", "custom"), otherwise=_CHOICE),
    "fp8-quantizer-factory": ANY,
    "fp8-margin": ANY,
    "fp8-interval": ANY,
    "fp8-amax-history-len": ANY,
    "fp8-amax-compute-algo": Key(("most_recent", "max"), otherwise=_CHOICE),
    "fp8-wgrad": FLAG,
    "no-fp8-wgrad": FLAG,
    "fp8-param-gather": FLAG,
    "fp8-param": FLAG,
    "fp8-output-proj": FLAG,
    "fp8-dot-product-attention": FLAG,
    "fp8-multi-head-attention": FLAG,
    "keep-fp8-transpose-cache": FLAG,
    "keep-fp8-transpose-cache-when-using-custom-fsdp": FLAG,
    "keep-fp8-weight-transpose-cache": FLAG,
    "activation-func-fp8-input-store": FLAG,
    "moe-router-padding-for-fp8": FLAG,
    "moe-router-padding-for-quantization": FLAG,
    "reuse-grad-buf-for-mxfp8-param-ag": FLAG,
    "fp4-format": Key(("e2m1",), otherwise=_CHOICE),
    "fp4-recipe": Key(("nvfp4", "custom"), otherwise=_CHOICE),
    "fp4-param-gather": FLAG,
    "fp4-param": FLAG,
    "fp4-quantizer-factory": ANY,
    "transformer-impl": Key(("local", "transformer_engine", "inference_optimized")),
}
MEGATRON = Framework(
    name="Megatron-LM",
    recognises=_recognises,
    read=_read,
    keys={**_PLAIN_KEYS, **{_NESTED + name: key for name, key in _PLAIN_KEYS.items()}},
    words=("fp8-", "fp4-"),
    source="Megatron-LM d98e8a6, transformer_config.py and training/arguments.py, read 2026-11-22",
)
_SWIFT_MARKS = {
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"),
    *("micro_batch_size", "global_batch_size", "recompute_granularity", "sequence_parallel"),
    *("moe_grouped_gemm", "cross_entropy_loss_fusion", "fp8_recipe"),
}
# Its models are BF16 and its optimizer is distributed, unless it is told otherwise.
_SWIFT_DEFAULTS = {"bf16": True, "use-distributed-optimizer": True}


def _is_swift(document: Document) -> bool:
    names = set(document.values)
    trains = names & {"dataset", "cached_dataset", "output_dir"}
    return (
        document.kind in ("shell", "arguments") and len(_SWIFT_MARKS & names) >= 3 and bool(trains)
    )


MS_SWIFT = Framework(
    name="ms-swift",
    recognises=_is_swift,
    read=_read,
    keys={
        **{name.replace("-", "_"): key for name, key in _PLAIN_KEYS.items()},
        "fp8_recipe": Key(("tensorwise", "delayed", "mxfp8", "blockwise"), otherwise=_CHOICE),
    },
    words=("fp8_", "fp4_"),
    source="ms-swift 3602360, swift/megatron/arguments/megatron_args.py:636, read 2026-11-22",
)
