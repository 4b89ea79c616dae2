"""Rules on the model of a dry start: which layers would run in FP8, which not, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fp8verify.analysis.gpus import peak_of
from fp8verify.capture.schema import ModuleRecord
from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.rules.asked import too_small
from fp8verify.doctor.training import Ask
from fp8verify.text import listed, shorten

if TYPE_CHECKING:
    from fp8verify.doctor.dry_start import DryModel

_SHOWN = 6
_LOW = ("fp8", "fp4", "fp8_emulated", "fp8_module_off")
_ALIGNMENT = 16
_MOSTLY = 0.5


def model(facts: Facts) -> Iterator[Check]:
    """What the dry start saw of the model, if there was one."""
    dry = facts.model
    if dry is None:
        return
    yield from _known_failures(dry)
    if dry.why_none:
        yield _not_seen(dry)
        return
    ask = _ask(facts)
    yield from _conversion(dry.modules, ask, facts)
    yield from _stopped(dry.modules, ask, facts)
    yield from _odd(dry.modules)
    yield from _small(dry.modules, ask)
    yield from _tied(dry.tied, dry.modules, ask)


def _known_failures(dry: DryModel) -> Iterator[Check]:
    for cause in dry.causes:
        yield Check(
            code="known-failure",
            status=Status.FAIL,
            message=f"the dry start failed: {cause.cause}",
            hint=cause.remedy,
            source=cause.source,
        )


def _not_seen(dry: DryModel) -> Check:
    return Check(
        code="model-not-seen",
        status=Status.WARN,
        message=f"no model was seen: {dry.why_none}",
        hint=dry.remedy,
        source="dry start",
    )


def appeared(facts: Facts) -> Iterator[Check]:
    """What a dry start left in the current folder."""
    if facts.model is not None and facts.model.appeared:
        yield Check(
            code="dry-start-wrote",
            status=Status.WARN,
            message=f"the script made {listed(facts.model.appeared, _SHOWN)} here before its first "
            "optimizer",
            hint="The doctor removes nothing of yours; --static runs nothing.",
        )


def _ask(facts: Facts) -> tuple[Ask, str] | None:
    """Return what is asked for and by which framework."""
    for config in facts.configs:
        if config.ask is not None:
            return config.ask, config.framework
    asks = [ask for script in facts.scripts for ask in script.asks]
    return (asks[0], "") if asks else None


def would_convert(
    modules: Sequence[ModuleRecord], ask: tuple[Ask, str] | None
) -> dict[str, ModuleRecord]:
    """Return the layers that run in FP8: those converted by now, or by accelerate's prepare()."""
    now = {module.fqn: module for module in modules if module.state in _LOW}
    if now or ask is None or ask[1] not in ("accelerate", "axolotl", "LLaMA-Factory"):
        return now
    linears = [module for module in modules if module.kind == "linear"]
    if ask[0].backend == "te":
        left = set(_after_a_stop(linears)) | {m.fqn for m in linears if _is_odd(m)}
    else:  # accelerate/utils/ao.py leaves the first and the last linear layer out
        left = {m.fqn for m in linears if _is_odd(m)} | {
            m.fqn for m in (*linears[:1], *linears[-1:])
        }
    return {module.fqn: module for module in linears if module.fqn not in left}


def _conversion(
    modules: Sequence[ModuleRecord], ask: tuple[Ask, str] | None, facts: Facts
) -> Iterator[Check]:
    converted = would_convert(modules, ask)
    total = sum(map(_size, modules)) or 1
    share = sum(map(_size, converted.values())) / total
    rest = [module.fqn for module in modules if module.fqn not in converted]
    names = listed(shorten(rest, (m.fqn for m in modules)), _SHOWN) if rest else "none"
    low = bool(converted) or ask is None
    yield Check(
        code="model-layers",
        # What a script asks for may stand in a branch that does not run.
        status=Status.OK if low else Status.FAIL if facts.wishes else Status.WARN,
        message=f"{len(converted)} of {len(modules)} linear layers would run in FP8, {share:.0%} "
        f"of their FLOPs; in high precision: {names}",
        hint=""
        if low
        else "FP8 is asked for, and no layer was converted when the first optimizer was built. "
        "Check where the script converts, and what its filter accepts.",
        source="dry start",
    )
    if converted:
        yield _ceiling(share, facts)


def _ceiling(share: float, facts: Facts) -> Check:
    gpu = facts.gpus.found[0].name if facts.gpus.found else None
    peak = peak_of(gpu)
    ratio = peak.fp8 / peak.bf16 if peak is not None and peak.fp8 else 2.0
    most = 1 / (1 - share + share / ratio)
    where = gpu if peak is not None else "a GPU that multiplies FP8 twice as fast as BF16"
    return Check(
        code="fp8-ceiling",
        status=Status.OK,
        message=f"the linear layers' GEMMs can become {most:.2f} times as fast at most on {where}; "
        "the step gains less, by its attention, optimizer and casts",
        source="Amdahl's law over the peaks of evidence/peaks.py",
    )


def _stopped(
    modules: Sequence[ModuleRecord], ask: tuple[Ask, str] | None, facts: Facts
) -> Iterator[Check]:
    te = ask is not None and ask[1] == "accelerate" and ask[0].backend in ("te", None)
    if ask is None or not te or (ask[0].backend is None and "torchao" in facts.versions):
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
    odd = [module for module in modules if _is_odd(module)]
    if odd:
        sizes = [f"{m.fqn} {m.in_features} -> {m.out_features}" for m in odd]
        yield Check(
            code="dims-not-multiple-of-16",
            status=Status.WARN,
            message=f"sides not divisible by {_ALIGNMENT}: {listed(sizes, _SHOWN)}",
            hint="Such layers stay in high precision or raise: pad them, or leave them out.",
            source="dry start; torch aten ScaledBlas.cpp",
        )


def _small(modules: Sequence[ModuleRecord], ask: tuple[Ask, str] | None) -> Iterator[Check]:
    recipe = ask[0].recipe if ask is not None else None
    small = [
        m for m in modules
        if m.in_features and m.out_features and too_small(m.out_features, m.in_features, recipe)
    ]  # fmt: skip
    if not small:
        return
    share = sum(map(_size, small)) / (sum(map(_size, modules)) or 1)
    yield Check(
        code="dims-too-small-to-pay",
        status=Status.WARN if share > _MOSTLY else Status.OK,
        message=f"too small to pay, {share:.0%} of the linear layers' FLOPs: "
        f"{listed(shorten((m.fqn for m in small), (m.fqn for m in modules)), _SHOWN)}",
        hint="Leave them in BF16, or measure them here: fp8verify doctor --measure.",
        source="dry start; torchao float8_linear_utils.py (H100); our SMALL_SIDE",
    )


def _tied(
    tied: Sequence[str], modules: Sequence[ModuleRecord], ask: tuple[Ask, str] | None
) -> Iterator[Check]:
    heads = [module.fqn for module in modules if module.fqn in tied]
    if not heads:
        return
    te = ask is not None and ask[0].backend == "te"
    yield Check(
        code="tied-head",
        status=Status.WARN if te and ask is not None and ask[1] == "accelerate" else Status.OK,
        message=f"{listed(heads)} shares its weight with an embedding"
        + ("; a conversion that copies weights parts them" if te else ""),
        hint="Leave the head out of the conversion.",
        source="dry start; accelerate utils/transformer_engine.py (te_module.weight.copy_)",
    )


def _is_odd(module: ModuleRecord) -> bool:
    sides = (module.in_features, module.out_features)
    return any(side is not None and side % _ALIGNMENT for side in sides)


def _size(module: ModuleRecord) -> int:
    return (module.in_features or 0) * (module.out_features or 0)
