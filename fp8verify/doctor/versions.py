"""Compare versions of packages, as PEP 440 orders them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version


def parsed(text: str | None) -> Version | None:
    """Return a version, None for what is none."""
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None


def within(text: str | None, specifier: str) -> bool:
    """Return whether a version is known and within the specifier; nightlies count as theirs."""
    version = parsed(text)
    return version is not None and SpecifierSet(specifier).contains(version, prereleases=True)


def cuda_of(versions: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the CUDA version that the installed torch was built for, if that is known."""
    local = re.search(r"\+cu(\d+)(\d)$", versions.get("torch", ""))
    if local:
        return int(local[1]), int(local[2])
    for name in ("nvidia_cublas", "nvidia_cublas_cu12", "nvidia_cublas_cu11"):
        version = parsed(versions.get(name))
        if version is not None:
            return version.major, version.minor
    return None


def built_for(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the CUDA or ROCm of the installed torch as versions of two more packages."""
    rocm = re.search(r"\+rocm([\d.]+)", versions.get("torch", ""))
    cuda = None if rocm else cuda_of(versions)
    return {
        **({"torch_rocm": rocm[1]} if rocm else {}),
        **({"torch_cuda": f"{cuda[0]}.{cuda[1]}"} if cuda else {}),
    }
