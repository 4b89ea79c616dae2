"""The command line: each command parses, calls, renders and exits."""

from __future__ import annotations

import gc
import sys

from fp8verify.cli.head_start import run_plain
from fp8verify.errors import Fp8VerifyError


def main() -> None:
    """Run the command line; the only place that catches errors."""
    try:
        finished = run_plain(sys.argv[1:])
        # Hardly anything here has cycles. At Python's own rate the collector walks the imported
        # modules again and again, for a twentieth of the time of an `inspect`.
        gc.set_threshold(100_000)
        from fp8verify.cli.group import cli  # click: a training waits for nothing it does not need

        cli.main(prog_name="fp8verify", obj=finished)
    except Fp8VerifyError as error:
        from click import echo

        echo(f"error: {error}", err=True)
        echo(f"hint: {error.hint}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit("\nAborted!")  # as click says it
