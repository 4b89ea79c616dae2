"""The command line: each command parses, calls, renders and exits."""

from __future__ import annotations

import gc
import sys

from fp8verify.cli.deferred import defer_imports
from fp8verify.errors import Fp8VerifyError, InputError

_NO_RIGHT = "Give this user the right to it, or name another place."


def main() -> None:
    """Run the command line; the only place that catches errors."""
    # Hardly anything here has cycles. At Python's own rate the collector walks the imported modules
    # again and again, for a twentieth of the time of an `inspect`.
    gc.set_threshold(100_000)
    defer_imports()
    from fp8verify.cli.group import cli

    try:
        cli.main(prog_name="fp8verify")
    except Fp8VerifyError as error:
        _tell(error)
        sys.exit(error.exit_code)
    except PermissionError as error:  # as pathlib raises of a folder that may not be looked into
        denied = InputError(f"{error.filename}: {error.strerror}.", _NO_RIGHT)
        _tell(denied)
        sys.exit(denied.exit_code)
    except KeyboardInterrupt:
        sys.exit("\nAborted!")  # as click says it
    finally:
        gc.freeze()  # Python's last collection would walk all of a report before everything ends


def _tell(error: Fp8VerifyError) -> None:
    import click

    from fp8verify.report.escape import printable

    click.echo(f"error: {printable(error.fact)}", err=True)
    click.echo(f"hint: {printable(error.hint)}", err=True)
