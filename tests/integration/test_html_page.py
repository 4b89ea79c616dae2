"""The HTML page in a real browser: it renders, sorts, filters, and what is text stays text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import fp8verify
from fp8verify import Report, inspect
from fp8verify.report.forms import render
from fp8verify.report.tables import layer_groups
from tests.browser import Focus, Keyboard, Visit, browse_all, find_browser, keyboard
from tests.captures import ROOT, report_of
from tests.hand_built import BF16, BF16_KERNEL, TraceBuilder, present

needs_browser = pytest.mark.skipif(find_browser() is None, reason="no Chromium here")
EVIL = "nvjet_sm90_tst_</script><img src=x onerror=document.title='owned'><b>&amp;\"'`${1}{{7*7}}"
MAX_BYTES = 3_000_000
# The width of a phone, in pixels.
PHONE = 390

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
    const style = window.getComputedStyle(el);
    const ink = light(rgb(el instanceof window.SVGElement ? style.fill : style.color));
    let up = el, back = [255, 255, 255, 1];
    for (; up; up = up.parentElement) {
      const c = rgb(window.getComputedStyle(up).backgroundColor);
      if (c[3] > 0) { back = c; break; }
    }
    const [a, b] = [ink, light(back)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) found.push(el.textContent.slice(0, 40));
  }
  return found;
})()"""
REPORTS = [
    "fp8_compiled",
    "ddp_one_rank_bf16",
    "fp8_accelerate",
    "fp8_emulated",
    "fp8_nsys",
]
SHOWN = ["fp8_layers_compiled", "fp8_te_recompute_bf16"]
ROWS = "[...document.querySelectorAll('#kernel-table tbody tr')]"
MILLIS = f"{ROWS}.map(r => +r.cells[0].dataset.v)"
FIND = """const find = (text) => {
  const field = document.getElementById('find');
  field.value = text;
  field.dispatchEvent(new window.Event('input'));
};"""
TIP = "document.getElementById('tip')"
# By name a page of `pages`, and a script that is run there; each stands beside its test.
SCRIPTS: dict[str, tuple[str, str]] = {}


def returning(*expressions: str, first: str = "") -> str:
    """Return a script that tells what expressions are, after some statements."""
    return f"{first} return [{', '.join(expressions)}];"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return pages of reports, of a comparison and of a table of runs."""
    folder = tmp_path_factory.mktemp("pages")
    found = {name: report_of(name).to_html() for name in [*REPORTS, *SHOWN]}
    found["compare"] = fp8verify.compare(
        ROOT / "bf16_width4096", ROOT / "fp8_width4096"
    ).to_html()
    found["runs"] = fp8verify.table(
        ROOT / "fp8_compiled", ROOT / "ddp_one_rank_bf16"
    ).to_html()
    found["evil"] = _evil(folder)
    found["cluster"] = render(_cluster(), "html")
    for name, text in found.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in found}


def _evil(folder: Path) -> str:
    """Return the page of a report whose names and log lines are markup."""
    build = (
        TraceBuilder()
        .launch(BF16_KERNEL, EVIL, types=(BF16, BF16))
        .launch(EVIL, EVIL, us=1)
    )
    build.launch(BF16_KERNEL, types=(BF16, BF16), us=90, backward=True)
    log = folder / "train.log"
    log.write_text("Float8 training active with recipe rowwise\n")
    report = inspect(build.write(folder / "trace.json"), log=log)
    claims = tuple(replace(claim, text=EVIL, framework=EVIL) for claim in report.claims)
    return render(replace(report, reason=EVIL, notes=(EVIL,), claims=claims), "html")


def _cluster() -> Report:
    """Eight ranks of 100,000 kernels each, in more kinds and longer names than real ones have."""
    report = report_of("fp8_compiled")
    rank = report.ranks[0]
    rows = tuple(
        replace(
            row, name=f"{row.name}<{'void cutlass::gemm, ' * 200}{place}>", kernels=100
        )
        for place, row in enumerate((rank.kernels * 20)[:1000])
    )
    ranks = tuple(replace(rank, rank=number, kernels=rows) for number in range(8))
    return replace(report, ranks=ranks)


@pytest.fixture(scope="module")
def told(pages: dict[str, Path]) -> dict[str, Any]:
    """Return by its name what each script of `SCRIPTS` tells of its page.

    One browser opens them all, since to start one takes longer than all of them.
    """
    visits = []
    for name, (page, script) in SCRIPTS.items():
        visit = Visit(pages[page], script)
        if name == "timeline":
            visit = visit._replace(height=4000)
        if name == "narrow":
            visit = visit._replace(width=PHONE)
        visits.append(visit)
    values, complaints = browse_all(visits)
    assert complaints == []
    for value in values:
        assert isinstance(value, list), value
    return dict(zip(SCRIPTS, values, strict=True))


SCRIPTS["markup"] = (
    "evil",
    returning(
        "document.title",
        "document.querySelectorAll('img').length",
        "document.querySelector('.reason').textContent.trim()",
        "document.querySelector('#kernel-table').textContent",
    ),
)


@needs_browser
def test_markup_in_names_and_log_lines_stays_text(told: dict[str, Any]) -> None:
    title, images, reason, table = told["markup"]
    assert title.startswith("FP8 CONTRADICTED: ")
    assert (images, reason) == (0, f"{EVIL}.")
    assert EVIL in table


SORT = "document.querySelectorAll('#kernel-table thead button')[{}].click();"
SCRIPTS["table"] = (
    "fp8_compiled",
    returning(
        "falling",
        "rising",
        "order",
        f"{ROWS}.map(r => r.cells[2].textContent.trim())",
        f"{ROWS}.filter(r => !r.hidden).length",
        "document.getElementById('count').textContent",
        first=f"""
            const falling = (() => {{ {SORT.format(0)} return {MILLIS}; }})();
            const rising = (() => {{ {SORT.format(0)} return {MILLIS}; }})();
            const order = document.querySelector('#kernel-table th').ariaSort;
            {SORT.format(2)}
            {FIND}
            find('nvjet wgrad');
        """,
    ),
)


@needs_browser
def test_the_table_of_kernels_is_sorted_and_searched(told: dict[str, Any]) -> None:
    falling, rising, order, words, some, count = told["table"]
    assert falling == sorted(falling, reverse=True)
    assert (rising, order) == (sorted(rising), "ascending")
    assert falling != rising
    assert words == sorted(words, key=str.lower)
    assert 0 < some < len(rising)
    assert count == f"{some} of {len(rising)} kinds"


UNNAMED = (
    "[...document.querySelectorAll('[role=img], [role=region], input, button')].filter(e => "
    "!(e.ariaLabel || e.textContent.trim() || (e.labels && e.labels[0].innerText.trim())))"
)
SCRIPTS["names"] = ("ddp_one_rank_bf16", returning(f"{UNNAMED}.length"))


@needs_browser
def test_every_picture_and_scrolling_region_has_a_name(told: dict[str, Any]) -> None:
    assert told["names"] == [0]


SCRIPTS["cluster"] = (
    "cluster",
    returning(f"{ROWS}.length > 100", first=SORT.format(0)),
)


@needs_browser
def test_a_page_of_eight_large_ranks_stays_small_and_usable(
    pages: dict[str, Path], told: dict[str, Any]
) -> None:
    assert pages["cluster"].stat().st_size <= MAX_BYTES
    assert told["cluster"] == [True]


def test_the_page_runs_its_own_script_only() -> None:
    text = render(report_of("fp8_compiled"), "html")
    policy = present(re.search(r'Content-Security-Policy" content="([^"]*)"', text))
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]


def test_a_row_of_numerics_begins_with_what_it_is_of() -> None:
    report = inspect(ROOT.parent / "examples" / "data" / "cpu_numerics_outlier")
    (table,) = re.findall(
        r'(?s)<section aria-labelledby="numerics">.*?</section>', render(report, "html")
    )
    assert re.findall(r'<button type="button">([^<]+)', table)[:2] == [
        "layer",
        "tensor",
    ]
    assert re.findall(r"<tr><td[^>]*>([^<]+)</td><td[^>]*>([^<]+)", table)[:2] == [
        ("layers.0.up", "input"),
        ("layers.0.up", "weight"),
    ]


def test_names_of_steps_do_not_collide_on_a_phone() -> None:
    report = report_of("fp8_compiled")
    rank = report.ranks[0]
    crowded = replace(
        rank.timelines[0], steps=tuple((99 + n, 110.0 * n * n, 0.0) for n in range(24))
    )
    text = render(replace(report, ranks=(replace(rank, timelines=(crowded,)),)), "html")
    found = re.findall(r'<text x="([\d.]+)%" y="12">([^<]+)<', text)
    begins = [float(x) for x, _ in found]
    ends = [x + 2 * len(name) for x, (_, name) in zip(begins, found, strict=True)]
    assert len(found) > 3
    assert all(
        end < begin for end, begin in zip(ends, [*begins[1:], 100.1], strict=True)
    )


SCRIPTS["timeline"] = (
    "fp8_compiled",
    returning(
        "said",
        "hidden",
        "box.ariaValueNow",
        "box.ariaValueText",
        f"{TIP}.textContent",
        first=f"""
            const box = document.querySelector('.hover'), edge = box.getBoundingClientRect();
            const at = {{bubbles: true, clientX: edge.left + edge.width * 100.5 / 240,
                        clientY: edge.top + edge.height / 2}};
            const press = (key) => document.activeElement.dispatchEvent(
                new window.KeyboardEvent('keydown', {{key, bubbles: true}}));
            for (const kind of ['pointermove', 'mousemove', 'pointerover', 'mouseover'])
                box.dispatchEvent(new window.PointerEvent(kind, at));
            const said = {TIP}.textContent;
            press('Escape');
            const hidden = {TIP}.hidden;
            box.focus();
            ['End', 'ArrowLeft', 'PageDown'].forEach(press);
        """,
    ),
)


@needs_browser
def test_the_timeline_tells_its_times_to_mouse_and_keyboard(
    told: dict[str, Any],
) -> None:
    said, hidden, place, spoken, tip = told["timeline"]
    assert "FP8 GEMMs: " in said
    assert "step 11" in said
    assert hidden
    assert (place, spoken) == (str(239 - 1 - 24), tip)


BAR = "document.querySelector('[aria-labelledby=legs] .bars rect:not(.track)')"
SCRIPTS["pictures"] = (
    "fp8_compiled",
    returning(
        f"+{BAR}.getAttribute('width')",
        "document.querySelectorAll('svg.timeline path').length",
    ),
)
LAYERS = "document.querySelector('[aria-label=\"GEMMs in FP8 by layer and leg\"]')"
CELLS = f"[...{LAYERS}.querySelectorAll('td.fp8, td.mixed, td.high')]"
HEAD = f"{CELLS}.filter(c => c.parentNode.cells[0].textContent === 'head')"
SCRIPTS["layers"] = (
    "fp8_layers_compiled",
    returning(f"{CELLS}.length", f"{HEAD}.map(c => c.className)"),
)


@needs_browser
def test_pictures_have_the_figures_of_the_report(told: dict[str, Any]) -> None:
    report = report_of("fp8_compiled")
    width, paths = told["pictures"]
    fprop, *others = (sum(leg.time_us.values()) for leg in report.legs)
    assert width == pytest.approx(1000 * fprop / max(fprop, *others), abs=1)
    assert paths > 0

    named = present(report_of("fp8_layers_compiled").ranks[0].named_layers)
    groups = layer_groups(named)
    cells = sum(len(alike[0].legs) for _, alike in groups)
    assert told["layers"] == [cells, ["high"] * 3]


SCRIPTS["comparison"] = (
    "compare",
    returning(
        "[...document.querySelectorAll('[aria-labelledby=proof] dl svg')].map(s => "
        "[...s.querySelectorAll('rect:not(.track)')]"
        ".reduce((sum, r) => sum + +r.getAttribute('width'), 0))",
        "document.querySelectorAll('svg.curve path').length",
    ),
)


@needs_browser
def test_the_page_of_a_comparison_shows_both_steps_and_the_losses(
    told: dict[str, Any],
) -> None:
    (before, after), lines = told["comparison"]
    assert before == pytest.approx(1000, abs=1)
    assert after == pytest.approx(1000 * 43.67 / 58.71, abs=2)
    assert lines == 4  # the losses, and the gap between them


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_is_legible_and_a_phone_is_wide_enough(
    dark: bool, pages: dict[str, Path]
) -> None:
    names = [*REPORTS, "compare", "runs"]
    badge = "(document.querySelector('.badge') || {textContent: ''}).textContent"
    width = "document.documentElement.scrollWidth"
    on_screens = [
        Visit(pages[name], f"return [{FAINT_TEXT}, {badge}];") for name in names
    ]
    on_phones = [Visit(pages[name], f"return {width};", width=PHONE) for name in names]
    values, complaints = browse_all([*on_screens, *on_phones], dark=dark)
    assert complaints == []
    seen = dict(zip(names, values, strict=False))
    assert {name: faint for name, (faint, _) in seen.items() if faint} == {}
    for name in REPORTS:
        assert seen[name][1].startswith(report_of(name).verdict.value)
    assert dict(zip(names, values[len(names) :], strict=True)) == dict.fromkeys(
        names, PHONE
    )


SCRIPTS["finding"] = (
    "ddp_one_rank_bf16",
    returning(
        "before",
        "about.open",
        "about.querySelectorAll('pre code').length",
        "document.getElementById(place.hash.slice(1)).className",
        "[code, place].map((link) => link.tabIndex)",
        first="""
            const code = document.querySelector('.findings code a');
            const about = document.getElementById(code.hash.slice(1));
            const before = about.open;
            code.click();
            window.dispatchEvent(new window.Event('hashchange'));  // comes later by itself
            const place = document.querySelector('.findings .where a');
            place.click();
        """,
    ),
)


@needs_browser
def test_a_finding_leads_to_its_documentation_and_to_its_place(
    told: dict[str, Any],
) -> None:
    before, after, code, place, keys = told["finding"]
    assert (before, after) == (False, True)
    assert code >= 1
    assert place == "short-of"
    assert keys == [0, 0]


@needs_browser
def test_everything_is_reached_and_used_by_the_keyboard(
    pages: dict[str, Path],
) -> None:
    with keyboard() as keys:
        keys.open(pages["ddp_one_rank_bf16"], width=PHONE)
        stops = _opened_by_keys(keys)
        folded = keys.tell("document.querySelectorAll('details').length")
        links = keys.tell("document.querySelectorAll('a[href]').length")
        keys.open(pages["ddp_one_rank_bf16"])
        keys.press("Tab")
        keys.press("Enter")
        after_skip = keys.press("Tab")
    tags = [stop.tag for stop in stops]
    assert stops[0].name == "Skip to the figures"
    assert (tags.count("SUMMARY"), tags.count("A")) == (folded, links)
    assert folded > 5
    assert [stop for stop in stops if not (stop.marked and stop.shown)] == []
    assert after_skip.name.startswith("Precision of each layer's GEMMs")


def _opened_by_keys(keys: Keyboard) -> list[Focus]:
    """Press Tab from the first stop of a page past its last; unfold and fold what is folded."""
    is_open = "document.activeElement.parentNode.open"
    stops: list[Focus] = []
    while (stop := keys.press("Tab")).tag != "BODY":
        stops.append(stop)
        assert len(stops) < 500, "a trap"
        if stop.tag == "SUMMARY":
            keys.press("Enter")
            assert keys.tell(is_open), stop
            keys.press("Enter")
            assert not keys.tell(is_open), stop
    return stops


SCRIPTS["narrow"] = (
    "fp8_te_recompute_bf16",
    returning(
        "document.documentElement.scrollWidth",
        "Math.min(...[...document.querySelectorAll('svg.cells')].map("
        "s => s.getBoundingClientRect().width / s.querySelectorAll('.cell').length))",
        "document.querySelector('.axis-name').textContent",
    ),
)


@needs_browser
def test_the_marks_of_the_ledger_have_room_on_a_phone(told: dict[str, Any]) -> None:
    page, cell, axis = told["narrow"]
    assert page == PHONE
    assert cell >= 11
    assert axis == "step"
