"""What the files request, and what is only mentioned in files that no rule reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from fp8verify.preflight.checks import Check
from fp8verify.preflight.documents import Document
from fp8verify.preflight.frameworks import Ask, Config, launched_by
from fp8verify.preflight.launch import Facts
from fp8verify.preflight.machine import formats, trains_in
from fp8verify.preflight.tables import Values, said, truth
from fp8verify.text import abridged, listed

_FP8 = re.compile(r"fp8|float8|nvfp4|fp4[_-]|e4m3|e5m2|mxfp", re.IGNORECASE)
# Names, places and remarks: what they are called says nothing about precision.
_LABELS = re.compile(
    r"(?:^|[._-])(?:\w*dir|\w*folder|\w*path(?<!name_or_path)|config_?file|url|image|project|group"
    r"|tags?|notes?|description|comment|(?:(?:run|exp|experiment|project|job|wandb)_)?name(?<!recipe_name)(?<!model_name))$",
    re.IGNORECASE,
)
# What asks for FP8 in code and does not name it: Lightning's precisions, an import.
_IN_CODE = re.compile(r"""["'](?:8-mixed|transformer-engine\S{0,20})["']|\btransformer_engine\b""")
_GENERATION = re.compile(
    r"rollout(?!_ref)|generat|vllm|sglang|infer|serving|sampler|kv_cache", re.IGNORECASE
)
_SHOWN, _WIDTH = 3, 60


class Mention(NamedTuple):
    """A line that speaks of FP8: its number if known, its text, whether it is about generation."""

    line: int | None
    text: str
    of_generation: bool


def asked(facts: Facts) -> Iterator[Check]:
    """The FP8 request of each file, as the doctor understands it."""
    for config in facts.configs:
        yield _of_a_config(config)
    launches = {check.file for check in facts.missing}
    for document in facts.unread:
        found = list(_mentions(document))
        is_python = document.kind == "python"
        is_named = is_python or (document.path in facts.named and document.path not in launches)
        # What a script does is told by its model, if that was built.
        told_by_model = is_python and facts.model and facts.model.modules
        if (found or (is_named and not facts.asks)) and not told_by_model:
            yield _unread(document, found)
        if not is_python:  # which may have a branch for each GPU
            yield from _formats(document, found, facts)
    yield from facts.missing


def _mentions(document: Document) -> Iterator[Mention]:
    """Yield the settings, or the lines of code, that speak of FP8; labels do not."""
    if document.kind != "python":
        yield from _mentions_of_values(document.values, document.lines)
        return
    for number, line in enumerate(document.text.splitlines(), start=1):
        if _FP8.search(line) or _IN_CODE.search(line):
            yield Mention(number, line.strip(), _GENERATION.search(line) is not None)


def _mentions_of_values(values: Values, lines: Mapping[str, int]) -> Iterator[Mention]:
    """Yield the settings that speak of FP8, but for those that say no."""
    for key, value in values.items():
        if value in ({}, None, "", "null") or truth(value) is False:
            continue
        said = isinstance(value, (str, list)) and _FP8.search(str(value))
        if _is_about_fp8(key) or (said and not _LABELS.search(key)):
            of_generation = _GENERATION.search(key) is not None
            yield Mention(lines.get(key), f"{key}: {value}", of_generation)


def _is_about_fp8(key: str) -> bool:
    return re.search(rf"{_FP8.pattern}|(?:^|\.)fp4$", key, re.IGNORECASE) is not None


def _spoken(found: Sequence[Mention], where: str = "") -> str:
    """Return what mentions are of: FP4 if none of them is about FP8."""
    is_fp4 = all("fp4" in row.text.lower() for row in found)
    return f"mentions {'FP4' if is_fp4 else 'FP8'}{where} ({_told(found)})"


def _told(found: Iterable[Mention]) -> str:
    """Return mentions in words, the first ones with their text."""
    shown = [
        f"line {row.line}: {_part(row.text)}" if row.line else _part(row.text) for row in found
    ]
    return abridged(shown, _SHOWN)


def _part(text: str) -> str:
    """Return a text, of a long one the part around the word."""
    match = _FP8.search(text)
    first = max(0, match.start() - _WIDTH // 2) if match and len(text) > _WIDTH else 0
    part = text[first : first + _WIDTH]
    return f"{'…' if first else ''}{part}{'…' if len(text) > first + _WIDTH else ''}"


def _of_a_config(config: Config) -> Check:
    ask, row, document, framework = config.ask, config.row, config.document, config.framework
    if ask is not None:
        where = "" if config.branch_of(ask.key) is None else " in a branch of the script"
        where += f" in versions until {ask.until}" * bool(ask.until)
        what, line = _described(ask), config.line_of(ask.key)
        return said("fp8-asked", config.path, line, framework=framework, what=what, where=where)
    found = list(_mentions_of_values(document.values, document.lines))
    if "unread" in row:
        says = f"{_spoken(found)}; " if found else ""
        what = f"{framework}: {says}{row['unread']}"
        return said("fp8-mentioned", config.path, _first(found), what=what)
    unknown = [one for one in found if not one.of_generation and not _is_known(one, config)]
    if unknown:
        what = f"{framework}: {_spoken(unknown, ', not as a known request')}"
        return said("fp8-mentioned", config.path, _first(unknown), what=what)
    generation = [one for one in found if one.of_generation]
    more = f"; FP8 for generation only ({_told(generation)})" if generation else ""
    if other := document.elsewhere or row.get("asked_by", ""):
        what = f"{framework}: no line requests FP8 for training{more}; {other} may request it"
        return said("fp8-mentioned", config.path, what=what)
    line = _first(generation)
    return said("fp8-not-asked", config.path, line, framework=framework, more=more)


def _is_known(mention: Mention, config: Config) -> bool:
    """Whether a rule or the framework's table of keys knows the setting that mentions FP8."""
    row = config.row
    key, _, value = mention.text.partition(": ")
    section, _, name = key.rpartition(".")
    plain = name.removeprefix("--").replace("-", "_")
    given = next((given for given, origin in config.origins.items() if origin == key), key)
    asks = [[*one["when"]] for one in row.get("asks", ()) if "format" in one]
    if _is_one_of(given, (keys[0] for keys in asks)):  # a request, of which no row knows the value
        return False
    read = (
        *row.get("values", ()),
        *row.get("stored", ()),
        *(key for keys in asks for key in keys[1:]),
    )
    if _is_one_of(given, read) or given in row.get("alias", {}).values():
        return "$" not in value  # which the launch resolves
    # Of a value under another key no rule knows what it does.
    return _is_about_fp8(key) and not {name, plain}.isdisjoint(row["keys"].get(section, ()))


def _is_one_of(name: str, keys: Iterable[str]) -> bool:
    return any(fnmatchcase(name, part) for key in keys for part in key.split("|"))


def _unread(document: Document, found: Sequence[Mention]) -> Check:
    """Return what is said of a file that no rule reads."""
    path, line = document.path, _first(found)
    if document.kind == "python":
        what = _spoken(found) if found else "no line mentions FP8"
        return said("fp8-mentioned/source", path, line, what=what)
    if not found:
        return said("config-not-recognized", path)
    if framework := launched_by(document):
        what = f"{framework}: {_spoken(found, ' where no rule reads it')}"
        return said("fp8-mentioned", path, line, what=what)
    what = _spoken(found)
    if all(one.of_generation for one in found):
        what = f"FP8 for generation only ({_told(found)}), which says nothing of training"
    return said("fp8-mentioned", path, line, what=f"{what}; its framework is not recognized")


def _formats(document: Document, mentioned: Sequence[Mention], facts: Facts) -> Iterator[Check]:
    """Yield the formats that settings of an unknown framework name and a GPU cannot multiply."""
    for fmt in ("mxfp8", "nvfp4"):
        found = [one for one in mentioned if fmt in one.text.lower().replace("_", "")]
        gpus = dict.fromkeys(one.name for one in facts.gpus if trains_in(one, fmt) is False)
        if found and gpus:
            what = f"{_told(found)}: {listed(list(gpus))} {formats()[fmt].refused}"
            yield said("no-fp8-units/mentioned", document.path, _first(found), what=what)


def _first(found: Sequence[Mention]) -> int | None:
    return found[0].line if found else None


def _described(ask: Ask) -> str:
    details = [word for word in (ask.recipe, ask.backend) if word and word != ask.format]
    return formats()[ask.format].name + (f" ({', '.join(details)})" if details else "")


def not_started(facts: Facts) -> Iterator[Check]:
    """What configuration files do not show about a run, unless its model was built."""
    if facts.model is None and (facts.asks or facts.command):
        yield said("training-not-started")
