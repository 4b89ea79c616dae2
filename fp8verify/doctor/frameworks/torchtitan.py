"""torchtitan as it was configured by TOML, until March 2026; its Python is read in `scripts`."""

from __future__ import annotations

from typing import Any

from fp8verify.doctor.documents import Document
from fp8verify.doctor.frameworks.framework import ANY, FLAG, Framework, Key, keys
from fp8verify.doctor.recipes import RECIPES
from fp8verify.doctor.training import Ask, Training, Values, truth, whole, word

# Converters, and the names that they and their sections had at one time or another.
SECTIONS = {
    "float8": ("float8", "quantize.linear.float8", "quantize.dense.float8"),
    "mx": ("mx", "quantize.linear.mx", "quantize.dense.mx"),
    "quantize.grouped_mm.float8": ("quantize.grouped_mm.float8", "quantize.moe.float8"),
    "quantize.grouped_mm.mx": ("quantize.grouped_mm.mx", "quantize.moe.mx"),
}

# How FP8 was switched on before there were converters: March to July 2024, and until December.
_SWITCHES = ("training.fp8_linear", "training.enable_fp8_linear", "float8.enable_float8_linear")


def _recognises(document: Document) -> bool:
    values = document.values
    return document.kind == "toml" and (
        "model.flavor" in values
        or "model.converters" in values
        or ("training" in values and ("job" in values or "parallelism" in values))
        or any(section in values for section in ("quantize", "float8"))
    )


def converters(values: Values) -> tuple[str, ...]:
    """Return the converters that are asked for."""
    given: Any = values.get("model.converters")
    if isinstance(given, str):
        given = given.split(",")
    return tuple(word(name) for name in given) if isinstance(given, (list, tuple)) else ()


def reads_section(section: str, values: Values) -> bool:
    """Return whether a converter is asked for that reads the section."""
    if section == "float8" and truth(values.get("float8.enable_float8_linear")):
        return True
    group = next((names for names in SECTIONS.values() if section in names), (section,))
    return any(name in group for name in converters(values))


def _read(values: Values) -> Training:
    return Training(
        ask=_ask(values),
        compile=truth(values.get("compile.enable", values.get("training.compile", False))),
        checkpointing=values.get("activation_checkpoint.mode", "none") != "none",
        tensor_parallel=whole(values.get("parallelism.tensor_parallel_degree")) or 1,
    )


def _ask(values: Values) -> Ask | None:
    names = converters(values)
    for key in _SWITCHES:
        if truth(values.get(key)) or word(values.get(key)) in ("dynamic", "delayed"):
            return Ask("fp8", "tensorwise", "torchao", key)
    for name in names:
        if name in ("mx", "quantize.linear.mx", "quantize.dense.mx", "quantize.grouped_mm.mx"):
            return Ask("mxfp8", "mxfp8", "torchao", "model.converters")
    for name in names:
        if "float8" in name:
            return Ask("fp8", _recipe(values), "torchao", "model.converters")
    return None


def _recipe(values: Values) -> str:
    for section in SECTIONS["float8"]:
        recipe = word(values.get(f"{section}.recipe_name"))
        if recipe:
            return recipe
    return "tensorwise"


def _float8_keys(section: str) -> dict[str, Key]:
    return {
        **keys(section, "filter_fqns", "fqns", "scaling_type_input", "scaling_type_weight"),
        **keys(section, "scaling_type_grad_output", "moe_fqns", "moe_fqns_prototype"),
        **{
            f"{section}.{name}": FLAG
            for name in (
                "enable_fsdp_float8_all_gather",
                "precompute_float8_dynamic_scale_for_fsdp",
                "force_recompute_fp8_weight_in_bwd",
                "enable_float8_linear",
                "emulate",
                "use_fp8_all_gather_only",
            )
        },
        f"{section}.recipe_name": Key(
            (*RECIPES, ""), otherwise="raises: recipe_name is not in valid names"
        ),
    }


def _mx_keys(section: str) -> dict[str, Key]:
    return keys(
        section,
        *("recipe_name", "filter_fqns", "fqns", "moe_fqns", "moe_fqns_prototype"),
        *("mxfp8_dim1_cast_kernel_choice", "use_fp8_dim1_cast_triton_kernel"),
    )


TORCHTITAN = Framework(
    name="torchtitan",
    recognises=_recognises,
    read=_read,
    keys={
        "model.converters": ANY,
        "training.fp8_linear": ANY,
        "training.enable_fp8_linear": FLAG,
        **_float8_keys("float8"),
        **_float8_keys("quantize.linear.float8"),
        **_float8_keys("quantize.dense.float8"),
        **_mx_keys("mx"),
        **_mx_keys("quantize.linear.mx"),
        **keys("quantize.grouped_mm.float8", "fqns"),
        **keys("quantize.grouped_mm.mx", "fqns", "recipe_name"),
        **keys("", "float8", "quantize.linear.float8", "quantize.dense.float8"),
        **keys("", "quantize.grouped_mm.float8", "quantize.moe.float8"),
    },
    sections=("float8", "quantize.linear.float8", "quantize.linear.mx", "mx"),
    source="torchtitan 76d5c72e2^, config/job_config.py and its history, read 2026-11-22",
)
