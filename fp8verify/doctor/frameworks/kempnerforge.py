"""KempnerForge: one TOML file, overlaid by `--section.key=value`."""

from __future__ import annotations

import math

from fp8verify.doctor.documents import Document
from fp8verify.doctor.frameworks.framework import FLAG, Framework, Key, keys
from fp8verify.doctor.roles import Role
from fp8verify.doctor.training import (
    Ask,
    LayerSize,
    Training,
    Values,
    llama_layers,
    product,
    truth,
    whole,
)

_RAISES = "raises ValueError while the file is loaded"


def _recognises(document: Document) -> bool:
    values = document.values
    return document.kind == "toml" and (
        "train.mixed_precision" in values
        or ("model.dim" in values and "train" in values)
        or ("train" in values and "distributed" in values)
    )


def _read(values: Values) -> Training:
    ask = Ask("fp8", "tensorwise", "torchao", "train.mixed_precision")
    compiled = truth(values.get("train.compile_model", True))
    saves = values.get("train.activation_checkpointing", "none")
    return Training(
        ask=ask if values.get("train.mixed_precision") == "fp8" else None,
        compile=compiled,
        checkpointing=saves != "none",
        tensor_parallel=whole(values.get("distributed.tp")) or 1,
        layers=_layers(values),
        tokens=product(values.get("train.batch_size", 8), values.get("train.seq_len", 2048)),
    )


def _layers(values: Values) -> tuple[LayerSize, ...]:
    """Return the layers as kempnerforge/config/model.py computes them; experts stay in BF16."""
    dim = whole(values.get("model.dim"))
    if dim is None:
        return ()
    count = whole(values.get("model.n_layers")) or 32
    heads = whole(values.get("model.n_heads")) or 32
    layers = llama_layers(
        dim,
        _hidden(values, dim),
        count,
        heads,
        whole(values.get("model.n_kv_heads")) or heads,
    )
    if whole(values.get("model.num_experts")):
        return layers[:3]
    vocabulary = whole(values.get("model.vocab_size"))
    head = LayerSize("output head", vocabulary or 0, dim, role=Role.HEAD)
    return (*layers, head) if vocabulary else layers


def _hidden(values: Values, dim: int) -> int:
    given = whole(values.get("model.ffn_hidden_dim"))
    if given is not None:
        return given
    factor = values.get("model.ffn_dim_multiplier", 1.0)
    factor = factor if isinstance(factor, (int, float)) and 0 < factor < 1000 else 1.0
    return 256 * math.ceil(int(4 * dim * (2 / 3) * factor) / 256)


KEMPNERFORGE = Framework(
    name="KempnerForge",
    recognises=_recognises,
    read=_read,
    keys={
        **keys(
            "train",
            *("batch_size", "seq_len", "max_steps", "grad_accum_steps", "grad_clip_norm", "seed"),
            *("data_seed", "loss_fn", "z_loss_weight", "ce_chunk_size", "shutdown_timeout_sec"),
            "nccl_health_check_interval",
        ),
        "train.compile_model": FLAG,
        "train.mixed_precision": Key(("bf16", "fp16", "fp32", "fp8"), otherwise=_RAISES),
        "train.activation_checkpointing": Key(("none", "full", "selective"), otherwise=_RAISES),
        **keys("profiling", "start_step", "end_step", "trace_dir"),
        "profiling.enable": FLAG,
        **keys(
            "distributed",
            *("dp_shard", "dp_replicate", "tp", "pp", "pp_schedule", "cp", "ep"),
            *("nccl_timeout_sec", "backend"),
        ),
        **keys(
            "model",
            *("dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "ffn_dim_multiplier"),
            *("ffn_hidden_dim", "norm_type", "norm_eps", "activation", "max_seq_len"),
            *("rope_theta", "tie_embeddings", "qk_norm", "init_std", "model_type"),
            *("sdpa_backend", "num_experts", "moe_top_k", "moe_frequency", "moe_router"),
            *("moe_shared_experts", "moe_aux_loss_weight", "moe_capacity_factor"),
            *("moe_sequence_aux_loss_weight", "moe_gradient_scale", "moe_bias_schedule"),
            *("moe_packed_experts", "moe_expert_ffn_multiplier", "moe_router_z_loss_weight"),
        ),
    },
    sections=("train", "profiling", "distributed", "model"),
    source="KempnerForge 5666d0d, kempnerforge/config/*.py, read 2026-11-22",
)
