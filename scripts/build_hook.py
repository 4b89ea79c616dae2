"""Write the JSON Schemas into the wheel; hatchling calls this while it builds one."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Schemas(BuildHookInterface[Any]):
    """Adds `fp8verify/report/DOCUMENT.schema.json`, made from the types of the reports."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate the files; an editable install has none, as it has the types."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from scripts.schemas import DOCUMENTS, schema

        self.folder = tempfile.TemporaryDirectory()
        for document in DOCUMENTS:
            path = Path(self.folder.name, f"{document}.schema.json")
            text = json.dumps(schema(document), indent=2, ensure_ascii=False)
            path.write_text(f"{text}\n", encoding="utf-8")
            build_data["force_include"][str(path)] = f"fp8verify/report/{path.name}"

    def finalize(self, version: str, *_: Any) -> None:
        """Remove the files."""
        if version != "editable":
            self.folder.cleanup()
