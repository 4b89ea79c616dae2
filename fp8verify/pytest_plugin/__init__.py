"""Assert in pytest that a script trained in FP8.

    @pytest.mark.fp8(min_share=0.9, forbid_legs=["wgrad"], layers="layers.*")
    def test_the_recipe(fp8_run):
        fp8_run("train.py", "--precision", "fp8", steps="5-7")

    def test_the_nightly_capture(fp8_report):
        assert_fp8_active(fp8_report("captures/nightly"), min_share=0.8)

The plugin imports fp8verify's modules when a test uses them, and never torch.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Generator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from fp8verify.pytest_plugin.session_reports import SessionReports
    from fp8verify.report.results import Report

MARK = "fp8"
_MARK_HELP = (
    "fp8(min_share=F, forbid_legs=[...], layers=PATTERN): every report that the test obtains must "
    "show FP8: on min_share of GEMM time, with no high-precision GEMM in forbid_legs, and with "
    "every linear layer that matches layers converted. A test that asks for none judges "
    "--fp8-trace."
)
_current = pytest.StashKey[pytest.Item]()
_session = pytest.StashKey["SessionReports"]()


def __getattr__(name: str) -> Any:
    """Return one of the assertions on reports, which come with all that judges."""
    if not name.startswith("assert_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("fp8verify"), name)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the group fp8verify."""
    group = parser.getgroup("fp8verify", "FP8 training")
    group.addoption(
        "--fp8-trace",
        metavar="PATH",
        type=_place,
        help="Trace, folder of ranks or capture that fp8_report() and tests marked fp8 judge.",
    )
    group.addoption(
        "--fp8-min-share",
        metavar="F",
        type=_share,
        default=0.5,
        help="FP8 share of GEMM time that a test requires unless it gives its own (0.5 or 50%%).",
    )
    group.addoption(
        "--fp8-baseline",
        metavar="FILE",
        type=_place,
        help="State of `fp8verify inspect --save-baseline` below which no test marked fp8 may "
        "fall.",
    )

    group.addoption(
        "--fp8-require-gpu",
        action="store_true",
        help="Fail tests that would skip for want of a GPU, of torch or of --fp8-trace.",
    )


def _place(text: str) -> str:
    """Make a path absolute here: the workers of xdist may run elsewhere."""
    return text if "://" in text else os.path.abspath(text)  # noqa: PTH100 - pathlib eats ://


def _share(text: float | str) -> float:
    from fp8verify.verdict.policy import parse_share

    try:
        return parse_share(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARK_HELP)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse marks that mean nothing, before any test runs.

    Raises:
        pytest.UsageError: with a line for each.
    """
    marked = [item for item in items if item.get_closest_marker(MARK) is not None]
    if marked:
        from fp8verify.pytest_plugin.session_reports import demands_of

        wrong = []
        for item in marked:
            try:
                demands_of(item)
            except ValueError as error:  # noqa: PERF203 - of each test
                wrong.append(f"{item.nodeid}: {error}")
        if wrong:
            raise pytest.UsageError("\n".join(wrong))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember which test runs, and skip a marked one if there is nothing to judge."""
    item.config.stash[_current] = item
    if item.get_closest_marker(MARK) is not None:
        reports_of(item.config).prepare(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Compare what a marked test obtained with its mark, once the test itself has passed."""
    __tracebackhide__ = True
    outcome = yield
    if item.get_closest_marker(MARK) is not None:
        reports_of(item.config).judge(item)
    return outcome


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the verdicts that tests obtained, those of xdist's workers too.

    A test may ask for more than ACTIVE does: where it failed, its line says so. Under torchrun
    every rank lists its own to the same terminal, so each line begins with the rank.
    """
    reports = [
        report for reports in terminalreporter.stats.values() for report in reports
    ]
    failed = {report.nodeid for report in reports if getattr(report, "failed", False)}
    lines = {
        f"{'FAILED ' if report.nodeid in failed else ''}{value}  {report.nodeid}"
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "fp8verify"
    }
    if lines:
        terminalreporter.section("fp8verify")
        rank = _rank_of_many()
        for line in sorted(lines):
            terminalreporter.line(f"{rank}{line}")


def _rank_of_many() -> str:
    """Return "[rank1] " in one of several processes that torchrun started, else nothing."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return ""
    rank = os.environ.get("RANK", "")
    return f"[rank{rank}] " if rank.isdecimal() else ""


def reports_of(config: pytest.Config) -> SessionReports:
    """Return what keeps the reports of this session, made when it is first needed."""
    if _session not in config.stash:
        from fp8verify.pytest_plugin.session_reports import SessionReports

        config.stash[_session] = SessionReports(
            config, lambda: config.stash.get(_current, None)
        )
    return config.stash[_session]


@pytest.fixture(scope="session")
def fp8_report(pytestconfig: pytest.Config) -> Callable[..., Report]:
    """Inspect a trace, a folder of ranks or a capture of `fp8verify run`, and return its report.

    `fp8_report(path=None, *, log=None, min_share=None)`; without a path, that of --fp8-trace.
    """
    return reports_of(pytestconfig).inspect


@pytest.fixture
def fp8_run(pytestconfig: pytest.Config, tmp_path: Path) -> Callable[..., Report]:
    """Run a training script in a subprocess, record a window of its steps, return the report.

    `fp8_run(*command, steps="2-4", timeout=900.0, min_share=None)`. Skips where no NVIDIA GPU or no
    torch is, or fails with --fp8-require-gpu. A script that fails fails the test.
    """
    from fp8verify.pytest_plugin import session_reports

    reason = session_reports.why_not()
    if reason is not None:
        reports_of(pytestconfig).skip(reason)

    def run(
        *command: str | Path,
        steps: str = "2-4",
        timeout: float = 900.0,
        min_share: float | str | None = None,
    ) -> Report:
        __tracebackhide__ = True
        reports = reports_of(pytestconfig)
        share = reports.min_share if min_share is None else min_share
        return reports.note(
            session_reports.run(command, tmp_path, steps, timeout, share)
        )

    return run
