"""The HTML page: its head says what ran, and its links lead to places that exist."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from fp8verify import Report
from fp8verify.report.forms import render
from tests.captures import CAPTURES, report_of


def links_of(page: str) -> set[str]:
    return set(re.findall(r'href="#([^"]+)"', page))


def head_of(page: str) -> dict[str, str]:
    (facts,) = re.findall(
        r'<dl class="notes run-facts"[^>]*>(.*?)</dl>', page, re.DOTALL
    )
    rows = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", facts, re.DOTALL)
    return {name: re.sub(r"<[^>]+>", "", text) for name, text in rows}


@pytest.mark.parametrize("name", CAPTURES)
def test_each_link_leads_to_one_place(name: str) -> None:
    report = report_of(name)
    page = render(report, "html")
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert links_of(page) <= set(ids)
    for finding in report.findings:
        assert f'id="finding-{finding.code}"' in page
        assert f'href="#about-finding-{finding.code}"' in page


@pytest.mark.parametrize(
    ("name", "anchor"),
    [
        ("fp8_one_step_bf16", "row-1"),
        ("fp8_pinned_layer", "row-1"),
        ("ddp_one_rank_bf16", "ranks"),
        ("fp8_nsys", "gpu"),
    ],
)
def test_a_finding_links_to_its_place_in_the_picture(name: str, anchor: str) -> None:
    page = render(report_of(name), "html")
    findings = page.split('<ul class="findings">')[1].split("</ul>\n</section>")[0]
    assert f'<a href="#{anchor}">' in findings


def test_the_head_says_when_and_on_what_a_capture_ran() -> None:
    head = head_of(render(report_of("fp8_one_step_bf16"), "html"))
    assert head["recorded"] == "2026-11-23 23:31:41 UTC"
    assert head["GPU"] == "NVIDIA H200, compute capability 9.0"
    assert "torch 2.11.0+cu130" in head["software"]
    assert "command" not in head


def test_what_is_not_known_is_left_out_of_the_head() -> None:
    assert "recorded" not in head_of(render(report_of("fp8_nsys"), "html"))


def test_a_command_is_text_in_the_head() -> None:
    report: Report = report_of("fp8_compiled")
    command = "train.py --name=<script>alert(1)</script>"
    environment = replace(report.environment, command=command)
    page = render(replace(report, environment=environment), "html")
    assert "&lt;script&gt;alert(1)" in head_of(page)["command"]
    assert "<script>alert" not in page


@pytest.mark.parametrize("name", ["bf16_torchtitan_auto_filter", "fp8_emulated"])
def test_where_fp8_was_claimed_no_cell_says_that_nothing_expects_it(name: str) -> None:
    page = render(report_of(name), "html")
    assert "nothing expects FP8" not in page
    assert "nothing says that it should run in FP8" not in page
    assert "nothing expects FP8" in render(report_of("bf16_compiled"), "html")
