"""Check configurations one by one, as the pre-commit hook does: `python -m … FILE…`.

Each file is a run of its own. What is said of the machine that commits is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fp8verify.errors import Fp8VerifyError
from fp8verify.preflight import doctor
from fp8verify.preflight.checks import Check, Status, report_of, to_text


def check_each(files: Sequence[str]) -> int:
    """Print the faults of each file; return 1 if a check fails, 2 if a file cannot be read."""
    code = 0
    for file in files:
        try:
            faults = [check for check in doctor(file).checks if _is_of_file(check)]
        except Fp8VerifyError as error:
            print(f"error: {error.fact}\nhint: {error.hint}", file=sys.stderr)
            code = max(code, 2)
            continue
        if faults:
            report = report_of(faults)
            print(to_text(report), end="")
            code = max(code, report.exit_code)
    return code


def _is_of_file(check: Check) -> bool:
    return check.file is not None and check.status in (Status.FAIL, Status.WARN)


if __name__ == "__main__":
    sys.exit(check_each(sys.argv[1:]))
