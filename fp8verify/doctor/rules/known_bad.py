"""Rule on combinations that were seen to fail, from the table of them."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.doctor.checks import Check
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.known_bad import CHECKED, KNOWN_BAD, KnownBad
from fp8verify.doctor.training import Ask
from fp8verify.doctor.versions import built_for, within


def known_bad(facts: Facts) -> Iterator[Check]:
    """Combinations of machine, versions and configuration that were seen to fail."""
    versions = {**facts.versions, **built_for(facts.versions)}
    for row in KNOWN_BAD:
        holds = _versions(row, versions) and _hardware(row, facts) and _environment(row, facts)
        if holds and _asked(row, facts):
            names = [name for name in row.versions if name in versions]
            have = ", ".join(f"{name} {versions[name]}" for name in names)
            yield Check(
                code="known-bad-versions",
                status=row.status,
                message=row.fact + (f" ({have})" if have else ""),
                hint=row.remedy,
                source=f"{row.thread}; seen on {row.seen}, fixed in {row.fixed}; as of {CHECKED}",
            )


def _versions(row: KnownBad, versions: dict[str, str]) -> bool:
    return all(
        within(versions.get(name), wanted) if wanted else name not in versions
        for name, wanted in row.versions.items()
    )


def _hardware(row: KnownBad, facts: Facts) -> bool:
    if not row.capabilities and not row.gpu:
        return True
    return any(
        (not row.capabilities or (gpu.capability or "").startswith(row.capabilities))
        and (not row.gpu or row.gpu in gpu.name.replace("-", " ").split())
        for gpu in facts.gpus.found
    )


def _environment(row: KnownBad, facts: Facts) -> bool:
    return all(facts.environment.get(name) == value for name, value in row.environment.items())


def _asked(row: KnownBad, facts: Facts) -> bool:
    if not (row.formats or row.recipes or row.backend or row.framework or row.checkpointing):
        return True
    if row.framework or row.checkpointing:
        return any(
            config.training.ask is not None
            and (not row.framework or config.framework == row.framework)
            and (not row.checkpointing or bool(config.training.checkpointing))
            and _fits(row, config.training.ask)
            for config in facts.configs
        )
    return any(_fits(row, ask) for ask, _ in facts.asks)


def _fits(row: KnownBad, ask: Ask) -> bool:
    return (
        (not row.formats or ask.format in row.formats)
        and (not row.recipes or (ask.recipe or "").startswith(row.recipes))
        and (not row.backend or ask.backend == row.backend)
    )
