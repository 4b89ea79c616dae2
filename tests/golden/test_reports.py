"""The forms of the report: the text at 80 columns, the JSON against its schema.

The golden texts are rewritten with FP8VERIFY_UPDATE_GOLDENS=1; read the difference before
committing it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import fp8verify
from fp8verify.report.forms import render, to_json
from fp8verify.report.tables import merge_kernels, millis, percent
from fp8verify.report.text import PLAIN_WIDTH
from scripts.schemas import DOCUMENTS, schema
from tests.captures import CAPTURES, report_of, schema_errors
from tests.golden.facts import assert_facts, assert_lines

GOLDENS = Path(__file__).parent / "texts"
# Together they have every part that a report can have: layers by name, ranks, a library's log.
WITH_ALL_PARTS = (
    *(
        "fp8_layers_compiled",
        "fsdp_fp8_all_gather",
        "fp8_blas_log",
        "fp8_nsys",
        "fp8_emulated",
    ),
    *("fp8_megatron_first_last", "bf16_filter_rejects_all", "fp8_one_step_bf16"),
)
IN_FULL = ["fp8_compiled", "ddp_one_rank_bf16"]


@pytest.mark.parametrize(("name", "verbose"), [
    *((name, False) for name in CAPTURES), *((name, True) for name in IN_FULL),
])  # fmt: skip
def test_the_text_is_the_golden_one(name: str, verbose: bool) -> None:
    text = (
        report_of(name)
        .to_text(verbose=verbose)
        .replace(fp8verify.__version__, "VERSION")
    )
    golden = GOLDENS / f"{name}{'.verbose' if verbose else ''}.txt"
    assert_lines(golden, text.splitlines())


@pytest.mark.parametrize("name", WITH_ALL_PARTS)
def test_the_json_keeps_to_its_schema(name: str) -> None:
    assert schema_errors(json.loads(to_json(report_of(name)))) == []


def test_a_report_without_its_verdict_breaks_the_schema() -> None:
    report = json.loads(to_json(report_of("fp8_compiled")))
    del report["verdict"]
    assert schema_errors(report) == ["'verdict' is a required property"]


def test_no_schema_changes_unseen() -> None:
    """A document of the old schema must stay readable: new properties only."""
    kinds: dict[str, dict[str, Any]] = {}
    for document in DOCUMENTS:
        kinds |= schema(document)["$defs"]
    found = {}
    for kind, definition in sorted(kinds.items()):
        required = definition.get("required", ())
        for name, own in definition.get("properties", {}).items():
            holds = {key: own[key] for key in sorted(own.keys() - {"description"})}
            always = " (always)" if name in required else ""
            found[f"{kind}.{name}"] = json.dumps(holds) + always
        if "enum" in definition:
            found[kind] = json.dumps(definition["enum"])
    assert_facts(GOLDENS.parent / "schemas.txt", found)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_property_of_a_schema_is_described(document: str) -> None:
    definitions = schema(document)["$defs"]
    assert all(definition["description"] for definition in definitions.values())
    assert [
        f"{kind}.{name}"
        for kind, definition in definitions.items()
        for name, own in definition.get("properties", {}).items()
        if not own.get("description")
    ] == []


@pytest.mark.parametrize("width", [40, PLAIN_WIDTH])
@pytest.mark.parametrize("name", CAPTURES)
def test_no_figure_is_lost_where_there_is_little_room(name: str, width: int) -> None:
    report = report_of(name)
    said = " ".join(report.to_text(width=width, verbose=True).split())
    for row in report.layer_gemm.rows:
        assert millis(row.time_us) in said
        assert percent(row.share) in said
    for leg in report.legs:
        assert all(millis(us) in said for us in leg.time_us.values() if us)
    for rank in report.ranks[:8]:
        assert len(report.ranks) == 1 or millis(sum(rank.gemm.time_us.values())) in said


@pytest.mark.parametrize("name", IN_FULL)
def test_nothing_is_cut_for_those_who_ask_for_all(name: str) -> None:
    report = report_of(name)
    text = "".join(report.to_text(verbose=True, width=60).split())
    assert "…" not in text
    names = [row.name for row in merge_kernels(report) if row.role.is_gemm]
    assert all(name.replace(" ", "") in text for name in names)


def test_colour_only_on_a_terminal_and_not_with_no_color(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = report_of("fp8_compiled")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" in render(report, "text", terminal=True)
    assert "\x1b[" not in report.to_text()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in render(report, "text", terminal=True)


def test_precisions_and_verdicts_have_colors_within_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    fp8, bf16 = report_of("fp8_compiled"), report_of("bf16_compiled")
    text = render(fp8, "text", terminal=True, verbose=True, width=100)
    assert "\x1b[32mfp8" in text
    runs = render(fp8verify.table(fp8, bf16), "text", terminal=True, width=120)
    assert "\x1b[1;32mACTIVE" in runs
    assert "\x1b[1;31mINACTIVE" in runs


def test_the_page_has_a_bar_for_each_kind_of_gpu_time() -> None:
    report = report_of("fp8_compiled")
    page = render(report, "html")
    (section,) = re.findall(r'aria-labelledby="gpu">(.*?)</section>', page, re.DOTALL)
    labels = re.findall(r"<dt>([a-z]+)</dt>", section)
    by_time = sorted(report.gpu_time_us.items(), key=lambda item: -item[1])
    assert labels == [kind for kind, us in by_time if us]
    assert 'class="fp8"' in section
