"""Rule on what the configurations ask for at all."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.scripts import Script
from fp8verify.doctor.training import Ask
from fp8verify.doctor.units import NAMES


def asked(facts: Facts) -> Iterator[Check]:
    """What each file asks for, as it was understood."""
    for config in facts.configs:
        ask = config.training.ask
        says = f"asks for {_described(ask)}" if ask else "does not ask for FP8"
        yield Check(
            code="fp8-asked" if ask else "fp8-not-asked",
            status=Status.OK if ask else Status.SKIPPED,
            message=f"{config.framework}: {says}",
            file=config.path,
            line=config.lines.get(config.origins.get(ask.key, ask.key)) if ask else None,
        )
    for script in facts.scripts:
        yield from _of_a_script(script, alone=not facts.asks)
    for path in facts.unrecognised:
        yield Check(
            code="config-not-recognised",
            status=Status.WARN,
            message="this belongs to no framework that is known; it is not checked",
            hint="Pass the file that the training reads, or its command after --.",
            file=path,
        )


def _of_a_script(script: Script, *, alone: bool) -> Iterator[Check]:
    for ask in script.asks:
        yield Check(
            code="fp8-asked",
            status=Status.OK,
            message=f"the script can ask for {_described(ask)} ({ask.key})",
            file=script.path,
        )
    if script.why_unread:
        yield Check(
            code="config-not-recognised",
            status=Status.WARN,
            message=f"this Python source cannot be read ({script.why_unread}); it is not checked",
            file=script.path,
        )
    elif alone:  # else a file of the command asks, and a script that does not is no news
        yield Check(
            code="fp8-not-asked",
            status=Status.SKIPPED,
            message="nothing here asks for FP8, as far as a source tells without being run",
            file=script.path,
        )


def _described(ask: Ask) -> str:
    details = [word for word in (ask.recipe, ask.backend) if word and word != ask.format]
    return NAMES[ask.format] + (f" ({', '.join(details)})" if details else "")
