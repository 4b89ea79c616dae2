"""Pages whose output is written by a machine."""

from __future__ import annotations

from scripts.docs.blocks import rewritten


def test_an_ellipsis_leaves_out_what_it_left_out_before() -> None:
    page = "<!-- output -->\n```console\n$ printf 'a\\nb\\nc\\nd\\n'\nold\n…\nold\n$ echo x\n```\n"
    assert rewritten(page, {}) == page.replace("old\n…\nold", "a\n…\nd").replace(
        "x\n```", "x\nx\n```"
    )


def test_what_is_between_two_ellipses_is_found_by_its_first_words() -> None:
    page = "<!-- output -->\n```console\n$ printf 'a\\nok  b 2\\nc\\nd\\n'\n…\nok b 1\n…\nold\n```\n"
    assert rewritten(page, {}) == page.replace("ok b 1", "ok  b 2").replace(
        "\nold\n", "\nd\n"
    )
