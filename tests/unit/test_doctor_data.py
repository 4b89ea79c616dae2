"""The tables of the doctor: every code is explained, and its page says what they say."""

from __future__ import annotations

import re

import pytest

from fp8verify.logs.failures import failures
from fp8verify.preflight.frameworks import frameworks
from fp8verify.preflight.tables import codes, rules, schemas, table
from scripts.docs.doctor_codes import FOLDER, code_pages, examples
from tests.captures import ROOT

PACKAGE = ROOT.parent / "fp8verify" / "preflight"
RULES = [rule for of_group in rules().values() for rule in of_group]


def test_every_code_is_explained_and_every_explained_code_is_used() -> None:
    text = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    told = table("rules")["said"]
    used = set(re.findall(r'(?:code=|\bCheck\(\s*)"([a-z0-9-]+)"', text))
    used |= {rule.code for rule in RULES} | {key.partition("/")[0] for key in told}
    assert used == set(codes())
    assert {row.check for row in failures()} - {""} <= used
    said = set(re.findall(r'\bsaid\(\s*"([a-z0-9/-]+)"', text))
    assert {key for key in told if "not-installed" not in key} <= said <= {*told}


def test_every_row_has_evidence_and_a_remedy() -> None:
    for rule in RULES:
        assert re.search(
            r"\w+#\d+| [0-9a-f]{7,} |torch[ /]|kempnerforge|measured|README|\.py|modelopt",
            rule.evidence,
        )
        assert rule.remedy.endswith(".")


def test_every_example_is_of_a_row() -> None:
    assert {*examples()["rules"], *examples()["texts"]} <= {
        rule.message for rule in RULES
    }


def test_the_schemas_of_frameworks_are_there() -> None:
    assert {*schemas()} - {*frameworks()} == {"accelerate launch"}
    assert all(
        re.search(r" [0-9a-f.]{5,7}", schema["source"]) for schema in schemas().values()
    )


def test_each_code_has_a_page_with_the_same_headings() -> None:
    pages = code_pages()
    assert {path: path.read_text() for path in FOLDER.glob("*.md")} == pages
    headings = ["What it means", "Why it matters", "Example", "Fix", "Evidence"]
    for path, text in pages.items():
        if path.stem != "index":
            assert re.findall(r"^## (.*)", text, re.MULTILINE) == headings
            assert not re.search(r"<[=@]?[\w*|.-]+>", text)


@pytest.mark.parametrize("code", ["fp8-without-bf16", "param-gather-refused"])
def test_a_fix_is_shown_in_its_direction(code: str) -> None:
    diffs = re.findall(
        r"```diff\n(.*?)```", code_pages()[FOLDER / f"{code}.md"], re.DOTALL
    )
    wanted = "--bf16" if code == "fp8-without-bf16" else "--use-distributed-optimizer"
    assert any(re.search(rf"^\+.*{wanted}", diff, re.MULTILINE) for diff in diffs)
    assert not any(re.search(rf"^-.*{wanted}", diff, re.MULTILINE) for diff in diffs)
