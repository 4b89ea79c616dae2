"""What is installed is what constraints.txt locks, for every Python that the package names."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCKED = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
BY_VENV = {"fp8verify", "pip", "setuptools", "wheel"}


def versions(python: str | None = None) -> dict[str, str]:
    """Return the locked versions here, under a Python such as `3.12` or the one that runs."""
    environment = (
        {"python_version": python, "python_full_version": f"{python}.0"}
        if python
        else {}
    )
    return {
        canonicalize_name(one.name): str(one.specifier).removeprefix("==")
        for one in LOCKED
        if one.marker is None or one.marker.evaluate(environment)
    }


def seen_packages_of_the_system() -> bool:
    marker = Path(sys.prefix, "pyvenv.cfg")
    return (
        not marker.exists()
        or "include-system-site-packages = true" in marker.read_text()
    )


@pytest.mark.skipif(
    seen_packages_of_the_system(), reason="not an environment of scripts/test.sh"
)
def test_what_is_installed_is_what_is_locked() -> None:
    locked = versions()
    differs = {}
    for package in metadata.distributions(
        path=[p for p in sys.path if p.startswith(sys.prefix)]
    ):
        name = canonicalize_name(package.metadata["Name"])
        public = Version(package.version).public  # torch's CPU build is 2.13.0+cpu
        if name not in BY_VENV and locked.get(name) != public:
            differs[name] = (public, locked.get(name))
    assert not differs, "run scripts/lock.sh, or scripts/test.sh in a new .venv"


def test_every_python_of_the_classifiers_has_a_version_of_each_requirement() -> None:
    package = metadata.metadata("fp8verify")
    classifiers = [
        line.rpartition(" :: ")[2] for line in package.get_all("Classifier", [])
    ]
    pythons = [word for word in classifiers if word.startswith("3.")]
    needed = [Requirement(line) for line in package.get_all("Requires-Dist", [])]
    assert len(pythons) >= 5
    for python in pythons:
        locked = versions(python)
        for one in needed:
            environment = {"python_version": python, "extra": ""}
            if one.marker is None or one.marker.evaluate(environment):
                assert one.specifier.contains(locked[canonicalize_name(one.name)]), (
                    python,
                    one,
                )
