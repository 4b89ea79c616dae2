"""Lists of verdicts on the command line."""

from __future__ import annotations

import click


def parse_verdicts(text: str | None) -> frozenset[str]:
    """Return the verdicts of a list such as "CONTRADICTED,EMULATED".

    Raises:
        BadParameter: one is no verdict.
    """
    if not text:
        return frozenset()
    from fp8verify.terms import Verdict  # every start of a run waits for this file

    names = frozenset(name.strip().upper() for name in text.split(",") if name.strip())
    known = [verdict.value for verdict in Verdict]
    for name in names.difference(known):
        raise click.BadParameter(f"{name[:40]!r} is none of {', '.join(known)}.")
    return names
