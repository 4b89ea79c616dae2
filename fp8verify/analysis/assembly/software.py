"""Which GPU and which versions of the software the ranks ran on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.schema import RankMeta
from fp8verify.report.model import Environment


def environment(ranks: Sequence[RankEvidence]) -> Environment:
    """Return the GPU of the first rank whose trace or record names one, and the versions of all."""
    gpus = [(rank.gpu, rank.compute_capability) for rank in ranks]
    gpus += [(meta.environment.gpu, meta.environment.compute_capability) for meta in _metas(ranks)]
    name, capability = next((gpu for gpu in gpus if gpu[0]), (None, None))
    return Environment(gpu=name, compute_capability=capability, versions=_versions(ranks))


def _versions(ranks: Iterable[RankEvidence]) -> dict[str, str]:
    """Return versions by name; "2.10 and 2.11" where ranks differ."""
    found: dict[str, list[str]] = {}
    for meta in _metas(ranks):
        for name, version in meta.versions.items():
            known = found.setdefault(name, [])
            if version not in known:
                known.append(version)
    return {name: " and ".join(known) for name, known in found.items()}


def _metas(ranks: Iterable[RankEvidence]) -> list[RankMeta]:
    return [rank.meta for rank in ranks if rank.meta is not None]
