"""The command line: each command parses, calls, renders and exits."""

from __future__ import annotations

import errno
import gc
import sys

from fp8verify.errors import Fp8VerifyError, InputError
from fp8verify.version import __version__


def main() -> None:
    """Run the command line; the only place that catches errors."""
    if sys.argv[1:] == [
        "--version"
    ]:  # scripts ask often, and click takes most of the time
        print(f"fp8verify, version {__version__}")
        return
    if sys.argv[1:2] == ["run"]:
        from fp8verify.record.command import leave_process_list, leave_switches

        leave_switches()
        leave_process_list()
    # Hardly anything here has cycles. At Python's own rate the collector walks the imported modules
    # again and again, for a twentieth of the time of an `inspect`.
    gc.set_threshold(100_000)
    from fp8verify.cli.group import cli

    try:
        cli.main(prog_name="fp8verify")
    except Fp8VerifyError as error:
        _tell(error)
        sys.exit(error.exit_code)
    except (
        OSError
    ) as error:  # as pathlib raises of a folder that may not be looked into
        found = _of_the_system(error)
        _tell(found)
        sys.exit(found.exit_code)
    except KeyboardInterrupt:
        sys.exit("\nAborted!")  # as click says it
    finally:
        gc.freeze()  # Python's last collection would walk all of a report before everything ends


def _of_the_system(error: OSError) -> InputError:
    """Say what a path, or the disk, did to a command that did not foresee it."""
    if error.filename is None and isinstance(error, FileNotFoundError):
        return InputError(
            "The current folder was removed.", "Change into one that is there."
        )
    what = f"{error.filename}: " if error.filename else ""
    hint = "Check the path, and this user's right to it."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "Make room, or write elsewhere."
    return InputError(f"{what}{error.strerror or error}.", hint)


def _tell(error: Fp8VerifyError) -> None:
    import click

    from fp8verify.text import printable

    click.echo(f"error: {printable(error.fact)}", err=True)
    click.echo(f"hint: {printable(error.hint)}", err=True)
