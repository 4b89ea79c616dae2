"""Hooks of mkdocs: pages that lie elsewhere in the repository, links to files, live reports."""

from __future__ import annotations

import posixpath
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from fp8verify.version import __version__

ROOT = Path(__file__).parents[2]
# Pages of the site that are files of the repository, for readers of both.
MOUNTED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "traces/README.md": "captures.md",
    "fp8verify/agent/patches.md": "intrusions.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/results/trace_speed.md": "speed.md",
    "benchmarks/results/attach.md": "attached.md",
    "benchmarks/results/trials.md": "trials.md",
    "examples/README.md": "frameworks/index.md",
    **{
        f"examples/{path.parent.name}/README.md": f"frameworks/{path.parent.name}.md"
        for path in (ROOT / "examples").glob("*/README.md")
    },
}
_PLACEHOLDER = "https://example.org/fp8verify"
_LINK = re.compile(
    r"""(?<=\]\()(?P<md>[^)\s#]+)|(?<=\bsrc=")(?P<src>[^"]+)|(?<=\bhref=")(?P<href>[^"#]+)"""
)
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LIVE = re.compile(r"<!-- live report: (?P<capture>[\w/]+) -->")
_ELSEWHERE = re.compile(r"[a-z]+:|#|/")


def on_config(config: Any) -> Any:
    """Show the version with the link to the repository."""
    config.repo_name = f"fp8verify {__version__}"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the mounted pages, the files that pages link to, and the reports to click on."""
    for source, target in MOUNTED.items():
        page = File.generated(config, target, abs_src_path=str(ROOT / source))
        page.edit_uri = (
            f"../{source}"  # the address of the pages to edit ends with docs/
        )
        files.append(page)
    for page in [file for file in files if file.is_documentation_page()]:
        text = page.content_string
        for linked in _linked(text, _home(page.src_uri)):
            target = _target(linked)
            if target is not None and files.get_file_from_path(target) is None:
                files.append(
                    File.generated(config, target, abs_src_path=str(ROOT / linked))
                )
        for found in _LIVE.finditer(text):
            capture = found["capture"]
            files.append(
                File.generated(config, _live(capture), content=_report(capture))
            )
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Turn links into the repository into links within the site, and name the repository."""
    here = page.file.src_uri
    markdown = markdown.replace(_PLACEHOLDER, config.repo_url)
    parts, end = [], 0
    for code in _CODE.finditer(markdown):
        parts += [_relinked(markdown[end : code.start()], here), code.group()]
        end = code.end()
    text = "".join([*parts, _relinked(markdown[end:], here)])
    return _LIVE.sub(lambda found: _framed(found["capture"], here), text)


def _relinked(text: str, here: str) -> str:
    def moved(found: re.Match[str]) -> str:
        target = _target(_resolved(found.group(), _home(here)))
        if _ELSEWHERE.match(found.group()) or target is None:
            return found.group()
        return posixpath.relpath(target, posixpath.dirname(here) or ".")

    return _LINK.sub(moved, text)


def _linked(text: str, home: str) -> Iterator[str]:
    """Yield the files of the repository that a page links to."""
    for found in _LINK.finditer(_CODE.sub("", text)):
        if not _ELSEWHERE.match(found.group()):
            yield _resolved(found.group(), home)


def _home(uri: str) -> str:
    """Return where in the repository a page of the site lies."""
    source = next(
        (source for source, target in MOUNTED.items() if target == uri), f"docs/{uri}"
    )
    return posixpath.dirname(source)


def _resolved(link: str, home: str) -> str:
    return posixpath.normpath(posixpath.join(home, link))


def _target(source: str) -> str | None:
    """Return where in the site a file of the repository is, None if there is no such file."""
    if (ROOT / source).is_dir():
        source = f"{source}/README.md"
    if source in MOUNTED:
        return MOUNTED[source]
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    if not (ROOT / source).is_file():
        return None
    return (
        f"repository/{source}.txt"
        if source.endswith((".md", ".py"))
        else f"repository/{source}"
    )


def _live(capture: str) -> str:
    return f"reports/{posixpath.basename(capture)}.html"


def _report(capture: str) -> str:
    """Render the HTML report of a capture, as the command line does."""
    with tempfile.TemporaryDirectory() as folder:
        shown = Path(folder, "report.html")
        command = ["inspect", str(ROOT / capture), "--exit-zero", "--format", "html"]
        subprocess.run(
            [sys.executable, "-m", "fp8verify", *command, "-o", str(shown)],
            check=True,
            cwd=ROOT,
        )
        return shown.read_text(encoding="utf-8")


def _framed(capture: str, here: str) -> str:
    link = posixpath.relpath(_live(capture), posixpath.dirname(here) or ".")
    return f"[Open the page of `{capture}` itself]({link})"
