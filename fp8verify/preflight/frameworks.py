"""Which framework a document belongs to, by data/frameworks.toml, and what it asks for."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from itertools import islice, zip_longest
from typing import Any

from fp8verify.preflight.documents import Document
from fp8verify.preflight.facts import (
    Ask,
    Config,
    LayerSize,
    Values,
    llama_layers,
    truth,
    whole,
    word,
)
from fp8verify.preflight.tables import (
    MISSING,
    all_hold,
    is_on,
    known_keys,
    name_of,
    table,
    value_of,
)

Row = Mapping[str, Any]
_PLAIN = re.compile(r"[A-Za-z0-9_.-]+")
_COMPARED = 300  # keys of a file that are compared with the signs of frameworks
_FORMATS = {"mxfp8": "mxfp8", "blockwise": "fp8_block", "block": "fp8_block", "nvfp4": "nvfp4"}
_BACKENDS = {"ao": "torchao", "torchao": "torchao", "te": "te", "msamp": "msamp"}


@cache
def frameworks() -> dict[str, Row]:
    """Return the frameworks by name, in the order in which they are asked."""
    rows = dict(table("frameworks"))
    families = rows.pop("families")
    return {name: {**families.get(row.get("family"), {}), **row} for name, row in rows.items()}


def recognize(document: Document) -> Config | None:
    """Return the configuration that a document is, None if no framework knows its keys."""
    rows = [(name, row) for name, row in frameworks().items() if document.kind in row["kinds"]]
    for framework, row in rows:
        names = {key: _canonical(key, row) for key in document.values}
        renamed = {names[key]: value for key, value in document.values.items()}
        if _fits(row, document, {**document.values, **renamed}):
            return _config(framework, row, document, names)
    for framework, row in rows:
        meant = _misspelled(row, document)
        if meant and _fits(row, document, {**document.values, **meant}):
            names = {key: _canonical(key, row) for key in document.values}
            return _config(framework, row, document, names)
    return None


def launched_by(document: Document) -> str:
    """Return the framework whose launcher a script or a command calls, "" if none is known."""
    for name, row in frameworks().items():
        if "launcher" in row and re.search(row["launcher"], document.text):
            return name
    return ""


def framework_of(config: Config) -> Row:
    """Return the framework of a configuration."""
    return frameworks()[config.framework]


def _fits(row: Row, document: Document, given: Values) -> bool:
    of_arguments = document.kind in ("shell", "arguments")
    if of_arguments:
        if "launcher" in row and not re.search(row["launcher"], document.text):
            return False
    elif "" in row.get("closed", ()):  # most keys of a file that shares some are another's
        names = {key for key in document.values if "." not in key}
        if 2 * len(known_keys(row)[""] & names) < len(names):
            return False
    if any(all_hold(tests, given) for tests in row.get("signs", ())):
        return True
    spelled = document.values if of_arguments else given  # arguments are spelled in one way alone
    marks = sum(mark in spelled for mark in row.get("marks", ()))
    if row.get("marks") and marks >= row.get("least", 3):
        return all_hold(row.get("besides", {}), given)
    named = any(mark in given for mark in row.get("script_marks", ()))
    return named and re.search(row["script"], document.text) is not None


def _misspelled(row: Row, document: Document) -> dict[str, Any]:
    """Return the signs of a framework that a file has, but for one slip, with their values."""
    if document.kind in ("shell", "arguments"):
        return {}
    signs = {key for tests in row.get("signs", ()) for key, test in tests.items() if test != "!*"}
    meant: dict[str, Any] = {}
    for sign in sorted((signs | {*row.get("marks", ())}) - {*document.values}):
        if _PLAIN.fullmatch(sign):
            for key in islice(document.values, _COMPARED):
                if is_path_slip(key, sign):
                    meant[sign] = document.values[key]
    return meant if len({sign.partition(".")[0] for sign in meant}) == 1 else {}


def _canonical(key: str, row: Row) -> str:
    """Return a key's name in the rows: Megatron's family shares the names of Megatron-LM."""
    if key in row.get("alias", ()):
        return str(row["alias"][key])
    section = row.get("section_of_arguments")
    if section and key.startswith("fp8_") and not key.startswith(section):
        return f"{section}.{key.removeprefix('fp8_')}"
    for prefix in row.get("strip", ()):
        if key.startswith(prefix):
            key = key[len(prefix) :]
            break
    if row.get("family") == "megatron":
        key = key.replace("_", "-")
    return str(row.get("alias", {}).get(key, key))


def _config(framework: str, row: Row, document: Document, names: Mapping[str, str]) -> Config:
    elsewhere = document.elsewhere or row.get("based_on", "")
    given: dict[str, Any] = dict(row.get("defaults", {}))
    origins: dict[str, str] = {}
    for key, value in document.values.items():
        if names[key] not in origins or key == names[key]:
            given[names[key]] = value
            origins[names[key]] = key
    shards = next((n for k in row.get("tensor_parallel", ()) if (n := whole(given.get(k)))), 1)
    return Config(
        path=document.path,
        framework=framework,
        kind=document.kind,
        values=document.values,
        lines=document.lines,
        elsewhere=elsewhere,
        given=given,
        origins=origins,
        branches={names[key]: branch for key, branch in document.branches.items()},
        ask=_ask(row, given, may_default=not elsewhere),
        compile=_switch(
            row.get("compile", ()),
            given,
            None if elsewhere else row.get("compile_default"),
        ),
        checkpointing=_switch(row.get("checkpointing", ()), given, None),
        tensor_parallel=shards,
        deepspeed=any(all_hold(tests, given) for tests in row.get("deepspeed", ())),
        layers=tuple(_layers(row["sizes"], given, shards)) if _is_sized(row, given) else (),
        tokens=_tokens(row, given, may_default=not elsewhere),
    )


def _switch(keys: Sequence[str], given: Values, default: bool | None) -> bool | None:
    for key in keys:
        value = value_of(key, given)
        if value is not MISSING and value != {}:
            said = truth(value)
            return said if said is not None or not isinstance(value, str) else value != ""
    return default


def _ask(row: Row, given: Values, *, may_default: bool) -> Ask | None:
    """Return the request of the first row of `asks` that applies; None if it has no format."""
    for asks in row.get("asks", ()):
        if all_hold(asks["when"], given):
            recipe = _text(asks.get("recipe", ""), given, may_default=may_default)
            fmt = asks.get("format", "")
            fmt = _FORMATS.get(recipe, fmt) if fmt == "fp8" else fmt
            backend = _BACKENDS.get(_text(asks.get("backend", ""), given, may_default=may_default))
            wanted = asks.get("key") or next(iter(asks["when"]))
            key = name_of(wanted, given) or wanted
            return Ask(fmt, recipe or None, backend, key, asks.get("until", "")) if fmt else None
    return None


def _text(wanted: str, given: Values, *, may_default: bool) -> str:
    """Return a word, or for "@key|default" the value of a key; "" if it is set elsewhere."""
    if not wanted.startswith("@"):
        return wanted
    key, _, default = wanted[1:].partition("|")
    value = value_of(key, given)
    said = word(value) if value is not MISSING else ""
    return said.partition("$")[0] if said else default * may_default


def _tokens(row: Row, given: Values, *, may_default: bool) -> int | None:
    found = 1
    for key, default in row.get("tokens", ()):
        number = whole(given.get(key, default if may_default else None))
        if number is None:
            return None
        found *= number
    return found if row.get("tokens") else None


def _is_sized(row: Row, given: Values) -> bool:
    """Whether a model's layers follow from its sizes."""
    keys = (value_of(key, given) for key in row.get("unsized", ()))
    return "sizes" in row and not any(map(is_on, keys))


def _layers(sizes: Row, given: Values, shards: int) -> Iterator[LayerSize]:
    """Yield the linear layers that follow from a decoder's sizes; experts per token."""

    def number(name: str) -> int | None:
        return whole(given.get(sizes.get(name, ""), sizes.get(f"{name}_default")))

    dim, count = number("dim"), number("layers")
    if dim is None or count is None:
        return
    heads = number("heads")
    hidden = number("hidden") or _hidden(sizes, given, dim)
    gated = is_on(given.get(sizes["gated"], MISSING)) if "gated" in sizes else True
    layers = llama_layers(
        dim, hidden, count, heads, number("kv_heads") or heads, number("head_dim"),
        gated=gated, shards=shards,
    )  # fmt: skip
    experts, frequency = number("experts"), number("frequency") or 1
    if experts:
        width = number("expert_hidden") or hidden
        active, sparse = number("top_k") or 1, count // frequency
        yield from layers[:3]
        yield from (part._replace(modules=part.modules * (count - sparse) // count)
                    for part in layers[3:] if sparse < count)  # fmt: skip
        inner = llama_layers(dim, width, sparse * active, gated=gated, shards=1)[3:]
        yield from (part._replace(kind="expert", name=f"expert {part.name}") for part in inner)
    else:
        yield from layers
    vocabulary = number("vocabulary")
    if vocabulary:
        yield LayerSize("output head", vocabulary, dim, kind="head")


def _hidden(sizes: Row, given: Values, dim: int) -> int:
    """Return the width of a feed-forward part that is not given: Llama's rule, or four times."""
    if "multiplier" not in sizes:
        return 4 * dim
    factor = given.get(sizes["multiplier"], 1.0)
    factor = factor if isinstance(factor, (int, float)) and 0 < factor < 1000 else 1.0
    return 256 * math.ceil(int(4 * dim * (2 / 3) * factor) / 256)


_ALIKE, _NEAR = 0.8, 0.7


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the name that was meant by a slip of the keyboard, None if none is so near."""
    plain = name.removeprefix("--").replace("-", "_")
    if len(plain) < 4:
        return None
    close = get_close_matches(plain, sorted(names), n=1, cutoff=_NEAR)
    return close[0] if close and is_slip(plain, close[0]) else None


def is_path_slip(path: str, meant: str) -> bool:
    """Return whether two dotted names differ in one part, and there by a slip."""
    parts, others = path.split("."), meant.split(".")
    differing = [pair for pair in zip(parts, others, strict=False) if pair[0] != pair[1]]
    return len(parts) == len(others) and len(differing) == 1 and is_slip(*differing[0])


def is_slip(given: str, meant: str) -> bool:
    """Whether two names differ by merged words, or in one word by a slip of the keyboard."""
    if given.replace("_", "") == meant.replace("_", ""):
        return True
    words = zip_longest(given.split("_"), meant.split("_"), fillvalue="")
    differing = [(ours, theirs) for ours, theirs in words if ours != theirs]
    if (
        abs(len(given) - len(meant)) > 3
        or len(differing) > 1
        or given.rstrip("s") == meant.rstrip("s")
    ):
        return False
    ours, theirs = differing[0]
    if sorted(ours) == sorted(theirs):
        return True
    if min(len(ours), len(theirs)) < 4 or any(char.isdigit() for char in ours + theirs):
        return False
    return bool(get_close_matches(ours, [theirs], n=1, cutoff=_ALIKE)) and ours[:1] == theirs[:1]
