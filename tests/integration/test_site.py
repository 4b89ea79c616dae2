"""The documentation as a site: it builds without a warning, and every link leads somewhere."""

from __future__ import annotations

import os
import posixpath
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.command_line import PATIENCE_S

ROOT = Path(__file__).parents[2]
pytest.importorskip(
    "material", reason="mkdocs-material is not installed (the docs extra)"
)


class _Page(HTMLParser):
    """What a page links to, loads, and can be linked at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if "href" in given:
            (self.links if tag == "a" else self.loads).append(given["href"])
        if "src" in given:
            self.loads.append(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the site that `scripts/test.sh` has built, or build it."""
    built = os.environ.get("FP8VERIFY_TESTS_SITE")
    if built:
        return Path(built)
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "-d",
            str(folder),
            *options,
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, _Page]:
    return {
        path.relative_to(site).as_posix(): _Page(path.read_text(encoding="utf-8"))
        for path in site.rglob("*.html")
    }


def test_every_link_of_the_site_leads_somewhere(
    site: Path, pages: dict[str, _Page]
) -> None:
    assert len(pages) > 30
    assert list(_broken(site, pages)) == []


def _broken(site: Path, pages: dict[str, _Page]) -> Iterator[str]:
    for name, page in pages.items():
        if name == "404.html":
            continue  # its links are for a site at the root of a server
        for link in (*page.links, *page.loads):
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = posixpath.normpath(
                posixpath.join(posixpath.dirname(name), parts.path)
            )
            target = name if not parts.path else unquote(target)
            if (site / target).is_dir():
                target = posixpath.normpath(f"{target}/index.html")
            if not (site / target).is_file():
                yield f"{name}: {link}"
            elif target in pages and not _place(parts.fragment, pages[target]):
                yield f"{name}: {link} has no such place"


def _place(fragment: str, page: _Page) -> bool:
    return not fragment or unquote(fragment) in page.anchors


def test_no_page_loads_anything_from_elsewhere(pages: dict[str, _Page]) -> None:
    loads = {load for page in pages.values() for load in page.loads}
    assert [load for load in loads if urlsplit(load).scheme not in ("", "data")] == []
