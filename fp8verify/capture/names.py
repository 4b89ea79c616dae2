"""Names of the files in a capture folder.

The runner imports this before every run, so nothing else is imported here. The agent cannot import
it: `tests/unit/test_agent_contract.py` compares the agent's names with these.
"""

from __future__ import annotations

LOG = "log.txt"  # of the runner that made the folder
REPORT = "report.json"
LOGS = "log*.txt"  # and those of other nodes, and of ranks whose output went to files
META_SUFFIX = ".meta.json"
METAS = f"rank*{META_SUFFIX}"
CLAIM = (
    "capture.meta.json"  # whose capture it is, where several nodes may write into it
)
LAYERS = "layers"  # a folder: traces of the eager steps that name layers
NUMERICS_SUFFIX = ".numerics.json"  # scales and measured tensors of a rank
NUMERICS = f"rank*{NUMERICS_SUFFIX}"
SERIES_SUFFIX = (
    ".numerics.jsonl"  # and of each step that `run --numerics-every` measured
)
CODE_SUFFIX = ".code.json"  # what the compiled code of a rank's kernels holds
CODE = f"rank*{CODE_SUFFIX}"
BOOTS = ".boot-*"  # of a run that is not over, or of `fp8verify env`
RUNNER = "runner."  # and the node: in the boot folder of a run
