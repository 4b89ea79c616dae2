"""Which framework a document belongs to, by data/frameworks.toml, and what it asks for."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from itertools import chain, islice, zip_longest
from typing import Any, NamedTuple

from fp8verify.preflight.documents import Document
from fp8verify.preflight.layers import LayerSize, layers_from_sizes
from fp8verify.preflight.tables import (
    MISSING,
    Values,
    all_hold,
    keys_of,
    name_of,
    schemas,
    table,
    truth,
    value_of,
    whole,
)

Row = Mapping[str, Any]
_PLAIN = re.compile(r"[A-Za-z0-9_.-]+")
_COMPARED = 300  # keys of a file that are compared with the signs of frameworks
_FORMATS = {
    "mxfp8": "mxfp8",
    "blockwise": "fp8_block",
    "block": "fp8_block",
    "nvfp4": "nvfp4",
}
_BACKENDS = {
    "ao": "torchao",
    "torchao": "torchao",
    "te": "te",
    "msamp": "msamp",
}


class Ask(NamedTuple):
    """A wish for low precision.

    Attributes:
        format: "fp8", "fp8_block", "mxfp8" or "nvfp4".
        recipe: how it scales, such as "tensorwise", "rowwise" or "delayed", if that is known.
        backend: "torchao", "te" or "msamp", None if the framework chooses.
        key: the key that asks, by which its line is found.
        until: when the framework dropped that key, "" if it has it.
    """

    format: str
    recipe: str | None = None
    backend: str | None = None
    key: str = ""
    until: str = ""


class Config(NamedTuple):
    """A configuration, and its settings for the run.

    Attributes:
        document: its file, or "the command" for arguments.
        framework: the framework that reads it.
        row: the framework's row.
        given: its values, and the framework's defaults, by the names that the rules use.
        origins: the keys of the document by these names.
        ask: the low precision that it requests.
        compile: whether the model is compiled; None if not given.
        checkpointing: whether activations are recomputed in the backward pass; None if not given.
        tensor_parallel: number of GPUs that each matrix is split over.
        layers: the linear layers that follow from its sizes.
        tokens: the tokens of a micro-batch on one GPU; None if not given.
    """

    document: Document
    framework: str
    row: Row
    given: Values
    origins: Mapping[str, str]
    ask: Ask | None
    compile: bool | None
    checkpointing: bool | None
    tensor_parallel: int
    layers: tuple[LayerSize, ...]
    tokens: int | None

    @property
    def path(self) -> str:
        """Its file as the user named it."""
        return self.document.path

    def line_of(self, name: str) -> int | None:
        """Return the line of a key, by the name that the rules use."""
        key = self.origins.get(name, name)
        return self.document.lines.get(key)

    def branch_of(self, name: str) -> int | None:
        """Return the branch of a script that alone gives a key, by the name that rules use."""
        key = self.origins.get(name, name)
        return self.document.branches.get(key)


@cache
def frameworks() -> dict[str, Row]:
    """Return the frameworks by name, in the order in which they are asked.

    `keys` of each are those that it knows, by section, as far as we do; `source` is where they are
    from.
    """
    rows = dict(table("frameworks"))
    del rows["families"]
    return {name: _completed(name, row) for name, row in rows.items()}


def _completed(name: str, row: Row) -> Row:
    families = table("frameworks")["families"]
    family = families.get(row.get("family"), {})
    schema = row.get("schema", name)
    keys = {}
    under = row.get("under")
    for section, names in keys_of(schema).items():
        if under and section:
            keys[f"{under}.{section}"] = names
        else:
            keys[under or section] = names
    for section, names in row.get("fields", {}).items():
        known = keys.get(section, frozenset())
        keys[section] = known | frozenset(names)
    schema_row = schemas().get(schema, {})
    source = schema_row.get("source")
    return {
        "kinds": ["yaml"],
        **family,
        **row,
        "keys": keys,
        "has_schema": source is not None,
        "source": source or row["evidence"],
    }


def recognize(document: Document) -> Config | None:
    """Return the configuration that a document is, None if no framework knows its keys."""
    rows = {}
    for framework, row in frameworks().items():
        if document.kind in row["kinds"]:
            rows[framework] = row
    for alike in (_renamed, _misspelled):
        for framework, row in rows.items():
            more = alike(row, document)
            given = {**document.values, **more}
            if more and _fits(row, document, given):
                return _config(framework, row, document)
    return None


def _renamed(row: Row, document: Document) -> dict[str, Any]:
    renamed = {}
    for key, value in document.values.items():
        renamed[_canonical(key, row)] = value
    return renamed


def launched_by(document: Document) -> str:
    """Return the framework whose launcher a script or a command calls, "" if none is known."""
    for name, row in frameworks().items():
        if "launcher" in row and re.search(row["launcher"], document.text):
            return name
    return ""


def _fits(
    row: Row,
    document: Document,
    given: Values,
) -> bool:
    if document.is_launch:
        if "launcher" in row and not re.search(row["launcher"], document.text):
            return False
    elif "" in row.get("closed", ()) and _is_mostly_of_others(row, document):
        return False
    seen = {**given, "<text>": document.text}
    for tests in row.get("signs", ()):
        if all_hold(tests, seen):
            return True
    spelled = given
    if document.is_launch:  # arguments have one spelling alone
        spelled = document.values
    marks = spelled.keys() & row.get("marks", ())
    besides = row.get("besides", {})
    return len(marks) >= 3 and all_hold(besides, given)


def _is_mostly_of_others(row: Row, document: Document) -> bool:
    """Whether a file shares only some keys with a framework that has no others."""
    names = {key for key in document.values if "." not in key}
    known = names & row["keys"][""]
    return 2 * len(known) < len(names)


def _misspelled(row: Row, document: Document) -> dict[str, Any]:
    """Return the signs of a framework that a file has, but for one slip, with their values."""
    if document.is_launch:
        return {}
    signs = {*row.get("marks", ())}
    for tests in row.get("signs", ()):
        signs |= {key for key, test in tests.items() if test != "!*"}
    meant: dict[str, Any] = {}
    for sign in sorted(signs - {*document.values}):
        if not _PLAIN.fullmatch(sign):
            continue
        for key in islice(document.values, _COMPARED):
            # `train` is no slip of `trainer`: another framework has it.
            is_name = _names_of_signs().issuperset(key.split("."))
            if is_path_slip(key, sign) and not is_name:
                meant[sign] = document.values[key]
    sections = {sign.partition(".")[0] for sign in meant}
    if len(sections) == 1:
        return meant
    return {}


@cache
def _names_of_signs() -> frozenset[str]:
    """Return the parts of all names by which frameworks are recognized."""
    names: set[str] = set()
    for row in frameworks().values():
        for sign in [*row.get("marks", ()), *chain.from_iterable(row.get("signs", ()))]:
            for name in sign.split("|"):
                names.update(name.split("."))
    return frozenset(names)


def _canonical(key: str, row: Row) -> str:
    """Return a key's name in the rows: Megatron's family shares the names of Megatron-LM."""
    aliases = row.get("alias", {})
    if key in aliases:
        return str(aliases[key])
    for prefix in row.get("strip", ()):
        if key.startswith(prefix):
            key = key.removeprefix(prefix)
            break
    if row.get("family") == "megatron":
        key = key.replace("_", "-")
    return str(aliases.get(key, key))


def _config(
    framework: str,
    row: Row,
    document: Document,
) -> Config:
    if not document.elsewhere:
        document = document._replace(elsewhere=_based_on(row, document))
    may_default = not document.elsewhere
    given: dict[str, Any] = dict(row.get("defaults", {}))
    origins: dict[str, str] = {}
    for key, value in document.values.items():
        name = _canonical(key, row)
        if name not in origins or key == name:
            given[name] = value
            origins[name] = key
    compiles = row.get("compile", {})
    compiles_by_default = None
    if may_default:
        compiles_by_default = compiles.get("default")
    keys_of_shards = row.get("tensor_parallel", ())
    shards = [whole(given.get(key)) for key in keys_of_shards]
    tensor_parallel = next(filter(None, shards), 1)
    return Config(
        document=document,
        framework=framework,
        row=row,
        given=given,
        origins=origins,
        ask=_ask(row, given, may_default=may_default),
        compile=_switch(compiles.get("keys", ()), given, compiles_by_default),
        checkpointing=_switch(row.get("checkpointing", ()), given),
        tensor_parallel=tensor_parallel,
        layers=tuple(layers_from_sizes(row, given, tensor_parallel)),
        tokens=_tokens(row.get("tokens", ()), given, may_default=may_default),
    )


def _based_on(row: Row, document: Document) -> str:
    """Return what has the settings that a document only changes, "" if it is complete."""
    based_on = row.get("based_on", "")
    if document.is_launch:
        based_on = row.get("launch_based_on", based_on)
    return str(based_on)


def _switch(
    keys: Sequence[str],
    given: Values,
    default: bool | None = None,
) -> bool | None:
    for key in keys:
        value = value_of(key, given)
        if value is MISSING or value == {}:
            continue
        is_true = truth(value)
        if is_true is None and isinstance(value, str):
            return value != ""
        return is_true
    return default


def _ask(
    row: Row,
    given: Values,
    *,
    may_default: bool,
) -> Ask | None:
    """Return the request of the first row of `asks` that applies; None if it has no format."""
    for asks in row.get("asks", ()):
        if not all_hold(asks["when"], given):
            continue
        recipe = _text(asks.get("recipe", ""), given, may_default=may_default)
        wanted_format = asks.get("format", "")
        if wanted_format == "fp8":
            wanted_format = _FORMATS.get(recipe, wanted_format)
        if not wanted_format:
            return None
        backend = _text(asks.get("backend", ""), given, may_default=may_default)
        wanted_key = asks.get("key") or next(iter(asks["when"]))
        return Ask(
            format=wanted_format,
            recipe=recipe or None,
            backend=_BACKENDS.get(backend),
            key=name_of(wanted_key, given) or wanted_key,
            until=asks.get("until", ""),
        )
    return None


def _text(
    wanted: str,
    given: Values,
    *,
    may_default: bool,
) -> str:
    """Return a word, or for "@key|default" the value of a key; "" if it is set elsewhere."""
    if not wanted.startswith("@"):
        return wanted
    key, _, default = wanted[1:].partition("|")
    value = word(value_of(key, given))
    if value:
        return value.partition("$")[0]
    if may_default:
        return default
    return ""


def word(value: Any) -> str:
    """Return a value as a lower-case word; "" for other values."""
    if isinstance(value, str):
        return value.strip().lower()
    return ""


def _tokens(
    factors: Sequence[tuple[str, int]],
    given: Values,
    *,
    may_default: bool,
) -> int | None:
    """Return the product of the keys that give it, by their values or defaults."""
    numbers = []
    for key, default in factors:
        value = given.get(key, default if may_default else None)
        number = whole(value)
        if number is None:
            return None
        numbers.append(number)
    if numbers:
        return math.prod(numbers)
    return None


_ALIKE = 0.8
_NEAR = 0.7


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the name that was meant by a slip of the keyboard, None if none is so near."""
    plain = name.removeprefix("--").replace("-", "_")
    if len(plain) < 4:
        return None
    close = get_close_matches(plain, sorted(names), n=1, cutoff=_NEAR)
    if close and is_slip(plain, close[0]):
        return close[0]
    return None


def is_path_slip(path: str, meant: str) -> bool:
    """Return whether two dotted names differ in one part, and there by a slip."""
    parts = path.split(".")
    others = meant.split(".")
    if len(parts) != len(others):
        return False
    differing = []
    for part, other in zip(parts, others, strict=True):
        if part != other:
            differing.append((part, other))
    return len(differing) == 1 and is_slip(*differing[0])


def is_slip(given: str, meant: str) -> bool:
    """Whether two names differ by merged words, or in one word by a slip of the keyboard."""
    if given.replace("_", "") == meant.replace("_", ""):
        return True
    words = zip_longest(given.split("_"), meant.split("_"), fillvalue="")
    differing = [pair for pair in words if pair[0] != pair[1]]
    is_plural = given.rstrip("s") == meant.rstrip("s")
    is_longer = abs(len(given) - len(meant)) > 3
    if is_plural or is_longer or len(differing) > 1:
        return False
    ours, theirs = differing[0]
    if sorted(ours) == sorted(theirs):
        return True
    is_short = min(len(ours), len(theirs)) < 4
    if is_short or any(char.isdigit() for char in ours + theirs):
        return False
    is_alike = get_close_matches(ours, [theirs], n=1, cutoff=_ALIKE)
    begins_alike = ours[:1] == theirs[:1]
    return bool(is_alike) and begins_alike
