"""Front ends of Hugging Face's Trainer: axolotl, LLaMA-Factory, TRL and plain arguments."""

from __future__ import annotations

from fp8verify.doctor.documents import Document
from fp8verify.doctor.frameworks.framework import FLAG, Framework, Key
from fp8verify.doctor.training import Ask, Training, Values, llama_layers, truth, whole, word


def _is_axolotl(document: Document) -> bool:
    values = document.values
    return document.kind == "yaml" and (
        isinstance(values.get("base_model"), str)
        or ("sequence_len" in values and "micro_batch_size" in values)
    )


def _read_axolotl(values: Values) -> Training:
    asks = truth(values.get("fp8"))
    return Training(
        ask=Ask("fp8", "tensorwise", "torchao", "fp8") if asks else None,
        compile=values.get("torch_compile") == "auto" or bool(truth(values.get("torch_compile"))),
        checkpointing=bool(truth(values.get("gradient_checkpointing")))
        or bool(truth(values.get("fsdp_config.activation_checkpointing")))
        or bool(truth(values.get("fsdp_config.fsdp_activation_checkpointing"))),
        deepspeed=bool(values.get("deepspeed")),
    )


AXOLOTL = Framework(
    name="axolotl",
    recognises=_is_axolotl,
    read=_read_axolotl,
    keys={"fp8": FLAG, "fp8_enable_fsdp_float8_all_gather": FLAG},
    source="axolotl 067b021, utils/schemas/config.py:568-575, read 2026-11-22",
)


# `fp8` is a sign as well: of what reads a model_name_or_path, no other has the key.
_LLAMA_FACTORY_SIGNS = ("stage", "finetuning_type", "template", "cutoff_len", "fp8")


def _is_llama_factory(document: Document) -> bool:
    values = document.values
    return (
        document.kind in ("yaml", "json")
        and "model_name_or_path" in values
        and sum(key in values for key in _LLAMA_FACTORY_SIGNS) >= 2
    )


def _read_llama_factory(values: Values) -> Training:
    named = word(values.get("fp8_backend"))
    backend = {"torchao": "torchao", "te": "te", "msamp": "msamp"}.get(named)
    return Training(
        ask=Ask("fp8", "tensorwise" if backend == "torchao" else None, backend, "fp8")
        if truth(values.get("fp8"))
        else None,
        compile=truth(values.get("torch_compile")),
        deepspeed=bool(values.get("deepspeed")),
    )


LLAMA_FACTORY = Framework(
    name="LLaMA-Factory",
    recognises=_is_llama_factory,
    read=_read_llama_factory,
    keys={
        "fp8": FLAG,
        "fp8_backend": Key(
            ("auto", "torchao", "te", "msamp"),
            otherwise="is taken for `auto`: torchao is used",
            refuses=False,
        ),
        "fp8_enable_fsdp_float8_all_gather": FLAG,
    },
    source="LLaMA-Factory ff6d4d1, hparams/training_args.py:118-140, read 2026-11-22",
)


def _is_trainer(document: Document) -> bool:
    values = document.values
    return document.kind in ("yaml", "json") and (
        "per_device_train_batch_size" in values
        or ("model_name_or_path" in values and "output_dir" in values)
    )


def _read_trainer(values: Values) -> Training:
    asks = word(values.get("mixed_precision")) == "fp8"
    return Training(
        ask=Ask("fp8", None, None, "mixed_precision") if asks else None,
        compile=truth(values.get("torch_compile")),
        checkpointing=truth(values.get("gradient_checkpointing")),
        deepspeed=bool(values.get("deepspeed")),
    )


TRAINER = Framework(
    name="TRL or transformers' Trainer",
    recognises=_is_trainer,
    read=_read_trainer,
    source="transformers 5.23 TrainingArguments, read 2026-11-22: it has no FP8 argument",
)


def _is_model(document: Document) -> bool:
    return document.kind == "json" and "model_type" in document.values


def _read_model(values: Values) -> Training:
    dim = whole(values.get("hidden_size"))
    hidden, layers = whole(values.get("intermediate_size")), whole(values.get("num_hidden_layers"))
    if dim is None or hidden is None or layers is None:
        return Training()
    heads = whole(values.get("num_attention_heads"))
    kv_heads = whole(values.get("num_key_value_heads"))
    return Training(layers=llama_layers(dim, hidden, layers, heads, kv_heads))


MODEL = Framework(
    name="a Hugging Face model",
    recognises=_is_model,
    read=_read_model,
    words=(),
    source="transformers 5.23 LlamaConfig",
)
