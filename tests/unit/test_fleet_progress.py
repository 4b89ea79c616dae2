"""A bar on a terminal, and nothing anywhere else."""

from __future__ import annotations

import io

import pytest

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


def test_a_terminal_sees_what_is_read_and_how_much_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = Terminal()
    monkeypatch.setattr("sys.stderr", error)
    monkeypatch.setenv("TERM", "xterm")
    with rank_progress("big\x1b.json") as show:
        assert show is not None
        show(12, 12)
    assert "reading big" in error.getvalue()
    assert "\x1b.json" not in error.getvalue()
    assert "100%" in error.getvalue()
    assert capsys.readouterr().out == ""
