"""Hugging Face accelerate: the YAML or JSON of `accelerate config`, and `accelerate launch`."""

from __future__ import annotations

from typing import Any

from fp8verify.doctor.documents import Document
from fp8verify.doctor.frameworks.framework import ANY, FLAG, Framework, Key, Unread, keys
from fp8verify.doctor.training import Ask, Training, Values, truth, word

_BACKENDS = {"ao": "torchao", "te": "te", "msamp": "msamp"}
_MARKS = ("distributed_type", "compute_environment", "fp8_config", "fsdp_config", "dynamo_config")
_READS = "utils/dataclasses.py:424ff reads ACCELERATE_FP8_{} (accelerate 16cb6eb)"


def _recognises(document: Document) -> bool:
    values = document.values
    if document.kind in ("arguments", "shell"):
        return any(key.startswith("fp8_") for key in values) or (
            word(values.get("mixed_precision")).startswith("fp")
        )
    if document.kind not in ("yaml", "json") or "base_model" in values:
        return False
    return "distributed_type" in values or (
        ("mixed_precision" in values or "num_processes" in values)
        and any(mark in values for mark in _MARKS)
    )


def fp8_values(values: Values) -> dict[str, Any]:
    """Return the FP8 keys without the prefix that files and arguments give them."""
    found = {}
    for key, value in values.items():
        if key.startswith("fp8_config."):
            found[key.removeprefix("fp8_config.").removeprefix("fp8_")] = value
        elif key.startswith("fp8_") and key != "fp8_config":
            found[key.removeprefix("fp8_")] = value
    return found


def _read(values: Values) -> Training:
    fp8 = fp8_values(values)
    asks = word(values.get("mixed_precision")) == "fp8"
    backend = _BACKENDS.get(word(fp8.get("backend")))
    mx = bool(truth(fp8.get("use_mxfp8_block_scaling")))
    recipe = {"te": "mxfp8" if mx else "delayed", "torchao": "tensorwise"}.get(backend or "")
    dynamo = values.get("dynamo_config.dynamo_backend", values.get("dynamo_backend"))
    return Training(
        ask=Ask("mxfp8" if mx else "fp8", recipe, backend, "mixed_precision") if asks else None,
        compile=None if dynamo is None else word(dynamo) not in ("no", ""),
        checkpointing=truth(values.get("fsdp_config.fsdp_activation_checkpointing")),
        deepspeed=word(values.get("distributed_type")) == "deepspeed",
    )


# `accelerate launch` has choices of its own, which do not ignore case (commands/launch.py:785-853).
_ARGUMENTS = {
    "fp8_backend": Key(("ao", "te", "msamp"), otherwise="ends with argparse's `invalid choice`"),
    "fp8_format": Key(
        ("HYBRID", "E4M3", "E5M2"), otherwise="ends with argparse's `invalid choice`"
    ),
    "fp8_amax_compute_algo": Key(("max", "most_recent")),
    "fp8_opt_level": Key(("O1", "O2")),
    **dict.fromkeys(("fp8_use_autocast_during_eval", "fp8_pad_inner_dim"), FLAG),
    "fp8_enable_fsdp_float8_all_gather": FLAG,
    **keys("", "fp8_margin", "fp8_interval", "fp8_amax_history_len"),
    "fp8_override_linear_precision": ANY,
}
ACCELERATE = Framework(
    name="accelerate",
    recognises=_recognises,
    read=_read,
    keys={
        "mixed_precision": Key(("no", "fp16", "bf16", "fp8"), any_case=True),
        "fp8_config": ANY,
        "fp8_config.backend": Key(("AO", "TE", "MSAMP"), any_case=True),
        "fp8_config.use_autocast_during_eval": FLAG,
        "fp8_config.margin": ANY,
        "fp8_config.interval": ANY,
        "fp8_config.fp8_format": Key(("HYBRID", "E4M3", "E5M2"), any_case=True),
        "fp8_config.format": Key(("HYBRID", "E4M3", "E5M2"), any_case=True),
        "fp8_config.amax_history_len": ANY,
        "fp8_config.amax_compute_algo": Key(("max", "most_recent"), any_case=True),
        "fp8_config.override_linear_precision": ANY,
        "fp8_config.opt_level": Key(("O1", "O2")),
        "fp8_config.use_mxfp8_block_scaling": FLAG,
        "fp8_config.enable_fsdp_float8_all_gather": FLAG,
        "fp8_config.pad_inner_dim": FLAG,
        **_ARGUMENTS,
    },
    sections=("fp8_config",),
    unread={
        "fp8_config.amax_history_length": Unread(
            "amax_history_len", "the default of 1024 is used", _READS.format("AMAX_HISTORY_LEN")
        ),
        "fp8_config.amax_compute_algorithm": Unread(
            "amax_compute_algo", "most_recent is used", _READS.format("AMAX_COMPUTE_ALGO")
        ),
        "fp8_config.optimization_level": Unread(
            "opt_level", "O2 is used", _READS.format("OPT_LEVEL")
        ),
    },
    source="accelerate 16cb6eb, utils/dataclasses.py and commands/launch.py, read 2026-11-22",
)
