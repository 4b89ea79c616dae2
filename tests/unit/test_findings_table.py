"""Each finding is made of a row of the table, by a rule that hands over the facts it names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from inspect import getsource, isfunction
from pathlib import Path
from pkgutil import iter_modules
from string import Formatter
from textwrap import dedent

import pytest
from click.testing import CliRunner

import fp8verify
from fp8verify.cli import explain_command
from fp8verify.files import parse_toml
from fp8verify.model.meanings import meanings
from fp8verify.preflight.tables import rules
from fp8verify.verdict import findings
from fp8verify.verdict.findings_table import (
    Case,
    _rows_of,
    finding,
    finding_page,
    findings_table,
)
from tests.captures import report_of
from tests.hand_built import present

PACKAGE = Path(fp8verify.__file__).parent
FIXES = PACKAGE / "verdict" / "fixes.md"
NOT_FACTS = {"ranks", "layers", "gpu_share", "holds", "when"}


# What makes findings; the others hand facts on to `finding`.
MAKERS = {"finding", "told", "accuse", "Rule"}
BY_CONDITION = {"optional", "first_said"}
HAVE_FACTS = {"finding", "told"}
HELPERS = {"accuse", "by_rules"}  # they yield findings for rules


@cache
def calls() -> list[tuple[str, ast.Call]]:
    """Return each place of the package that names a finding, and its call."""
    found: list[tuple[str, ast.Call]] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if any(f"{maker}(" in text for maker in MAKERS):
            found.extend(calls_in(path, ast.parse(text)))
    return found


def calls_in(path: Path, tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yield each place of a file that names a finding, and its call."""
    assigned = dict(assignments(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in MAKERS:
            for code in codes_in(node.args[0], assigned):
                rest = [chosen(argument, assigned) for argument in node.args[1:]]
                named = ast.Call(node.func, [code, *rest], node.keywords)
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", named


def assignments(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names of a file and what they are set to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            yield ast.unparse(node.target), node.value
        elif isinstance(node, ast.Assign):
            yield ast.unparse(node.targets[0]), node.value


def codes_in(
    node: ast.expr, assigned: Mapping[str, ast.expr]
) -> Iterator[ast.Constant]:
    """Yield the codes that an argument can be: itself, or any of a table in the same file."""
    if isinstance(node, ast.Constant):
        yield node
    elif isinstance(node, ast.Subscript):
        table = assigned.get(ast.unparse(node.value))
        values = table.values if isinstance(table, ast.Dict) else []
        for value in values:
            yield from codes_in(value, assigned)


def chosen(node: ast.expr, assigned: Mapping[str, ast.expr]) -> ast.expr:
    """Return the cases that an argument can be: those of a condition, or of rows of a table."""
    value = assigned.get(ast.unparse(node), node)
    maker = getattr(value, "func", None)
    if isinstance(value, ast.Call) and getattr(maker, "id", "") in BY_CONDITION:
        rows = assigned.get(ast.unparse(value.args[0]), value.args[0])
        return ast.List([rows, ast.Constant("")])
    return value if isinstance(value, ast.IfExp) else node


def cases_in(node: ast.expr, row: Mapping[str, Case]) -> set[str]:
    """Return what an argument can be; a variable stands for the cases with the code's message."""
    if isinstance(node, (ast.IfExp, ast.List)):
        found = (part for part in ast.walk(node) if isinstance(part, ast.Constant))
        return {str(constant.value) for constant in found} & set(row)
    if isinstance(node, ast.Constant):
        return {str(node.value)} & set(row)
    return {case for case, said in row.items() if said.message == row[""].message}


def cases_of(call: ast.Call) -> dict[str, Case]:
    """Return the rows of the table that a call can ask for."""
    row = findings_table()[ast.literal_eval(call.args[0])]
    if getattr(call.func, "id", "") in HAVE_FACTS:
        parts = call.args[1:2]
    else:
        parts = [arg for arg in call.args[1:] if isinstance(arg, ast.Constant)]
        parts += [word.value for word in call.keywords if word.arg == "case"]
    names = {name for part in parts for name in cases_in(part, row)}
    return {name: row[name] for name in names or {""}}


def named_in(case: Case) -> set[str]:
    fields = Formatter().parse(case.message + case.hint)
    return {name for _, name, _, _ in fields if name is not None and not name.isupper()}


def test_each_code_is_explained_and_has_a_fix() -> None:
    codes = set(findings_table())
    explained = set(meanings())
    fixed = set(re.findall(r"^## (.+)$", FIXES.read_text(), re.MULTILINE))
    assert codes - explained == set(), (
        "findings.md lacks it, or its Why:, Causes:, Example: or Evidence:"
    )
    assert codes - fixed == set(), "fixes.md lacks it"
    assert (explained | fixed) - codes == set(), "findings.toml lacks it"


def test_a_rule_hands_over_the_facts_that_its_sentences_name() -> None:
    for place, call in calls():
        given = {word.arg for word in call.keywords} - NOT_FACTS
        maker = getattr(call.func, "id", "")
        if maker not in HAVE_FACTS or None in given:  # they hand on a record
            continue
        wanted = [named_in(case) for case in cases_of(call).values()]
        named = set().union(*wanted)
        assert named - given == set(), f"{place} does not hand over what is named"
        assert given - named == set(), f"{place} hands over facts that nothing says"


def test_every_row_of_the_table_is_used() -> None:
    used = {
        (str(ast.literal_eval(call.args[0])), name)
        for _, call in calls()
        for name in cases_of(call)
    }
    rows = {(code, name) for code, row in findings_table().items() for name in row}
    by_itself = {(code, "") for code, row in findings_table().items() if len(row) > 1}
    assert rows - used - by_itself == set(), "no rule yields it"


def test_no_list_of_advice_has_a_text_twice() -> None:
    for code, row in findings_table().items():
        for case in row.values():
            texts = [piece.text for piece in case.pieces]
            assert len(texts) == len(set(texts)), code


def test_every_public_rule_is_registered_once() -> None:
    modules = [
        import_module(f"{findings.__name__}.{topic.name}")
        for topic in iter_modules(findings.__path__)
    ]
    public = {
        function
        for module in modules
        for name, function in vars(module).items()
        if isfunction(function) and function.__module__ == module.__name__
        if not name.startswith("_") and name not in HELPERS
        if function.__annotations__.get("return") == "Iterator[Finding]"
    }
    registered = [*findings.RANK_RULES, *findings.RUN_RULES]
    assert len(set(registered)) == len(registered)
    missing = [rule.__name__ for rule in public - set(registered)]
    assert missing == [], (
        "has no row in RANK_RULES or RUN_RULES of verdict/findings/__init__.py"
    )
    assert set(registered) - public == set(), "is no public rule of a topic's file"


def test_the_guide_shows_a_rule_as_it_is_in_force() -> None:
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    shown = present(re.search(r"```python\n( +def .*?)```", text, re.DOTALL))
    rules = {getsource(rule) for rule in (*findings.RANK_RULES, *findings.RUN_RULES)}
    assert dedent(shown[1]) in rules


def test_a_case_overrides_what_the_code_says() -> None:
    logged = finding("all-gather-not-fp8", "logged", request="log line 3", mb=1.4)
    plain = finding("all-gather-not-fp8", request="log line 3", mb=1.4)
    assert (plain.severity, logged.severity) == ("warning", "error")
    assert plain.message == logged.message
    assert "log line 3" in plain.message
    assert "1 MB" in plain.message
    assert plain.verdict == "PARTIAL"


def test_braces_in_names_of_a_trace_stay_as_they_are() -> None:
    assert "{x}{0}" in finding("damaged-trace", source="{x}{0}", damage="").message


def test_every_code_has_a_page_with_what_to_do_in_plain_text() -> None:
    for code, cases in findings_table().items():
        shown = CliRunner().invoke(explain_command.explain_command, [code]).output
        page = shown.removeprefix(f"{code}\n\n")
        meaning = page.split("\n\n")[2]
        assert len(meaning) > 40, f"findings.md says too little of {code}: {meaning}"
        for case in cases.values():
            assert case.severity in page.splitlines()[0]
            if "{" not in case.hint:
                assert case.hint.replace("`", "") in " ".join(page.split())
        assert not re.search(r"\{\w|`|\]\(|\*$", page)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("inactive", "no FP8 GEMM ran, and neither the log nor the model claimed FP8"),
        ("dgrad", "gradient of a layer's input"),
        ("E5M2", "The two FP8 formats"),
        ("fp8-storge", "Did you mean fp8-storage-only?"),
        ("activ", "no grammar"),
    ],
)
def test_words_of_reports_are_explained(word: str, told: str) -> None:
    assert told in CliRunner().invoke(explain_command.explain_command, [word]).output


@pytest.mark.parametrize("code", findings_table())
def test_the_page_of_a_finding_has_its_headings_and_an_example(code: str) -> None:
    text = finding_page(code)
    headings = ["What it means", "Why it matters", "Example", "Fix", "Evidence"]
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == headings
    page = " ".join(text.split())
    assert "Causes" in page
    example = present(
        re.search(r"## Example “(.*?)” ?(?:\(`(traces/\w+)`\))?(?= ## Fix)", page)
    )
    said, capture = example.groups()
    templates = [re.escape(case.message) for case in findings_table()[code].values()]
    assert any(
        re.fullmatch(re.sub(r"\\\{.*?\\\}", ".*", one), said) for one in templates
    )
    if capture is not None:
        report = report_of(Path(capture).name)
        assert any(found.message.startswith(said) for found in report.findings)


@pytest.mark.parametrize("code", findings_table())
def test_a_fix_is_shown_in_code_that_can_be_read(code: str) -> None:
    fix = finding_page(code).split("## Fix\n\n")[1].split("\n\n## ")[0]
    blocks = re.findall(r"^```(\w+)\n(.+?)^```$", fix, re.MULTILINE | re.DOTALL)
    assert blocks
    for language, text in blocks:
        if language == "python":
            compile(text, code, "exec")
        else:
            assert language == "console"
            assert all(line.startswith("$ ") for line in text.splitlines())


def test_code_of_a_fix_keeps_its_lines_on_a_terminal() -> None:
    output = CliRunner().invoke(explain_command.explain_command, ["emulated"]).output
    assert "\n    Float8LinearConfig(emulate=True)  # rounds" in output
    assert "```" not in output


def test_no_advice_is_what_the_doctor_warns_of() -> None:
    """Such as a filter that converts nothing, which a remedy once named."""
    warned_of = {
        rule.when["has"][0]: rule.code
        for rule in rules()["sources"]
        if not rule.where and rule.status in ("warn", "fail")
    }
    advice = {
        (code, case.hint)
        for code, cases in findings_table().items()
        for case in cases.values()
    }
    advice |= {
        (rule.code, rule.remedy) for listed in rules().values() for rule in listed
    }
    assert [
        (code, hint)
        for code, hint in advice
        for pattern, about in warned_of.items()
        if code != about and re.search(rf'(?<!Remove "){pattern}', hint)
    ] == []


def test_each_view_of_the_table_is_one_that_the_code_asks_for() -> None:
    """A misspelled view would be none."""
    package = Path(fp8verify.__file__).parent
    code = "".join(path.read_text() for path in package.rglob("*.py"))
    asked = set(re.findall(r'viewed\(\w+, "(\w+)"\)', code))
    text = (package / "verdict/findings.toml").read_text()
    listed = re.findall(r"^views = \[(.*)\]", text, re.MULTILINE)
    assert {view for views in listed for view in re.findall(r"\w+", views)} == asked


def test_the_rows_that_are_read_one_by_one_are_those_of_the_whole_table() -> None:
    text = (Path(fp8verify.__file__).parent / "verdict/findings.toml").read_text()
    whole = [
        (code, severity, fields)
        for severity, codes in parse_toml(text).items()
        for code, fields in codes.items()
    ]
    by_place = {
        row.place: (code, row.severity.value, row.fields)
        for code in findings_table()
        for row in _rows_of(code)
    }
    assert [by_place[place] for place in sorted(by_place)] == whole
