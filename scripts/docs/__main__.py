"""Write what is made by machine in README, docs and examples: outputs, tables, pictures.

python -m scripts.docs            # writes them
python -m scripts.docs --check    # says what is stale, and exits with 1 if anything is

The picture of the HTML page needs a Chromium; without one it stays as it is.
"""

from __future__ import annotations

import sys

from scripts.docs.blocks import pages, rewritten
from scripts.docs.doctor_codes import code_pages
from scripts.docs.notebooks import execute_all, stale_notebooks
from scripts.docs.pictures import draw, stale_pages, stale_terminals
from scripts.docs.reference import TABLES, finding_pages
from scripts.docs.shell import ROOT


def stale_texts(*, write: bool = False) -> list[str]:
    """Name the pages whose outputs or tables differ from what the code says; maybe fix them."""
    found = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new = rewritten(text, TABLES)
        if new != text:
            found.append(str(page.relative_to(ROOT)))
            if write:
                page.write_text(new, encoding="utf-8")
    return found


def stale_codes(*, write: bool = False) -> list[str]:
    """Name the pages of docs/doctor and docs/findings that are stale; maybe write them."""
    pages = {**code_pages(), **finding_pages()}
    folders = {page.parent for page in pages}
    gone = [
        page for folder in folders for page in folder.glob("*.md") if page not in pages
    ]
    old = [
        page
        for page in pages
        if not page.is_file() or page.read_text("utf-8") != pages[page]
    ]
    if write:
        for page in gone:
            page.unlink()
        for page in old:
            page.parent.mkdir(exist_ok=True)
            page.write_text(pages[page], encoding="utf-8")
    return [str(page.relative_to(ROOT)) for page in (*gone, *old)]


def main() -> int:
    """Write or check everything."""
    if "--check" in sys.argv[1:]:
        stale = [
            *stale_texts(),
            *stale_codes(),
            *stale_terminals(),
            *stale_pages(),
            *stale_notebooks(),
        ]
        print("\n".join(f"stale: {name}" for name in stale) or "nothing is stale")
        return 1 if stale else 0
    for name in [
        *stale_codes(write=True),
        *stale_texts(write=True),
        *draw(),
        *execute_all(),
    ]:
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
