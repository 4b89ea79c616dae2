"""Pages whose output is written by a machine."""

from __future__ import annotations

from scripts.docs.blocks import rewritten


def test_an_ellipsis_leaves_out_what_it_left_out_before() -> None:
    page = "<!-- output -->\n```console\n$ printf 'a\\nb\\nc\\nd\\n'\nold\n…\nold\n$ echo x\n```\n"
    assert rewritten(page, {}) == page.replace("old\n…\nold", "a\n…\nd").replace(
        "x\n```", "x\nx\n```"
    )
