"""The HTML page in a real browser: it renders, sorts, filters, and what is text stays text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import fp8verify
from fp8verify import Report, inspect
from fp8verify.report.forms import render
from tests.browser import Page, browser, find_browser
from tests.golden.expectations import KNOWN, ROOT
from tests.golden.reports import report_of
from tests.hand_built import BF16, BF16_KERNEL, TraceBuilder

EVIL = "nvjet_sm90_tst_</script><img src=x onerror=document.title='owned'><b>&amp;\"'`${1}{{7*7}}"
MAX_BYTES = 3_000_000

# WCAG 2.1, 1.4.3: 4.5 to 1 between text and what lies behind it.
FAINT_TEXT = """(() => {
  const rgb = (text) => [...text.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
  const light = (c) => {
    const f = c.slice(0, 3).map((v) => v / 255)
      .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2];
  };
  const found = [];
  for (const el of document.querySelectorAll("body *")) {
    const texts = [...el.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!texts || el.closest("script, style") || !el.getClientRects().length) continue;
    const style = getComputedStyle(el);
    const ink = light(rgb(el instanceof SVGElement ? style.fill : style.color));
    let up = el, back = [255, 255, 255, 1];
    for (; up; up = up.parentElement) {
      const c = rgb(getComputedStyle(up).backgroundColor);
      if (c[3] > 0) { back = c; break; }
    }
    const [a, b] = [ink, light(back)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) found.push(el.textContent.slice(0, 40));
  }
  return found;
})()"""
REPORTS = ["fp8_compiled", "ddp_one_rank_bf16", "fp8_accelerate", "fp8_emulated"]
ROWS = "[...document.querySelectorAll('#kernel-table tbody tr')]"
MILLIS = f"{ROWS}.map(r => +r.cells[0].dataset.v)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if find_browser() is None:
        pytest.skip("no Chromium here")
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return pages of reports, of a comparison and of a table of runs."""
    folder = tmp_path_factory.mktemp("pages")
    found = {name: report_of(name).to_html() for name in REPORTS}
    found["compare"] = fp8verify.compare(ROOT / "bf16_width4096", ROOT / "fp8_width4096").to_html()
    found["runs"] = fp8verify.table(ROOT / "fp8_compiled", ROOT / "ddp_one_rank_bf16").to_html()
    for name, text in found.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in found}


def _write(report: Report, folder: Path) -> Path:
    path = folder / "report.html"
    path.write_text(render(report, "html"), encoding="utf-8")
    return path


def _evil(folder: Path) -> Report:
    build = TraceBuilder().launch(BF16_KERNEL, EVIL, types=(BF16, BF16)).launch(EVIL, EVIL, us=1)
    build.launch(BF16_KERNEL, types=(BF16, BF16), us=90, backward=True)
    log = folder / "train.log"
    log.write_text("Float8 training active with recipe rowwise\n")
    report = inspect(build.write(folder / "trace.json"), log=log)
    claims = tuple(replace(claim, text=EVIL, framework=EVIL) for claim in report.claims)
    return replace(report, reason=EVIL, notes=(EVIL,), claims=claims)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_capture_renders_without_a_complaint(name: str, page: Page, tmp_path: Path) -> None:
    page.complaints.clear()
    report = report_of(name)
    page.open(_write(report, tmp_path))
    assert page.evaluate("document.querySelector('.badge').textContent") == report.verdict.value
    assert page.evaluate("document.querySelectorAll('#kernel-table tbody tr').length") > 0
    assert page.evaluate("document.querySelectorAll('svg.timeline path').length") > 0
    assert page.complaints == []


def test_markup_in_names_and_log_lines_stays_text(page: Page, tmp_path: Path) -> None:
    page.complaints.clear()
    page.open(_write(_evil(tmp_path), tmp_path))
    assert page.evaluate("document.title").startswith("FP8 CONTRADICTED: ")
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("document.querySelector('.reason').textContent").strip() == f"{EVIL}."
    assert EVIL in page.evaluate("document.querySelector('#kernel-table').textContent")
    assert page.complaints == []


def test_a_head_of_the_table_sorts_by_mouse_and_keyboard(
    page: Page, pages: dict[str, Path]
) -> None:
    page.open(pages["fp8_compiled"])
    button = "document.querySelector('#kernel-table thead button')"
    page.evaluate(f"{button}.click()")
    falling = page.evaluate(MILLIS)
    assert falling == sorted(falling, reverse=True)
    page.evaluate(f"{button}.focus()")
    page.press("Enter", 13, "\r")
    rising = page.evaluate(MILLIS)
    assert rising == sorted(rising) != falling
    assert page.evaluate("document.querySelector('#kernel-table th').ariaSort") == "ascending"
    page.evaluate("document.querySelectorAll('#kernel-table thead button')[2].click()")
    cells = (
        "[...document.querySelectorAll('#kernel-table tbody tr')].map(r => r.cells[2].innerText)"
    )
    words = page.evaluate(cells)
    assert words == sorted(words, key=str.lower)


def test_the_kernels_can_be_searched(page: Page, tmp_path: Path) -> None:
    page.open(_write(report_of("fp8_rowwise_gw_hp"), tmp_path))
    shown = f"{ROWS}.filter(r => !r.hidden).length"
    everything = page.evaluate(shown)
    field = "document.getElementById('find')"
    page.evaluate(f"{field}.value = 'nvjet wgrad'; {field}.dispatchEvent(new Event('input'))")
    some = page.evaluate(shown)
    assert 0 < some < everything
    assert (
        page.evaluate("document.getElementById('count').textContent")
        == f"{some} of {everything} kinds"
    )


def test_every_picture_and_scrolling_region_has_a_name(page: Page, pages: dict[str, Path]) -> None:
    page.open(pages["ddp_one_rank_bf16"])
    unnamed = (
        "[...document.querySelectorAll('[role=img], [role=region], input, button')].filter(e => "
        "!(e.ariaLabel || e.textContent.trim() || (e.labels && e.labels[0].innerText.trim())))"
    )
    assert page.evaluate(f"{unnamed}.length") == 0


def _cluster() -> Report:
    """Eight ranks of 100,000 kernels each, in more kinds and longer names than real ones have."""
    report = report_of("fp8_compiled")
    rank = report.ranks[0]
    rows = tuple(
        replace(row, name=f"{row.name}<{'void cutlass::gemm, ' * 200}{place}>", kernels=100)
        for place, row in enumerate((rank.kernels * 20)[:1000])
    )
    ranks = tuple(replace(rank, rank=number, kernels=rows) for number in range(8))
    return replace(report, ranks=ranks)


def test_a_page_of_eight_large_ranks_stays_small_and_usable(page: Page, tmp_path: Path) -> None:
    path = _write(_cluster(), tmp_path)
    assert path.stat().st_size <= MAX_BYTES
    page.open(path)
    page.evaluate("document.querySelector('#kernel-table thead button').click()")
    assert len(page.evaluate(MILLIS)) > 100


def test_a_report_without_kernels_has_a_page_too(page: Page, tmp_path: Path) -> None:
    trace = TraceBuilder().launch(BF16_KERNEL)
    trace.events = [event for event in trace.events if event["cat"] != "kernel"]
    page.complaints.clear()
    page.open(_write(inspect(trace.write(tmp_path / "trace.json")), tmp_path))
    assert page.evaluate("document.querySelector('.badge').textContent") == "INCONCLUSIVE"
    assert page.complaints == []


def test_the_page_runs_its_own_script_only() -> None:
    text = render(report_of("fp8_compiled"), "html")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]


# -- pictures -----------------------------------------------------------------------------------


def test_bars_of_gpu_time_are_on_the_scale_of_all_gpu_time(page: Page, tmp_path: Path) -> None:
    report = report_of("fp8_compiled")
    page.open(_write(report, tmp_path))
    width = page.evaluate(
        "+document.querySelector('[aria-labelledby=gpu] .bars rect:not(.track)')"
        ".getAttribute('width')"
    )
    share = report.gpu_time_us["gemm"] / sum(report.gpu_time_us.values())
    assert width == pytest.approx(1000 * share, abs=1)


def test_the_gain_stands_beside_the_verdict(page: Page, pages: dict[str, Path]) -> None:
    page.open(pages["fp8_accelerate"])
    said = page.evaluate("document.querySelector('header .worth').textContent")
    assert said.startswith("Does it pay? likely not: kernels alone about 0.5")


def test_pointing_at_the_timeline_names_its_kernels(page: Page, tmp_path: Path) -> None:
    report = report_of("fp8_compiled")
    page.open(_write(report, tmp_path), height=4000)
    edge = page.evaluate("(r => [r.left, r.top, r.width, r.height])"
                         "(document.querySelector('.hover').getBoundingClientRect())")  # fmt: skip
    x, y = edge[0] + edge[2] * 100.5 / 240, edge[1] + edge[3] / 2
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    said = page.evaluate("document.getElementById('tip').textContent")
    found = report.ranks[0].timelines[0]
    assert all(found.names[place] in said for place, _ in found.longest[100])
    assert "step 11" in said
    page.press("Escape", 27)
    assert page.evaluate("document.getElementById('tip').hidden")


def test_the_keyboard_walks_the_timeline(page: Page, pages: dict[str, Path]) -> None:
    page.open(pages["fp8_compiled"], height=4000)
    page.evaluate("document.querySelector('.hover').focus()")
    for key, code in (("End", 35), ("ArrowLeft", 37), ("PageDown", 34)):
        page.press(key, code)
    box = "document.querySelector('.hover')"
    assert page.evaluate(f"{box}.ariaValueNow") == str(239 - 1 - 24)
    assert page.evaluate(f"{box}.ariaValueText") == page.evaluate(
        "document.getElementById('tip').textContent"
    )


def test_a_bar_says_its_figures_when_pointed_at(page: Page, pages: dict[str, Path]) -> None:
    page.open(pages["ddp_one_rank_bf16"], height=4000)
    part = "document.querySelector('[data-tip^=\"fprop, bf16\"]')"
    middle = "(r => [r.left + r.width / 2, r.top + 3])"
    x, y = page.evaluate(f"{middle}({part}.getBoundingClientRect())")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    said = page.evaluate("document.getElementById('tip').textContent")
    assert said == "fprop, bf16: 5.65 ms, 77.8%"


def test_every_step_of_every_rank_is_labelled(page: Page, tmp_path: Path) -> None:
    report = report_of("ddp_one_rank_bf16")
    page.open(_write(report, tmp_path))
    rows = "[...document.querySelectorAll('[aria-labelledby=steps] tbody tr')]"
    shown = page.evaluate(f"{rows}.map(r => [r.cells[0].innerText, +r.cells[1].innerText])")
    assert shown == [[f"rank {rank.rank}", s.step] for rank in report.ranks for s in rank.steps]


def test_the_table_of_the_layers_has_a_coloured_cell_for_each_pass(
    page: Page, tmp_path: Path
) -> None:
    report = report_of("fp8_layers_compiled")
    named = report.ranks[0].named_layers
    assert named is not None
    page.open(_write(report, tmp_path))
    table = "document.querySelector('[aria-label=\"GEMMs in FP8 by layer and pass\"]')"
    cells = f"[...{table}.querySelectorAll('td.fp8, td.mixed, td.high')]"
    assert page.evaluate(f"{cells}.length") == sum(len(row.legs) for row in named.rows)
    head = f"{cells}.filter(c => c.parentNode.cells[0].textContent === 'head')"
    assert page.evaluate(f"{head}.map(c => c.className)") == ["high"] * 3


@pytest.mark.parametrize("name", ["fp8_compiled", "ddp_one_rank_bf16"])
def test_print_loses_nothing(name: str, page: Page, tmp_path: Path) -> None:
    page.open(_write(report_of(name), tmp_path), width=720)
    page.evaluate("document.getElementById('find').value = 'nvjet'")
    page.evaluate("document.getElementById('find').dispatchEvent(new Event('input'))")
    page.call("Emulation.setEmulatedMedia", media="print")
    hidden = f"{ROWS}.filter(r => r.getClientRects().length === 0).length"
    cut = (
        "[...document.querySelectorAll('.scroll, .tall, .clip, td, th')].filter(e => "
        "e.scrollHeight > e.clientHeight + 1 && getComputedStyle(e).overflowY !== 'visible' || "
        "e.getBoundingClientRect().right > innerWidth + 1).length"
    )
    assert (page.evaluate(hidden), page.evaluate(cut)) == (0, 0)
    page.call("Emulation.setEmulatedMedia", media="")


# -- all pages ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", [*REPORTS, "compare", "runs"])
def test_text_is_legible_a_phone_is_wide_enough_and_no_other_file_is_needed(
    name: str, dark: bool, page: Page, pages: dict[str, Path]
) -> None:
    page.complaints.clear()
    page.requests.clear()
    page.open(pages[name], dark=dark)
    assert page.evaluate(FAINT_TEXT) == []
    page.open(pages[name], width=390, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.complaints == []
    assert set(page.requests) == {pages[name].as_uri()}


def test_the_page_of_a_comparison_shows_both_steps_and_the_losses(
    page: Page, pages: dict[str, Path]
) -> None:
    page.open(pages["compare"])
    assert page.evaluate("document.querySelector('.badge').textContent") == "FASTER · 1.34x"
    sums = (
        "[...document.querySelectorAll('[aria-labelledby=budget] dl svg')].map(s => "
        "[...s.querySelectorAll('rect:not(.track)')]"
        ".reduce((sum, r) => sum + +r.getAttribute('width'), 0))"
    )
    before, after = page.evaluate(sums)
    assert before == pytest.approx(1000, abs=1)
    assert after == pytest.approx(1000 * 43.67 / 58.71, abs=2)
    # The losses, and the gap between them.
    assert page.evaluate("document.querySelectorAll('svg.curve path').length") == 4
