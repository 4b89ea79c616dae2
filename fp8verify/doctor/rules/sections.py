"""Rules on sections and windows that do nothing, and on what overrides a wish for FP8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.frameworks.torchtitan import SECTIONS, converters, reads_section
from fp8verify.doctor.launch_script import arguments
from fp8verify.doctor.rules.keys import place
from fp8verify.doctor.training import Config, truth, whole, word


def inert_sections(facts: Facts) -> Iterator[Check]:
    """Sections of torchtitan on FP8 that ask for something and that nothing reads."""
    for config in facts.configs:
        if config.framework == "torchtitan":
            yield from _torchtitan(config)


def _torchtitan(config: Config) -> Iterator[Check]:
    for section in [name for names in SECTIONS.values() for name in names]:
        wishes = [key for key, value in config.values.items() if _is_wish(key, value, section)]
        if wishes and not reads_section(section, config.values):
            named = ", ".join(converters(config.values)) or "none"
            yield Check(
                code="config-section-inert",
                status=Status.WARN,
                message=f"[{section}] sets {wishes[0].rpartition('.')[2]} and does nothing: "
                f"model.converters names {named}",
                hint=f'Set converters = ["{section}"] in [model], or drop the section.',
                source="torchtitan docs/float8.md; components/quantization/float8.py",
                **place(config, section),
            )


def _is_wish(key: str, value: Any, section: str) -> bool:
    """Whether a key asks for something; a preset writes its defaults, and asks for nothing."""
    inside, _, name = key.rpartition(".")
    if inside != section or name in ("filter_fqns", "fqns", "emulate"):
        return False
    return value is True or (name == "recipe_name" and bool(word(value)))


def profiling_window(facts: Facts) -> Iterator[Check]:
    """A profiler's window that ends before it begins, or after the training."""
    for config in facts.configs:
        values = config.values
        if config.framework == "KempnerForge":
            yield from _kempnerforge_window(config)
        elif config.framework == "Megatron-LM":
            first, last = _megatron(values, "start"), _megatron(values, "end")
            if first is not None and last is not None and last <= first:
                yield _window(config, _megatron_key(values), first, last, "records nothing")


def _megatron_key(values: Any) -> str:
    return "MODEL_ARGS.--profile-step-end" if "MODEL_ARGS" in values else "profile-step-end"


def _megatron(values: Any, end: str) -> int | None:
    return whole(values.get(f"profile-step-{end}", values.get(f"MODEL_ARGS.--profile-step-{end}")))


def _kempnerforge_window(config: Config) -> Iterator[Check]:
    values = config.values
    if not any(key.startswith("profiling.") for key in values):
        return
    first = whole(values.get("profiling.start_step", 5)) or 0
    last = whole(values.get("profiling.end_step", 8)) or 0
    steps = whole(values.get("train.max_steps"))
    if last <= first:
        effect = "raises “end_step must be greater than start_step”"
        yield _window(config, "profiling.end_step", first, last, effect)
    elif truth(values.get("profiling.enable")) and steps is not None and first > steps:
        effect = f"never opens: the training has {steps} steps"
        yield _window(config, "profiling.start_step", first, last, effect)


def _window(config: Config, key: str, first: int, last: int, effect: str) -> Check:
    return Check(
        code="profiling-window",
        status=Status.FAIL if "raises" in effect else Status.WARN,
        message=f"the profiler's window from step {first} to {last} {effect}",
        hint="Let the window begin after warm-up and end before the training does.",
        source="kempnerforge/config/profiling.py; megatron/training/training.py",
        **place(config, key),
    )


def bf16_overrides(facts: Facts) -> Iterator[Check]:
    """A bf16 of the Trainer that wins over the FP8 that another file, or itself, asks for."""
    elsewhere = fp8_from_outside(facts)
    for config in facts.configs:
        if config.framework == "axolotl" and config.training.ask:
            if truth(config.values.get("bf16")) is True:
                yield _overridden(config, "axolotl#3323: its log says fp8: false")
        elif config.framework.startswith("TRL") and elsewhere:
            wins = truth(config.values.get("bf16"))
            fp16 = truth(config.values.get("fp16"))
            if wins is True or (wins is None and not fp16 and _is_trl(facts)):
                yield _overridden(config, f"trl#3860; FP8 is asked for by {elsewhere}")


def command_overrides(facts: Facts) -> Iterator[Check]:
    """A precision on the command line that wins over accelerate's file."""
    given = arguments(list(facts.command))
    mixed = word(given.get("mixed_precision", given.get("mixed-precision")))
    for config in facts.configs:
        asks = config.framework == "accelerate" and config.in_file and config.training.ask
        if asks and mixed in ("no", "fp16", "bf16"):
            yield Check(
                code="bf16-overrides-fp8",
                status=Status.WARN,
                message=f"--mixed_precision {mixed} of the command takes the place of the fp8 that "
                "this file asks for",
                hint="Drop the argument, or write --mixed_precision fp8.",
                source="accelerate 16cb6eb, commands/launch.py: the file is read where it is not "
                "given; accelerator.py: an argument of Accelerator() wins",
                **place(config, "mixed_precision"),
            )


def _overridden(config: Config, source: str) -> Check:
    given = "bf16" in config.values
    return Check(
        code="bf16-overrides-fp8",
        status=Status.WARN,
        message=f"bf16 {'is set' if given else 'is on by default'} and takes the place of fp8 as "
        "the Trainer's mixed precision",
        hint="Leave bf16 out (axolotl) or set it to false, and see with `fp8verify run` what ran.",
        source=source,
        **place(config, "bf16"),
    )


def fp8_from_outside(facts: Facts) -> str | None:
    """Return what asks accelerate for FP8 outside of the Trainer's own arguments."""
    for config in facts.configs:
        if config.framework == "accelerate" and config.training.ask:
            return config.path
    mixed = word(facts.environment.get("ACCELERATE_MIXED_PRECISION"))
    return "ACCELERATE_MIXED_PRECISION" if mixed == "fp8" else None


def _is_trl(facts: Facts) -> bool:
    return "trl" in facts.versions or any("trl" in word.lower() for word in facts.command)
