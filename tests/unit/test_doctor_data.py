"""The tables of the doctor: every code is explained, and the page says what they say."""

from __future__ import annotations

import re

from fp8verify.doctor.frameworks import frameworks
from fp8verify.doctor.rules.keys import schemas
from fp8verify.doctor.tables import rules
from scripts.docs.doctor_codes import doctor_codes, examples
from scripts.truth_of_captures import ROOT

PACKAGE = ROOT.parent / "fp8verify" / "doctor"
RULES = [r for name in ("rules", "scripts") for found in rules(name).values() for r in found]
ROWS = [rule.fields for rule in RULES]


def test_every_code_is_explained_and_every_explained_code_is_used() -> None:
    text = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    used = set(re.findall(r'code="([a-z0-9-]+)"', text))
    used |= {"torchao-not-installed", "msamp-not-installed"}
    used |= {rule.code for rule in RULES}
    assert used == set(examples()["codes"])


def test_every_row_has_evidence_and_a_remedy() -> None:
    for row in ROWS:
        assert re.search(
            r"\w+#\d+| [0-9a-f]{7,} |torch[ /]|kempnerforge|measured|README|\.py", row["evidence"]
        )
        assert row["remedy"].endswith(".")


def test_every_example_is_of_a_row() -> None:
    assert set(examples()["rules"]) | set(examples()["scripts"]) <= {r.plain for r in RULES}


def test_the_schemas_of_frameworks_are_there() -> None:
    named = {row["schema"] for row in frameworks().values() if "schema" in row}
    assert named | {"accelerate launch"} == set(schemas())
    assert all(re.search(r" [0-9a-f.]{5,7}", schema["source"]) for schema in schemas().values())


def test_the_page_of_the_codes_is_current() -> None:
    assert doctor_codes() in (ROOT.parent / "docs" / "doctor.md").read_text()
