"""Run a command attached, as the command line does: WINDOWS RANKS CAPTURE COMMAND..."""

import sys
from pathlib import Path

from fp8verify.runner import RunSettings, parse_ranks, parse_windows, run_training

windows, ranks, capture, *command = sys.argv[1:]
settings = RunSettings(
    windows=parse_windows(windows), ranks=parse_ranks(ranks), trace_dir=Path(capture)
)
result = run_training(command, settings)
Path(capture, "notes.test").write_text("\n".join(result.notes))
sys.exit(result.exit_code)
