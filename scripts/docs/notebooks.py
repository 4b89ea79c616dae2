"""The notebooks of the examples: executed, with the output that they are shown with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from scripts.docs.shell import ROOT

NOTEBOOKS = sorted((ROOT / "examples").rglob("*.ipynb"))


def executed(path: Path) -> Any:
    """Run a notebook from its own folder, in this Python, and return it with its outputs."""
    import nbformat
    from nbclient import NotebookClient

    notebook: Any = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources=where
    )
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT)})
    return notebook


def shown(notebook: Any) -> list[str]:
    """Return the plain text of each cell's outputs."""
    return [
        "".join(map(_text, cell.outputs))
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def _text(output: Any) -> str:
    if output.output_type == "stream":
        return str(output.text)
    return str(output.get("data", {}).get("text/plain", ""))


def stale_notebooks() -> list[str]:
    """Name the notebooks that print something else than what they are shown with."""
    import nbformat

    return [
        str(path.relative_to(ROOT))
        for path in NOTEBOOKS
        if shown(executed(path)) != shown(nbformat.read(path, as_version=4))
    ]


def execute_all() -> list[str]:
    """Execute every notebook that is stale and keep its outputs, as plain text."""
    import nbformat

    stale = stale_notebooks()
    for name in stale:
        notebook = executed(ROOT / name)
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # times, which differ at each run
            for output in cell.get("outputs", ()):
                if "data" in output:
                    output.data = {"text/plain": output.data.get("text/plain", "")}
        notebook.metadata = {
            "kernelspec": {"display_name": "Python 3", "name": "python3"}
        }
        nbformat.write(notebook, ROOT / name)
    return stale
