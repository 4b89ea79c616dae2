"""Rules on Python sources: what they call, and with which arguments."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.recipes import RECIPES
from fp8verify.doctor.rules.sections import fp8_from_outside
from fp8verify.doctor.scripts import Call, Script, Variable, recipe_of

_FIELDS = {  # torchtitan b5bcd76, components/quantization/*.py
    "Float8LinearConverter": ("recipe_name", "filter_fqns", "emulate", "model_compile_enabled"),
    "Float8GroupedExpertsConverter": ("model_compile_enabled",),
    "MXFP8LinearConverter": ("fqns", "model_compile_enabled"),
    "MXFP8GroupedExpertsConverter": ("recipe_name", "pad_multiple", "model_compile_enabled"),
    "NVFP4LinearConverter": ("fqns", "model_compile_enabled"),
}
_RECIPES = {
    "Float8LinearConverter": ("rowwise", "rowwise_with_gw_hp"),
    "MXFP8GroupedExpertsConverter": (
        *("mxfp8_rceil", "mxfp8_rceil_wgrad_with_hp", "mxfp8_emulated_rceil"),
    ),
}
_SOURCE = "torchtitan components/quantization (b5bcd76)"
_HEADS = {"output", "lm_head", "head"}
_EVERY_LAYER = {"", ".", "layers", "model"}  # found in the names of all layers


def autocast_to_float8(facts: Facts) -> Iterator[Check]:
    """torch.autocast takes 16-bit types only: it raises or turns itself off with a warning."""
    for script in facts.scripts:
        for call in script.named("autocast"):
            dtype = call.arguments.get("dtype", call.arguments.get("1"))
            if isinstance(dtype, str) and dtype.startswith("float8"):
                yield _check(
                    script,
                    call,
                    code="autocast-is-not-fp8",
                    status=Status.FAIL,
                    message=f"torch.autocast(dtype=torch.{dtype}) is not FP8 training: it raises "
                    "or turns itself off with a warning",
                    hint="Convert the layers (torchao's convert_to_float8_training), or use "
                    "Transformer Engine's modules inside te.autocast.",
                    source="torch/amp/autocast_mode.py: only 16-bit types are supported",
                )


def converter_arguments(facts: Facts) -> Iterator[Check]:
    """Arguments of torchtitan's converters: fields that are none, and recipes that are none."""
    for script in facts.scripts:
        for call in script.named(*_FIELDS):
            for name in call.arguments:
                if not name.isdecimal() and name not in _FIELDS[call.name]:
                    yield _unknown_field(script, call, name)
            recipe = recipe_of(call)
            known = _RECIPES.get(call.name, ())
            if known and recipe is not None and recipe not in known:
                yield _unknown_recipe(script, call, recipe, known)


def _unknown_field(script: Script, call: Call, name: str) -> Check:
    close = get_close_matches(name, _FIELDS[call.name], n=1)
    misplaced = name in ("recipe_name", "fqns", "filter_fqns")
    return _check(
        script,
        call,
        code="config-key-unknown",
        status=Status.WARN if close or misplaced else Status.SKIPPED,
        message=f"{call.name}.Config has no field {name}"
        + (" (TypeError)" if close or misplaced else " that this version of the doctor knows"),
        hint=f"Its fields: {', '.join(_FIELDS[call.name])}.",
        source=f"{_SOURCE}; mxfp8.md shows a recipe_name that the code does not have",
    )


def _unknown_recipe(script: Script, call: Call, recipe: str, known: tuple[str, ...]) -> Check:
    gone = " (tensorwise is gone)" if recipe == "tensorwise" else ""
    return _check(
        script,
        call,
        code="config-value-unknown",
        status=Status.WARN,
        message=f"recipe_name={recipe!r} is none of {', '.join(known)}{gone}",
        hint=f"Did you mean {(get_close_matches(recipe, known, n=1) or known)[0]!r}?",
        source=_SOURCE,
    )


def torchao_recipe(facts: Facts) -> Iterator[Check]:
    """A recipe name that torchao does not have."""
    for script in facts.scripts:
        for call in script.named("Float8LinearConfig.from_recipe_name"):
            recipe = recipe_of(call)
            if recipe is not None and recipe not in RECIPES:
                near = get_close_matches(recipe.lower(), RECIPES, n=1)
                yield _check(
                    script,
                    call,
                    code="config-value-unknown",
                    status=Status.FAIL,
                    message=f"torchao: “recipe_name {recipe} not in valid names”",
                    hint=f"Use {near[0] if near else ' or '.join(RECIPES)}.",
                    source="torchao float8/config.py, from_recipe_name",
                )


def filters(facts: Facts) -> Iterator[Check]:
    """`filter_fqns` excludes and `fqns` includes: a head or all layers in the wrong one."""
    for script in facts.scripts:
        for call in script.named(*_FIELDS):
            yield from _only_the_head(script, call)
            yield from _every_layer(script, call)
            yield from _automatic_filter(script, call)


def _only_the_head(script: Script, call: Call) -> Iterator[Check]:
    names = _strings(call.arguments.get("fqns"))
    if names and all(_last(name) in _HEADS for name in names):
        yield _filter(
            script,
            call,
            f"fqns={list(names)} of {call.name} includes: only the head would be converted",
            "List the layers to convert, such as fqns=['layers'].",
        )


def _every_layer(script: Script, call: Call) -> Iterator[Check]:
    names = _strings(call.arguments.get("filter_fqns"))
    if _EVERY_LAYER.intersection(names):
        yield _filter(
            script,
            call,
            f"filter_fqns={list(names)} of {call.name} excludes: every layer would stay in BF16, "
            "and “Swapped to Float8Linear layers” is logged all the same",
            "List what is to stay in BF16, such as filter_fqns=['lm_head'].",
        )


def _automatic_filter(script: Script, call: Call) -> Iterator[Check]:
    names = _strings(call.arguments.get("filter_fqns"))
    recipe = call.arguments.get("recipe_name")
    if "auto_filter_small_kn" in names and recipe == "rowwise_with_gw_hp":
        yield _filter(
            script,
            call,
            "auto_filter_small_kn with rowwise_with_gw_hp raises NotImplementedError",
            "Name the layers to leave out instead.",
        )


_WHOLE_MODEL = "filter_first_and_last_linear_layers"


def accelerate_filter(facts: Facts) -> Iterator[Check]:
    """A filter of accelerate that looks for the first and last layer of each layer by itself."""
    for script in facts.scripts:
        for call in script.calls:
            for name in ("module_filter_func", "module_filter_fn"):
                if _named(call.arguments.get(name)) == _WHOLE_MODEL:
                    yield _check(
                        script,
                        call,
                        code="filter-includes-not-excludes",
                        status=Status.WARN,
                        message=f"{name}={_WHOLE_MODEL} keeps no layer out: torchao asks it about "
                        "one layer at a time, so the first and the last are converted too",
                        hint="Leave it out of AORecipeKwargs, whose default keeps both in BF16.",
                        source="accelerate 16cb6eb, utils/ao.py:34-101",
                    )


def _named(value: Any) -> str:
    return value.name if isinstance(value, Variable) else str(value)


def filter_of_a_file(facts: Facts) -> Iterator[Check]:
    """The same trap in TOML or YAML: a filter that excludes every layer."""
    for config in facts.configs:
        for key, names in config.values.items():
            if not key.endswith("filter_fqns") or not config.training.ask:
                continue
            if _EVERY_LAYER.intersection(_strings(names)):
                yield Check(
                    code="filter-includes-not-excludes",
                    status=Status.WARN,
                    message=f"{key} = {names!r} excludes: every layer would stay in BF16",
                    hint='List what is to stay in BF16, such as ["output"].',
                    source="torchtitan components/quantization/utils.py, module_filter_fn",
                    file=config.path,
                    line=config.lines.get(key),
                )


def _filter(script: Script, call: Call, message: str, hint: str) -> Check:
    return _check(
        script,
        call,
        code="filter-includes-not-excludes",
        status=Status.WARN,
        message=message,
        hint=hint,
        source=f"{_SOURCE}; torchtitan#4008",
    )


def _strings(value: Any) -> tuple[str, ...]:
    """Return a list of names as far as it is one that can be read from the source."""
    if not isinstance(value, (list, tuple)):
        return ()
    return tuple(value) if all(isinstance(item, str) for item in value) else ()


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def eager_script(facts: Facts) -> Iterator[Check]:
    """A script that converts by torchao and compiles nothing."""
    for script in facts.scripts:
        converts = script.named("convert_to_float8_training")
        if converts and "compile" not in script.text:
            yield _check(
                script,
                converts[0],
                code="compile-off",
                status=Status.WARN,
                message="the script converts to FP8 and compiles nothing: each cast runs as "
                "several kernels",
                hint="Compile the model: eager FP8 took 2.6 times as long as compiled FP8.",
                source="measured on H200 with torch 2.11, examples/train_gpt.py; ao#685, #1199",
            )


# Of transformers, and what TRL makes of it.
_TRAINER_ARGUMENTS = (
    *("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig", "DPOConfig", "GRPOConfig"),
    *("RewardConfig", "KTOConfig", "ORPOConfig", "CPOConfig", "RLOOConfig"),
)


def bf16_of_the_trainer(facts: Facts) -> Iterator[Check]:
    """A bf16 in a script's arguments of the Trainer that wins over accelerate's FP8."""
    elsewhere = fp8_from_outside(facts)
    for script in facts.scripts if elsewhere else ():
        for call in script.named(*_TRAINER_ARGUMENTS):
            if call.arguments.get("bf16") is True:
                yield _check(
                    script,
                    call,
                    code="bf16-overrides-fp8",
                    status=Status.WARN,
                    message=f"{call.name}(bf16=True) takes the place of fp8 as the Trainer's mixed "
                    "precision",
                    hint="Set bf16=False, and see with `fp8verify run` what ran.",
                    source=f"trl#3860; FP8 is asked for by {elsewhere}",
                )


def _check(script: Script, call: Call, **fields: Any) -> Check:
    return Check(file=script.path, line=call.line, **fields)
