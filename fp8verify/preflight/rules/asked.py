"""What the files request, and what is only mentioned in files that no rule reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from fp8verify.preflight.checks import Check
from fp8verify.preflight.documents import Document
from fp8verify.preflight.frameworks import Ask, Config, launched_by, word
from fp8verify.preflight.launch import Facts
from fp8verify.preflight.machine import formats, trains_in
from fp8verify.preflight.python_source import (
    CodeRequest,
    recipes_in,
    requests_in,
    uses_transformer_engine,
)
from fp8verify.preflight.tables import name_of, said, truth
from fp8verify.text import abridged, listed

_FP8 = re.compile(r"fp8|float8|nvfp4|fp4[_-]|e4m3|e5m2|mxfp", re.IGNORECASE)
_FP8_KEY = re.compile(rf"{_FP8.pattern}|(?:^|\.)fp4$", re.IGNORECASE)
# Names, places and remarks: what they are called says nothing about precision.
_LABELS = re.compile(
    r"(?:^|[._-])(?:\w*datasets?(?:_config)?|\w*dir|\w*folder|\w*path(?<!name_or_path)|config_?file|url|image|project|group"
    r"|tags?|notes?|description|comment|(?:(?:run|exp|experiment|project|job|wandb)_)?name(?<!recipe_name)(?<!model_name))$",
    re.IGNORECASE,
)
# What asks for FP8 in code and does not name it: Lightning's precisions, an import.
_IN_CODE = re.compile(
    r"""["'](?:8-mixed|transformer-engine\S{0,20})["']|\btransformer_engine\b"""
)
_GENERATION = re.compile(
    r"rollout(?!_ref)|generat|vllm|sglang|infer|serving|sampler|kv_cache", re.IGNORECASE
)
# Of a key on FP8 whose value is left to the machine.
_RECIPE_KEY = re.compile(
    r"recipe|format|precision|dtype|scaling|quant|(?:^|[._-])fp[48]$", re.IGNORECASE
)
# Keys that ask for FP8 whatever reads them, and for the library that may multiply in it.
_BY_NAME = re.compile(
    r"(?i)(?:^|[._-])(?:(?:use|enable|with|do)[_-])?(?:fp8|float8)(?:[_-](?:training|linear|enabled?|mode))?$"
    r"|(?:^|[._-])(?:mixed[_-]|low[_-]|train(?:ing)?[_-])?precision(?:[_-](?:mode|type))?$"
)
_REMARK = re.compile(r"\s*(?:#(?!!)|//|rem\b|::|;)", re.IGNORECASE)
_ENGINE = re.compile(r"(?i)transformer[_-]?engine")
_ENGINE_IMPLEMENTATION = re.compile(r"(?i)(?:impl|backend|engine)$")
_SHOWN = 3
_WIDTH = 60


class Mention(NamedTuple):
    """A line that speaks of FP8: its number if known, its text, whether it is about generation."""

    line: int | None
    text: str
    of_generation: bool

    def __str__(self) -> str:
        """Return the text with its line, of a long one the part around the word."""
        match = _FP8.search(self.text)
        first = 0
        if match and len(self.text) > _WIDTH:
            first = max(0, match.start() - _WIDTH // 2)
        part = self.text[first : first + _WIDTH]
        if first:
            part = f"…{part}"
        if len(self.text) > first + _WIDTH:
            part = f"{part}…"
        if self.line:
            return f"line {self.line}: {part}"
        return part


def asked(facts: Facts) -> Iterator[Check]:
    """The FP8 request of each file, as the doctor understands it."""
    for config in facts.configs:
        yield _of_a_config(config)
    named = {*facts.named} - {check.file for check in facts.missing}
    for document in facts.unread:
        found = list(_mentions(document))
        is_python = document.kind == "python"
        # What a script does is told by its model, if that was built.
        told_by_model = is_python and facts.model and facts.model.modules
        is_whole = is_python or document.path in named
        if document.kind == "arguments" and not facts.configs:
            is_whole = True  # nothing else tells what the run asks for
        is_asked = is_whole and not facts.asks
        if (found or is_asked) and not told_by_model:
            yield _unread(document, found)
        if not is_python:  # which may have a branch for each GPU
            yield from _formats(document, found, facts)
    yield from facts.missing


def may_request(facts: Facts) -> bool:
    """Whether something that was read speaks of FP8 for training, and is no known request."""
    for document in facts.unread:
        for mention in _mentions(document):
            if not mention.of_generation:
                return True
    for config in facts.configs:
        for mention in _mentions(config.document):
            if not mention.of_generation and not _is_known(mention, config):
                return True
    return False


def _mentions(document: Document) -> Iterator[Mention]:
    """Yield the settings that speak of FP8, but for labels and those that say no; of code lines."""
    for key, value in document.values.items():
        if _speaks_of_fp8(key, value):
            yield _mention(document.lines.get(key), f"{key}: {value}", key)
    if document.kind != "python":
        return
    for number, line in enumerate(document.text.splitlines(), start=1):
        if _FP8.search(line) or _IN_CODE.search(line):
            yield _mention(number, line.strip(), line)


def _mention(
    line: int | None,
    text: str,
    name: str,
) -> Mention:
    of_generation = _GENERATION.search(name) is not None
    return Mention(line, text, of_generation)


def _speaks_of_fp8(key: str, value: Any) -> bool:
    """Whether a setting is of FP8, or has it as its value and is no label."""
    if value in ({}, None, "", "null") or truth(value) is False:
        return False
    if _FP8_KEY.search(key):
        return True
    has_words = isinstance(value, (str, list))
    if not has_words or _LABELS.search(key):
        return False
    return _FP8.search(str(value)) is not None


def _spoken(found: Sequence[Mention], where: str = "") -> str:
    """Return what mentions are of: FP4 if none of them is about FP8."""
    spoken_of = "FP8"
    if all("fp4" in row.text.lower() for row in found):
        spoken_of = "FP4"
    return f"mentions {spoken_of}{where} ({_told(found)})"


def _told(found: Iterable[Mention]) -> str:
    """Return mentions in words, the first ones with their text."""
    return abridged([str(one) for one in found], _SHOWN)


def _of_a_config(config: Config) -> Check:
    if config.ask is not None:
        return _of_a_request(config, config.ask)
    row = config.row
    document = config.document
    framework = config.framework
    found = list(_mentions(document))
    generation: list[Mention] = []
    unknown: list[Mention] = []
    for mention in found:
        if mention.of_generation:
            generation.append(mention)
        elif not _is_known(mention, config):
            unknown.append(mention)
    more = ""
    if generation:
        more = f"; FP8 for generation only ({_told(generation)})"
    if "unread" in row:
        what = row["unread"]
        if found:
            what = f"{_spoken(found)}; {what}"
    elif unknown:
        found = unknown
        what = _spoken(unknown, ", not as a known request") + _decided_later(document)
    elif other := document.elsewhere or _asker(config):
        found = []
        what = f"no line requests FP8 for training{more}; {other} may request it"
    else:
        line = _first(generation)
        return said(
            "fp8-not-asked",
            config.path,
            line,
            framework=framework,
            more=more,
        )
    return said(
        "fp8-mentioned", config.path, _first(found), what=f"{framework}: {what}"
    )


def _asker(config: Config) -> str:
    """Return what may request FP8 where a document does not, "" if nothing else can."""
    row = config.row
    asker = row.get("asked_by", "")
    if config.document.is_launch:
        asker = row.get("launch_asked_by", asker)
        if not config.origins.keys().isdisjoint(row.get("settled_by", ())):
            asker = ""
    return str(asker)


def _of_a_request(config: Config, ask: Ask) -> Check:
    where = ""
    if config.branch_of(ask.key) is not None:
        where = " in a branch of the script"
    if ask.until:
        where += f" in versions until {ask.until}"
    where += _decided_later(config.document)
    return said(
        "fp8-asked",
        config.path,
        config.line_of(ask.key),
        framework=config.framework,
        what=_described(ask),
        where=where,
    )


def _decided_later(document: Document) -> str:
    """Return what is said of settings on FP8 whose value is chosen where the model runs."""
    found = []
    for key, value in document.values.items():
        is_recipe = _FP8_KEY.search(key) and _RECIPE_KEY.search(key)
        if is_recipe and word(value) == "auto":
            found.append(key)
    if not found:
        return ""
    keys = listed(found, _SHOWN)
    return f"; {keys}: auto is decided where the model runs: check what ran"


def _is_known(mention: Mention, config: Config) -> bool:
    """Whether a rule or the framework's table of keys knows the setting that mentions FP8."""
    row = config.row
    key, _, value = mention.text.partition(": ")
    section, _, name = key.rpartition(".")
    given = _given_as(key, config)
    setting = {given: value}
    read = [*row.get("values", ()), *row.get("stored", ())]
    for ask in row.get("asks", ()):
        if "format" in ask:
            first, *others = ask["when"]
            if name_of(first, setting):
                return False  # a request of a value that no row knows
            read += others
    is_read = any(name_of(key, setting) for key in read)
    if is_read or given in row.get("alias", {}).values():
        return "$" not in value  # which the launch resolves
    # Of a value under another key no rule knows what it does.
    names = {name, name.removeprefix("--").replace("-", "_")}
    known = row["keys"].get(section, frozenset())
    return _FP8_KEY.search(key) is not None and not names.isdisjoint(known)


def _given_as(key: str, config: Config) -> str:
    """Return the name by which the rules know a key of a document."""
    for given, origin in config.origins.items():
        if origin == key:
            return given
    return key


def _unread(document: Document, found: Sequence[Mention]) -> Check:
    """Return what is said of a file that no rule reads."""
    path = document.path
    line = _first(found)
    if document.kind == "python":
        requests = requests_in(document.text)
        if requests:
            what = _told_of_code(requests, document.text)
            line = requests[0].line
        elif found and all(one.of_generation for one in found):
            what = f"FP8 for generation only ({_told(found)}), which says nothing of training"
        elif found:
            what = _spoken(found)
            if uses_transformer_engine(document.text):
                what += "; no line of it opens Transformer Engine's autocast"
        else:
            what = "no line mentions FP8"
        return said("fp8-mentioned/source", path, line, what=what)
    if not found:
        engine = _asks_for_engine(document)
        if engine:
            return said(
                "fp8-mentioned/engine", path, document.lines.get(engine), key=engine
            )
        return _unmentioned(document)
    what = _by_name(found) or _spoken(found)
    what += "; its framework is not recognized"
    if framework := launched_by(document):
        what = f"{framework}: {_spoken(found, ' where no rule reads it')}"
    elif all(one.of_generation for one in found):
        what = (
            f"FP8 for generation only ({_told(found)}), which says nothing of training"
        )
        what += "; its framework is not recognized"
    what += _decided_later(document)
    return said("fp8-mentioned", path, line, what=what)


def _unmentioned(document: Document) -> Check:
    """Return what is said of a file of no known framework, none of whose settings is about FP8."""
    path = document.path
    for number, text in enumerate(document.text.splitlines(), start=1):
        if _REMARK.match(text) and _FP8.search(text):
            remark = _mention(number, text.strip(), text)
            more = f", a remark speaks of it ({remark})"
            return said("config-not-recognized", path, number, more=more)
    more = ""
    launcher = launched_by(document)
    if document.elsewhere:
        more = f", {document.elsewhere} may"
    elif launcher:
        more = f", the configuration of {launcher} may"
    return said("config-not-recognized", path, more=more)


def _by_name(found: Sequence[Mention]) -> str:
    """Return that settings ask for FP8 by what they are called, "" if none of them does."""
    asking = []
    for mention in found:
        key, _, value = mention.text.partition(": ")
        is_on = truth(value) is True or _FP8.search(value) is not None
        if is_on and _BY_NAME.search(key) and not mention.of_generation:
            asking.append(mention)
    if not asking:
        return ""
    return (
        f"requests FP8 by its name ({_told(asking)}); whether that multiplies in FP8 or only "
        "stores it is not known here"
    )


def _asks_for_engine(document: Document) -> str:
    """Return the key by which a file that does not mention FP8 asks for Transformer Engine."""
    for key, value in document.values.items():
        if _ENGINE.search(key) and truth(value) is True:
            return key
        if _ENGINE_IMPLEMENTATION.search(key) and _ENGINE.search(str(value)):
            return key
    return ""


def _told_of_code(requests: Sequence[CodeRequest], text: str) -> str:
    """Return what lines of a Python source ask for, and the recipes that others name."""
    told = abridged([str(request) for request in requests], _SHOWN)
    recipes = recipes_in(text)
    if recipes:
        told += f" (recipe: {abridged([str(recipe) for recipe in recipes], _SHOWN)})"
    return f"requests {told}, where these lines run"


def _formats(
    document: Document,
    mentioned: Sequence[Mention],
    facts: Facts,
) -> Iterator[Check]:
    """Yield the formats that settings of an unknown framework name and a GPU cannot multiply."""
    for fmt in ("mxfp8", "nvfp4"):
        found = []
        for mention in mentioned:
            plain = mention.text.lower().replace("_", "")
            if fmt in plain and "emulat" not in plain:
                found.append(mention)
        gpus = [gpu.name for gpu in facts.gpus if trains_in(gpu, fmt) is False]
        if found and gpus:
            what = f"{_told(found)}: {listed(list(dict.fromkeys(gpus)))}"
            words = formats()[fmt]._asdict()
            yield said(
                "no-fp8-units/mentioned",
                document.path,
                _first(found),
                what=what,
                **words,
            )


def _first(found: Sequence[Mention]) -> int | None:
    if found:
        return found[0].line
    return None


def _described(ask: Ask) -> str:
    name = formats()[ask.format].name
    details = []
    for detail in (ask.recipe, ask.backend):
        if detail and detail != ask.format:
            details.append(detail)
    if details:
        return f"{name} ({', '.join(details)})"
    return name


def not_started(facts: Facts) -> Iterator[Check]:
    """What configuration files do not show about a run, unless its model was built."""
    if facts.model is None and (facts.asks or facts.command):
        yield said("training-not-started")
