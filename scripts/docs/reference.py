"""Tables of the documentation that are read off the code."""

from __future__ import annotations

import inspect as python_inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from html import escape
from operator import itemgetter
from pathlib import Path
from textwrap import fill
from typing import Any

from packaging.requirements import Requirement

import fp8verify
from fp8verify import thresholds
from fp8verify.cli.explain_command import glossary
from fp8verify.cli.group import COMMANDS
from fp8verify.files import parse_toml
from fp8verify.terms import Severity, Verdict
from fp8verify.verdict.findings_table import finding_page, findings_table
from fp8verify.verdict.judge import EXIT_CODES
from scripts.docs import support
from scripts.docs.blocks import console_blocks, pages
from scripts.docs.shell import ROOT, printed
from scripts.schemas import schema

# Held by tests/unit/test_verdict.py.
_RAISED = {
    Verdict.ACTIVE: "; 1 if a finding is an error",
    Verdict.PARTIAL: "; 1 if a finding is an error, if `--min-share` was given and is not met, or "
    "with `--strict`",
}


def verdicts() -> str:
    """Make the table of verdicts, with the exit code that each gets."""
    lines = ["| verdict | means | exit code |", "|---|---|---|"]
    for verdict in Verdict:
        code = f"{EXIT_CODES[verdict]}{_RAISED.get(verdict, '')}"
        lines.append(
            f"| {verdict.value} | {glossary()['verdicts'][verdict.value]} | {code} |"
        )
    return "\n".join(lines)


def limits() -> str:
    """Make the table of thresholds that decide most verdicts: what their comments say of them."""
    text = Path(thresholds.__file__).read_text(encoding="utf-8")
    deciding = text.partition("# ---- the verdict\n")[2].partition("# ---- ")[0]
    rows = re.findall(r"^((?:#(?! ----).*\n)+)((?:[A-Z].*\n)+)", deciding, re.MULTILINE)
    lines = []
    for comment, definitions in rows:
        names = re.findall(r"^([A-Z_0-9]+)", definitions, re.MULTILINE)
        values = ", ".join(f"`{name}` {getattr(thresholds, name):,}" for name in names)
        meaning = " ".join(line.removeprefix("# ") for line in comment.splitlines())
        lines.append(f"- {values}: {meaning}")
    return "\n".join(lines)


def words() -> str:
    """Make the table of the glossary."""
    rows = [f"| {word} | {meaning} |" for word, meaning in glossary()["words"].items()]
    return "\n".join(["| word | meaning |", "|---|---|", *rows])


_FOR = {
    "train": "the examples, and `run` where torch is not installed",
    "hta": "`inspect --breakdown`",
    "pandas": "DataFrames of the Python API",
    "doctor": "launch scripts in `doctor`",
    "zstd": "traces that end with `.zst`",
    "remote": "traces behind URLs (s3://, gs://, hf://)",
    "cluster": "`--scheduler`: ranks read on a Dask cluster",
    "transformers": "the callback for Hugging Face Trainer",
    "lightning": "the callback for Lightning",
}
_OF_DEVELOPERS = {"docs", "test", "dev", "all"}


def extras() -> str:
    """Make the table of extras: what each is for, and the packages that it adds."""
    project = parse_toml((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    lines = ["| extra | for | packages |", "|---|---|---|"]
    for extra, needed in project["optional-dependencies"].items():
        if extra in _OF_DEVELOPERS:
            continue
        names = ", ".join(f"`{Requirement(line).name}`" for line in needed)
        lines.append(f"| `{extra}` | {_FOR[extra]} | {names} |")
    return "\n".join(lines)


FINDINGS = ROOT / "docs" / "findings"


def finding_pages() -> dict[Path, str]:
    """Return the pages of docs/findings by their files: one a code, and an index."""
    severities = list(Severity)
    rows = []
    pages = {}
    for code, cases in findings_table().items():
        kinds = {case.severity for case in cases.values()}
        gravest = min(map(severities.index, kinds))
        verdicts = (
            ", ".join(dict.fromkeys(c.verdict for c in cases.values() if c.verdict))
            or "-"
        )
        shown = ", ".join(kind for kind in severities if kind in kinds)
        page = finding_page(code)
        means = " ".join(page.split("\n\n")[2].split())
        first = re.split(r"(?<=[.])\s", means)[0]
        rows.append(
            (gravest, f"| [`{code}`]({code}.md) | {shown} | {verdicts} | {first} |")
        )
        pages[FINDINGS / f"{code}.md"] = f"# `{code}`\n\n{page}\n"
    table = "\n".join(row for _, row in sorted(rows, key=itemgetter(0)))
    head = "| code | severity | verdict | what it means |\n|---|---|---|---|"
    return {FINDINGS / "index.md": f"{_FINDINGS}\n{head}\n{table}\n", **pages}


_FINDINGS = """\
# Findings

A verdict is one word. Findings are its reasons, each with a fix. An *error* makes the exit code 1,
a *warning* deserves action, *info* explains. `fp8verify explain CODE` prints the same pages.

In JSON a finding names its `ranks`, its `layers`, and the `verdict` that it gives these ranks (null
if it does not affect the verdict). If no FP8 ran and the command names a configuration that
requests FP8, findings can have [doctor's codes](../doctor/index.md) too.
"""


def commands() -> str:
    """Give the help of every command: its text, then an item with an anchor for each option.

    An option that means the same in a command before it is described there alone.
    """
    parts = []
    said: dict[str, str] = {}
    for name in COMMANDS:
        shown, _ = printed(f"fp8verify {name} --help")
        text, *sections = re.split(r"(?m)^(Options|[A-Z][\w ]+):\n(?=  -)", shown)
        parts.append(f"## fp8verify {name}\n\n```text\n{text.strip()}\n```")
        for title, listed in zip(sections[::2], sections[1::2], strict=True):
            if title != "Options":
                parts.append(f"**{title}**")
            parts.append("\n".join(_option_items(name, listed, said)))
    return "\n\n".join(parts)


# Words of a meaning that take less room than the link to it.
_SHORT = 8


def _option_items(command: str, listed: str, said: dict[str, str]) -> Iterator[str]:
    """Yield an item for each option of a section of a help text, without `--help`.

    Args:
        command: the command that has them.
        listed: the section.
        said: where an option with its meaning was described; more are added.
    """
    for entry in re.split(r"(?m)^  (?=-)", listed)[1:]:
        found = re.match(r"(\S.*?)(?:\s{2,}|\n|$)(.*)", entry, re.DOTALL)
        option, meaning = found.groups() if found else (entry, "")
        if "--help" in option:
            continue
        # A help text breaks its lines after a hyphen, too.
        words = escape(
            " ".join(re.sub(r"(?<=\w-)\n\s+", "", meaning).split()), quote=False
        )
        long = re.findall(r"(?<![\w-])--?([\w-]+)", option)[-1]
        known = said.setdefault(f"{option} {words}", f"{command}-{long}")
        if known != f"{command}-{long}" and len(words.split()) > _SHORT:
            words = f"as in [{known.partition('-')[0]}](#{known})"
        yield f'- <a id="{command}-{long}"></a>`{option.strip()}`: {words}'


def python() -> str:
    """Give signature and docstring of every public name."""
    return "\n\n".join(
        _public(name) for name in fp8verify.__all__ if not name.startswith("_")
    )


def _public(name: str) -> str:
    value = getattr(fp8verify, name)
    documented = python_inspect.cleandoc(value.__doc__ or "")
    documented = _with_types(value, documented)
    documented = documented.partition("\nExample:\n")[0].rstrip()
    parts = [f"## {name}", f"```python\n{_signature(name, value)}\n```"]
    return "\n\n".join([*parts, f"```text\n{documented}\n```"])


def _with_types(value: object, documented: str) -> str:
    """Add the type of each attribute of a class to its description."""
    text, head, attributes = documented.partition("Attributes:\n")
    types: dict[str, object] = {}
    for base in reversed(getattr(value, "__mro__", ())):
        types |= python_inspect.get_annotations(base)
        above = python_inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[
            2
        ]
        if head and base is not value and base.__module__.startswith("fp8verify."):
            attributes = f"{above.rstrip()}\n{attributes}" if above else attributes

    def typed(found: re.Match[str]) -> str:
        kind = types[found[1]]
        return f"    {found[1]} ({getattr(kind, '__forward_arg__', kind)}):"

    pattern = rf"(?m)^    ({'|'.join(types) or '$'}):"
    return f"{text}{head}{re.sub(pattern, typed, attributes)}"


def _signature(name: str, value: object) -> str:
    if (
        isinstance(value, type) and not name.islower()
    ):  # `watch` and `window` are called
        return f"class fp8verify.{name}"
    if not callable(value):
        return f"fp8verify.{name}"
    signature = python_inspect.signature(value)
    if isinstance(value, type):
        signature = signature.replace(return_annotation=python_inspect.Signature.empty)
    return f"fp8verify.{name}{str(signature).replace(chr(39), '')}"


def json_report() -> str:
    """List the keys of the JSON report: a section for each object of its schema."""
    objects = schema()["$defs"]
    parts = []
    for name, one in objects.items():
        if name in _IN_SCHEMA_ALONE:
            continue
        if "enum" in one:
            values = ", ".join(f"`{value}`" for value in one["enum"])
            parts.append(f"## {name}\n\nOne of {values}.")
            continue
        keys = one.get("properties", {})
        shared = {}
        if name != "Report":
            whole = objects["Report"]["properties"]
            shared = {key: keys[key] for key in keys if keys[key] == whole.get(key)}
        if len(shared) < _FEW:
            shared = {}
        text = [f"## {name}", ""]
        if shared:
            text += [
                f"As in [Report](#report): {', '.join(f'`{key}`' for key in shared)}.",
                "",
            ]
        for key, value in keys.items():
            if key not in shared:
                meaning = _cell(value.get("description", "")).removesuffix(".")
                text.append(f"- `{key}` ({_json_type(value)}): {meaning}")
        parts.append("\n".join(text))
    return "\n\n".join(parts)


# Objects that few programs read; their keys are described in the schema.
_IN_SCHEMA_ALONE = {
    "BreakdownReport",
    "CompiledCodeReport",
    "ClockReport",
    "CollectiveRow",
    "CommunicationReport",
    "ExpectedReport",
    "GradientRecord",
    "HealthReport",
    "LayerRow",
    "LayersReport",
    "LedgerEntry",
    "LedgerExecution",
    "LedgerReport",
    "LedgerSlot",
    "LibraryLogReport",
    "MemoryReport",
    "NamedLayerRow",
    "NamedLayersReport",
    "ModulesReport",
    "NumericsReport",
    "RankBreakdown",
    "Mention",
    "RecipeRecord",
    "RecipeSeen",
    "ScaleRow",
    "StepReport",
    "StepStatistics",
    "TaxEntry",
    "TaxReport",
    "TensorRecord",
    "TimelineReport",
    "TrendPoint",
    "WeightGather",
    "WindowReport",
}
# Keys that two objects share by chance are listed in both.
_FEW = 4


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _json_type(entry: Mapping[str, Any]) -> str:
    """Name the type of a property, with a link to the section of an object."""
    if "$ref" in entry:
        name = entry["$ref"].rpartition("/")[2]
        if name in _IN_SCHEMA_ALONE:
            return name
        return f"[{name}](#{name.lower()})"
    if "anyOf" in entry:
        return " or ".join(_json_type(one) for one in entry["anyOf"])
    if entry.get("type") == "array":
        items = entry.get("items")
        return f"array of {_json_type(items)}" if isinstance(items, dict) else "array"
    if isinstance(entry.get("additionalProperties"), dict):
        return f"object of {_json_type(entry['additionalProperties'])}"
    return str(entry.get("type", "any"))


def captures() -> list[Path]:
    """Return the captures that ship with the project."""
    return sorted(path.parent for path in (ROOT / "traces").glob("*/expected.json"))


def corpus() -> str:
    """Lay out the index of captures as a table."""
    index = json.loads((ROOT / "traces" / "index.json").read_text(encoding="utf-8"))
    lines = [
        "| capture | framework: recipe | truth | FP8 share | about, made by |",
        "|---|---|---|---|---|",
    ]
    for row in index["captures"]:
        truth, command = row["truth"], row["command"]
        made = f"`{command}`".replace("|", "\\|") if command else "script not kept"
        recipe = f": {row['recipe']}" if row["recipe"] else ""
        lines.append(
            f"| `{row['name']}` | {row['framework']}{recipe} | {truth['verdict']} "
            f"| {truth['fp8_share_of_gemm_time']:.1%} | {row['note']}<br>{made} |"
        )
    return "\n".join(lines)


def trace_speed() -> str:
    """Say in a sentence what benchmarks/results/trace_speed.md measured of traces by size."""
    page = (ROOT / "benchmarks" / "results" / "trace_speed.md").read_text(
        encoding="utf-8"
    )
    measured = re.search(
        r"^(?P<date>[\d-]+), .*fp8verify (?P<version>[\d.]+),", page, re.MULTILINE
    )
    if measured is None:
        raise ValueError("trace_speed.md does not say when what was measured")
    tables = re.findall(r"^\| \d+ MB of JSON .*\n(?:\|.*\n)+", page, re.MULTILINE)
    costs = [
        {row[0]: row[1:] for row in map(_cells, table.splitlines())} for table in tables
    ]
    cpu, _, peak, *_ = costs[-1]["`fp8verify inspect`, one process"]
    json_load = [float(cost["json.load alone"][3]) for cost in costs]
    hta = [float(cost["HTA, kernel breakdown"][3]) for cost in costs]
    return fill(
        f"A trace of 1 GB takes {float(cpu):.1f} CPU seconds and {peak} MB of memory (fp8verify "
        f"{measured['version']}, {measured['date']}: [table](benchmarks/results/trace_speed.md)). That is "
        f"{min(json_load):.1f} to {max(json_load):.1f} times less CPU than `json.load`, by the size of the "
        f"trace, and {min(hta):.0f} to {max(hta):.0f} times less than HolisticTraceAnalysis "
        "([how it was measured](benchmarks/README.md#speed)).",
        118,
        break_on_hyphens=False,
    )


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.split("|")[1:-1]]


def doctor_measured() -> str:
    """Compare what the doctor measured with what training runs took."""
    path = ROOT / "benchmarks" / "results" / "doctor_measure.json"
    if not path.exists():
        return (
            "Not measured yet: `benchmarks/doctor_measure.sh` on a GPU makes the table."
        )
    found = json.loads(path.read_text(encoding="utf-8"))
    heads = list(found["rows"][0])
    lines = [
        heads,
        ["---"] * len(heads),
        *([row[head] for head in heads] for row in found["rows"]),
    ]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{found['where']}, {found['date']}:\n\n{table}"


def ran() -> str:
    """List the commands of pages that no test runs, with the machine where they ran."""
    lines = ["| page | command | date | machine |", "|---|---|---|---|"]
    for page in pages():
        place = page.relative_to(ROOT).as_posix()
        for block in console_blocks(page.read_text(encoding="utf-8")):
            if found := re.fullmatch(r"<!-- ran (\S+): (.+) -->", block.after):
                command = (
                    block.commands[0].partition(" #")[0].rstrip().replace("|", "\\|")
                )
                lines.append(
                    f"| [{place}](../../{place}) | `{command}` | {found[1]} | {found[2]} |"
                )
    return "\n".join(lines)


TABLES: Mapping[str, Callable[[], str]] = {
    "doctor measured": doctor_measured,
    "verdicts": verdicts,
    "glossary": words,
    "thresholds": limits,
    "extras": extras,
    "commands": commands,
    "corpus": corpus,
    "json report": json_report,
    "python": python,
    "ran": ran,
    "trace speed": trace_speed,
    **{name: lambda text=text: text for name, text in support.tables()},
}
