"""A bar on a terminal, and nothing anywhere else."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from fp8verify.pipeline import fleet
from fp8verify.pipeline.fleet import rank_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_is_shown_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    error = io.StringIO()
    monkeypatch.setattr("sys.stderr", error)
    with rank_progress("a.json") as show:
        assert show is None
    assert error.getvalue() == ""


@pytest.mark.parametrize(("total", "shown"), [(12, True), (1, False)])
def test_a_terminal_sees_how_many_ranks_are_read(
    total: int, shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = Terminal()
    monkeypatch.setattr("sys.stderr", error)
    monkeypatch.setenv("TERM", "xterm")
    with rank_progress("a.json") as show:
        assert show is not None
        show(total, total)
    assert (f"{total}/{total}" in error.getvalue()) is shown
    assert "a.json" not in error.getvalue()  # it did not take long
    assert capsys.readouterr().out == ""


def test_what_takes_long_to_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    error = Terminal()
    monkeypatch.setattr("sys.stderr", error)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(fleet, "Timer", lambda _, show, *given: SimpleNamespace(
        start=lambda: show(*given[0], **given[1]), cancel=lambda: None))  # fmt: skip
    with rank_progress("big\x1b.json"):
        pass
    assert "reading big" in error.getvalue()
    assert "\x1b.json" not in error.getvalue()
