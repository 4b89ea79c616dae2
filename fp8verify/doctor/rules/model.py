"""Rules on the model of a dry start: which layers would run in FP8, which not, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fp8verify.analysis.gpus import peak_of
from fp8verify.capture.schema import ModuleRecord
from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.rules.asked import too_small
from fp8verify.doctor.training import Ask
from fp8verify.text import listed, shorten

_SHOWN = 6
_LOW = ("fp8", "fp4", "fp8_emulated", "fp8_module_off")
_ALIGNMENT = 16
_MOSTLY = 0.5
_BY_PREPARE = ("accelerate", "axolotl", "LLaMA-Factory")  # they convert after the optimizer


class Wish(NamedTuple):
    """What is asked for, None for nothing, and by which framework; "" for a script."""

    ask: Ask | None
    framework: str = ""

    @property
    def te(self) -> bool:
        """Whether Transformer Engine is named."""
        return self.ask is not None and self.ask.backend == "te"


def model(facts: Facts) -> Iterator[Check]:
    """What the dry start saw of the model, if there was one."""
    dry = facts.model
    if dry is None:
        return
    for cause in dry.causes:
        yield Check(
            code="known-failure",
            status=Status.FAIL,
            message=f"the dry start failed: {cause.cause}",
            hint=cause.remedy,
            source=cause.source,
        )
    if dry.why_none:
        yield Check(
            code="model-not-seen",
            status=Status.WARN,
            message=f"no model was seen: {dry.why_none}",
            hint=dry.remedy,
            source="dry start",
        )
    else:
        wish = _wish(facts)
        yield from _conversion(dry.modules, wish, facts)
        yield from _stopped(dry.modules, wish, facts)
        yield from _odd(dry.modules)
        yield from _small(dry.modules, wish)
        yield from _tied([m.fqn for m in dry.modules if m.fqn in dry.tied], wish)
    if dry.appeared:
        yield Check(
            code="dry-start-wrote",
            status=Status.WARN,
            message=f"the script made {listed(dry.appeared, _SHOWN)} here before its first "
            "optimizer",
            hint="The doctor removes nothing of yours; --static runs nothing.",
        )


def _wish(facts: Facts) -> Wish:
    asked = [Wish(config.ask, config.framework) for config in facts.configs if config.ask]
    asked += [Wish(ask) for script in facts.scripts for ask in script.asks]
    return asked[0] if asked else Wish(None)


def _would_convert(modules: Sequence[ModuleRecord], wish: Wish) -> list[ModuleRecord]:
    """Return the layers that run in FP8: those converted by now, or by accelerate's prepare()."""
    now = [module for module in modules if module.state in _LOW]
    if now or wish.ask is None or wish.framework not in _BY_PREPARE:
        return now
    linears = [module for module in modules if module.kind == "linear"]
    if wish.te:
        left = _after_a_stop(linears)
    else:  # accelerate/utils/ao.py leaves the first and the last linear layer out
        left = [module.fqn for module in (*linears[:1], *linears[-1:])]
    return [m for m in linears if m.fqn not in left and not _is_odd(m)]


def _conversion(modules: Sequence[ModuleRecord], wish: Wish, facts: Facts) -> Iterator[Check]:
    converted = _would_convert(modules, wish)
    share = _flops(converted) / (_flops(modules) or 1)
    done = {module.fqn for module in converted}
    rest = _named([m for m in modules if m.fqn not in done], modules) or "none"
    low = bool(converted) or wish.ask is None
    yield Check(
        code="model-layers",
        # What a script asks for may stand in a branch that does not run.
        status=Status.OK if low else Status.FAIL if facts.wishes else Status.WARN,
        message=f"{len(converted)} of {len(modules)} linear layers would run in FP8, {share:.0%} "
        f"of their FLOPs; in high precision: {rest}",
        hint=""
        if low
        else "FP8 is asked for, and no layer was converted when the first optimizer was built. "
        "Check where the script converts, and what its filter accepts.",
        source="dry start",
    )
    if converted:
        gpu = facts.gpus.found[0].name if facts.gpus.found else None
        peak = peak_of(gpu)
        ratio = peak.fp8 / peak.bf16 if peak is not None and peak.fp8 else 2.0
        where = gpu if peak is not None else "a GPU that multiplies FP8 twice as fast as BF16"
        yield Check(
            code="fp8-ceiling",
            status=Status.OK,
            message=f"the linear layers' GEMMs can become {1 / (1 - share + share / ratio):.2f} "
            f"times as fast at most on {where}; the step gains less, by its attention, optimizer "
            "and casts",
            source="Amdahl's law over the peaks of analysis/gpus.py",
        )


def _stopped(modules: Sequence[ModuleRecord], wish: Wish, facts: Facts) -> Iterator[Check]:
    chosen = wish.ask is not None and wish.ask.backend is None and "torchao" not in facts.versions
    if wish.framework != "accelerate" or not (wish.te or chosen):
        return
    linears = [module for module in modules if module.kind == "linear"]
    left = _after_a_stop(linears)
    if left:
        first = next(module for module in linears if _is_odd(module))
        yield Check(
            code="accelerate-conversion-stops",
            status=Status.WARN,
            message=f"accelerate stops converting at {first.fqn} ({first.in_features} -> "
            f"{first.out_features}): {listed(shorten(left, (m.fqn for m in linears)), _SHOWN)} "
            "stay in high precision",
            hint="Define the odd layer after the others in its module, or pad it to 16.",
            source="accelerate utils/transformer_engine.py:50 (return inside the loop; PR #1188)",
        )


def _after_a_stop(linears: Sequence[ModuleRecord]) -> list[str]:
    """Return the layers below the parent of an odd one that come after it, and are not odd."""
    left: dict[str, None] = {}
    for place, odd in enumerate(linears):
        if _is_odd(odd):
            parent = odd.fqn.rpartition(".")[0]
            prefix = f"{parent}." if parent else ""
            for later in linears[place + 1 :]:
                if later.fqn.startswith(prefix) and not _is_odd(later):
                    left[later.fqn] = None
    return list(left)


def _odd(modules: Sequence[ModuleRecord]) -> Iterator[Check]:
    sizes = [f"{m.fqn} {m.in_features} -> {m.out_features}" for m in modules if _is_odd(m)]
    if sizes:
        yield Check(
            code="dims-not-multiple-of-16",
            status=Status.WARN,
            message=f"sides not divisible by {_ALIGNMENT}: {listed(sizes, _SHOWN)}",
            hint="Such layers stay in high precision or raise: pad them, or leave them out.",
            source="dry start; torch aten ScaledBlas.cpp",
        )


def _small(modules: Sequence[ModuleRecord], wish: Wish) -> Iterator[Check]:
    recipe = wish.ask.recipe if wish.ask is not None else None
    small = [
        m for m in modules
        if m.in_features and m.out_features and too_small(m.out_features, m.in_features, recipe)
    ]  # fmt: skip
    if small:
        share = _flops(small) / (_flops(modules) or 1)
        yield Check(
            code="dims-too-small-to-pay",
            status=Status.WARN if share > _MOSTLY else Status.OK,
            message=f"too small to pay, {share:.0%} of the linear layers' FLOPs: "
            f"{_named(small, modules)}",
            hint="Leave them in BF16, or measure them here: fp8verify doctor --measure.",
            source="dry start; torchao float8_linear_utils.py (H100); our SMALL_SIDE",
        )


def _tied(heads: Sequence[str], wish: Wish) -> Iterator[Check]:
    if heads:
        copies = "; a conversion that copies weights parts them" if wish.te else ""
        parts = wish.te and wish.framework == "accelerate"
        yield Check(
            code="tied-head",
            status=Status.WARN if parts else Status.OK,
            message=f"{listed(heads)} shares its weight with an embedding{copies}",
            hint="Leave the head out of the conversion.",
            source="dry start; accelerate utils/transformer_engine.py (te_module.weight.copy_)",
        )


def _named(some: Sequence[ModuleRecord], modules: Sequence[ModuleRecord]) -> str:
    return listed(shorten((m.fqn for m in some), (m.fqn for m in modules)), _SHOWN)


def _is_odd(module: ModuleRecord) -> bool:
    sides = (module.in_features, module.out_features)
    return any(side is not None and side % _ALIGNMENT for side in sides)


def _flops(modules: Sequence[ModuleRecord]) -> int:
    return sum((module.in_features or 0) * (module.out_features or 0) for module in modules)
