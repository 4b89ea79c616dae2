"""What this machine is called in the names of files."""

from __future__ import annotations

import os
import re


def node_name() -> str:
    """Return the first label of this machine's name, fit for a file name."""
    return (
        re.sub(r"[^A-Za-z0-9_-]", "-", os.uname().nodename.split(".")[0])[:64] or "node"
    )
