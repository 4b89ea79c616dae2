"""What the tests of one pytest process obtained, what the mark demands of it, and `fp8_run`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple, NoReturn

import msgspec
import pytest

from fp8verify.errors import Fp8VerifyError
from fp8verify.pipeline.inspection import inspect
from fp8verify.preflight.dry_start import wait_and_end
from fp8verify.report.results import Report
from fp8verify.report.tables import percent
from fp8verify.terms import Leg, Verdict
from fp8verify.text import listed, printable
from fp8verify.verdict.gates import (
    assert_fp8_active,
    assert_gemm_precision,
    assert_no_regression,
)
from fp8verify.verdict.policy import Policy, parse_share

# The control device of NVIDIA's driver, and the GPU of the Windows Subsystem for Linux.
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg")
_LAST_LINES = 30
_LOW_PRECISION = ("fp8", "mxfp8")
_SHOWN = 5
_FIXTURES = {"fp8_report", "fp8_run"}
_REPORTS = pytest.StashKey[list[Report]]()


class SessionReports:
    """Keeps every report with the test that obtained it.

    Args:
        config: of the pytest run, with the plugin's options.
        current: returns the test that runs.

    Attributes:
        min_share: the FP8 share that a test must reach if it does not say one.
    """

    def __init__(
        self, config: pytest.Config, current: Callable[[], pytest.Item | None]
    ) -> None:
        self._current = current
        self.min_share: float = config.getoption("--fp8-min-share")
        self._must_run: bool = config.getoption("--fp8-require-gpu")
        self._trace: str | None = config.getoption("--fp8-trace")
        self._baseline: str | None = config.getoption("--fp8-baseline")
        self._inspect_trace = cache(partial(inspect, self._trace or ""))

    def prepare(self, item: pytest.Item) -> None:
        """Skip a marked test that asks for no report if there is none."""
        if self._trace is None and not _FIXTURES.intersection(
            getattr(item, "fixturenames", ())
        ):
            self.skip("marked fp8, and no --fp8-trace was given")

    def skip(self, reason: str) -> NoReturn:
        """Skip the test that runs, or fail it if the session must not skip."""
        __tracebackhide__ = True
        if self._must_run:
            pytest.fail(f"{reason} (--fp8-require-gpu)", pytrace=False)
        pytest.skip(reason)

    def inspect(
        self,
        path: str | Path | None = None,
        *,
        log: str | Path | None = None,
        min_share: float | str | None = None,
    ) -> Report:
        """Inspect a path, or --fp8-trace, and note the report."""
        __tracebackhide__ = True
        if path is None and self._trace is None:
            self.skip("no path, and no --fp8-trace was given")
        look: Callable[..., Report] = self._inspect_trace
        if path is not None:
            look = partial(inspect, path)
        policy = Policy(min_share=self.min_share if min_share is None else min_share)
        with _two_lines():
            return self.note(look(log=log, policy=policy))

    def note(self, report: Report) -> Report:
        """Note a report with the test that is running."""
        item = self._current()
        if item is not None:
            item.stash.setdefault(_REPORTS, []).append(report)
            share = f"{percent(report.lowest_share):>6} of GEMM time in FP8"
            lowest = report.lowest_rank
            ranks = ""
            if len(report.ranks) > 1 and lowest is not None:
                ranks = f" ({lowest.label}, the lowest of {len(report.ranks)})"
            line = f"{report.verdict.value:12} {share}, {report.name}{ranks}"
            item.user_properties.append(("fp8verify", printable(line)))
        return report

    def judge(self, item: pytest.Item) -> None:
        """Compare every report of a marked test with its mark and the baseline."""
        __tracebackhide__ = True
        demands = demands_of(item)
        reports = item.stash.setdefault(_REPORTS, [])
        if not reports and self._trace is None:
            pytest.fail("marked fp8, but the test requested no report", pytrace=False)
        if not reports:
            self.inspect(min_share=demands.min_share)
        if demands.min_share is None:
            share = self.min_share
        else:
            share = demands.min_share
        with _two_lines():
            complaints = [
                line
                for one in reports
                for line in unmet(one, demands, share, self._baseline)
            ]
        if complaints:
            pytest.fail("\n".join(complaints), pytrace=False)


@contextmanager
def _two_lines() -> Iterator[None]:
    """Fail the test with the fact and the next step of an error, without a traceback."""
    __tracebackhide__ = True
    try:
        yield
    except Fp8VerifyError as error:
        # `from None`: pytest would show the error itself above it, a second time.
        raise pytest.fail.Exception(
            f"{error.fact}\n{error.hint}", pytrace=False
        ) from None


class Demands(NamedTuple):
    """The arguments of the mark.

    Attributes:
        min_share: the FP8 share of GEMM time; None asks for --fp8-min-share.
        forbid_legs: legs of which no GEMM may run in high precision.
        layers: patterns of module names, as fnmatch reads them; all that match must be in FP8.
    """

    min_share: float | None = None
    forbid_legs: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()


def demands_of(item: pytest.Item) -> Demands:
    """Read the marks of a test, of its class and of its module; the closest one decides.

    Raises:
        ValueError: an argument is unknown or means nothing.
    """
    given: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers("fp8"))):
        if mark.args or not set(mark.kwargs) <= set(Demands._fields):
            raise ValueError(f"the mark fp8 takes {', '.join(Demands._fields)} by name")
        given |= mark.kwargs
    demands = Demands(
        parse_share(given["min_share"]) if given.get("min_share") is not None else None,
        _names(given.get("forbid_legs", ())),
        _names(given.get("layers", ())),
    )
    known = [leg.value for leg in Leg]
    unknown = [leg for leg in demands.forbid_legs if leg not in known]
    if unknown:
        raise ValueError(f"unknown leg {unknown[0]!r}: one of {', '.join(known)}")
    return demands


def _names(value: str | Iterable[object]) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(map(str, value))


def unmet(
    report: Report, demands: Demands, min_share: float, baseline: str | None
) -> list[str]:
    """Return what a report does not meet, a message each."""
    checks = [
        partial(assert_fp8_active, report, min_share=min_share),
        *(
            partial(assert_gemm_precision, report, _LOW_PRECISION, leg=leg)
            for leg in demands.forbid_legs
        ),
        *(partial(_assert_layers_fp8, report, pattern) for pattern in demands.layers),
    ]
    if baseline is not None:
        checks.append(partial(assert_no_regression, report, baseline))
    complaints = []
    for check in checks:
        try:
            check()
        except AssertionError as error:  # noqa: PERF203 - a few checks
            complaints.append(str(error))
    if complaints and report.verdict is Verdict.ACTIVE:
        return [
            f"FP8 ran, and not as this test asks ({printable(report.name)}):",
            *complaints,
        ]
    return complaints


def _assert_layers_fp8(report: Report, pattern: str) -> None:
    states = report.layer_states
    matching = {
        name: state for name, state in states.items() if fnmatchcase(name, pattern)
    }
    others = [f"{name} ({state})" for name, state in matching.items() if state != "fp8"]
    if not states:
        why = "this capture has no module list"
    elif not matching:
        why = "no linear layer of the model is called like that"
    elif others:
        count = f"{len(others)} of {len(matching)}"
        why = f"{count} layers are not in FP8: {listed(others, _SHOWN)}"
    else:
        return
    raise AssertionError(f"layers={pattern!r}: {why}")


# ---- a run for a test: `fp8verify run` in a process group of its own


def why_not() -> str | None:
    """Say why no training can run here, None if one can."""
    if not any(map(os.path.exists, _GPU_DEVICES)):
        return "no NVIDIA GPU here"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    if importlib.util.find_spec("torch"):
        return None
    return "torch is not installed"


def run(
    command: Sequence[str | Path],
    folder: Path,
    steps: str,
    timeout: float,
    min_share: float | str,
) -> Report:
    """Run a script under a window of steps and return the report on it.

    The capture stays in a subfolder of `folder`. Fails the test if the script fails, or takes
    more than `timeout` seconds.
    """
    __tracebackhide__ = True
    place = Path(mkdtemp(prefix="fp8-run-", dir=folder))
    report = place / "report.json"
    arguments = [
        sys.executable,
        "-m",
        "fp8verify",
        "run",
        "--steps",
        steps,
        "--ranks",
        "all",
    ]
    arguments += ["--trace-dir", str(place / "capture"), "--min-share", str(min_share)]
    arguments += [
        "--exit-zero",
        "--format",
        "json",
        "-o",
        str(report),
        *map(str, command),
    ]
    output = place / "output.txt"
    mark = f"FP8VERIFY_TEST={place}"
    with output.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603 - the test's own command
            arguments,
            env={**os.environ, "FP8VERIFY_TEST": str(place)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    code = wait_and_end(process, mark, timeout)
    if code is None:
        pytest.fail(
            f"the script took more than {timeout:g} s:\n{_tail(output)}", pytrace=False
        )
    if code or not report.exists():
        pytest.fail(f"the script exited with {code}:\n{_tail(output)}", pytrace=False)
    return msgspec.json.decode(report.read_bytes(), type=Report)


def _tail(output: Path) -> str:
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - (1 << 16)))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return "\n".join(lines[-_LAST_LINES:])
