"""The frameworks' files and a user's own as typed rows, the latter checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

import msgspec

from fp8verify.errors import UsageError
from fp8verify.frameworks import built_in, declared
from fp8verify.frameworks.expressions import fault_of, fixed_word

OWN = "training script"  # a script's own words, of no framework that we know
# A class with its package or module, and what it may be said to compute.
_ClassName = Annotated[str, msgspec.Meta(pattern=r"\.")]
_State = Literal["fp8", "mxfp8", "nvfp4", "mxfp4", "high_precision"]


class _Row(
    msgspec.Struct,
    frozen=True,
    eq=False,
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """A table of a file."""


class LayerLine(_Row, frozen=True, eq=False):
    """A log line about single layers.

    Attributes:
        select: how its names select modules: "name", "part" of a name, or "blocks", as
            `LayerClaim` of `logs/statements.py` explains.
        word: a lower-case word of every such line.
        line: the expression, with groups `path` or `names`, and `new` and `old`, `key` or `type`.
    """

    select: str
    word: str
    line: str


class StepCounter(_Row, frozen=True, eq=False):
    """Where a framework counts completed optimizer steps.

    Attributes:
        cls: the class, with its module, whose method is called before each batch, or each epoch.
        method: the name of that method.
        path: attributes that lead from the object that counts to the counter.
        owner: attribute of the class's instance that is this object; "" if it is the instance.
        early: whether it counts before the optimizer's step, so a hook reads the number.
        drives: whether the framework may drive another one that counts too, and comes first.
        shown: how captures call the framework, its name in lower case if empty.
    """

    cls: str
    method: str
    path: str
    owner: str = ""
    early: bool = False
    drives: bool = False
    shown: str = ""


class Framework(_Row, frozen=True, eq=False):
    """What is known of one framework. Expressions are matched where a message begins, in any case.

    `<FORMAT>` in them stands for the name of any low-precision format. A claim or a denial that holds
    for some steps has the group `from_step` or `until_step`.

    Attributes:
        name: how reports call it.
        claims: messages that low precision is on; the groups `recipe`, and `converted` and `total`
            layers, are read.
        denials: messages that it is off or fell back.
        limits: messages that limit where.
        words: lower-case words of messages that name no FP8 or FP4; others are not looked at.
        loss: the line with the loss: groups `loss` and, if it can, `step`; NUM is a number.
        layers: lines about single layers.
        counters: its step counters.
        modules: what classes of modules compute, by package or module and class.
        leaves_experts: whether it leaves the experts of an MoE in high precision by design.
        declared: whether a user's settings say so.
    """

    name: str
    claims: tuple[str, ...] = ()
    denials: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    loss: str | None = None
    layers: tuple[LayerLine, ...] = ()
    counters: tuple[StepCounter, ...] = ()
    modules: dict[_ClassName, _State] = {}
    leaves_experts: bool = False
    declared: bool = False


@cache
def frameworks() -> tuple[Framework, ...]:
    """Return all frameworks: those of the user first, a script's own words last."""
    tables = msgspec.convert([*declared, *built_in()], tuple[Framework, ...])
    return tuple(sorted(tables, key=lambda one: one.name == OWN))


def declare(given: Any, place: str) -> None:
    """Take what a settings file says of the user's own frameworks, for this process.

    Args:
        given: the table `frameworks`.
        place: the file, for messages.

    Raises:
        UsageError: it is not such a table, or an expression is wrong or may take forever.
    """
    if not isinstance(given, Mapping):
        raise UsageError(
            f"{place}: frameworks is not a table.",
            "Write [tool.fp8verify.frameworks.NAME].",
        )
    rows = []
    for name, table in given.items():
        row = _of_user(str(name), table, place)
        rows.append(msgspec.to_builtins(row))
    declared[:] = rows
    frameworks.cache_clear()


def _of_user(name: str, table: Any, place: str) -> Framework:
    where = f"{place}: frameworks.{name[:80]}"
    try:
        fields = {}
        for key, value in dict(table).items():
            fields[key.replace("-", "_")] = value
        given = msgspec.convert({**fields, "name": name, "declared": True}, Framework)
    except (msgspec.ValidationError, TypeError, ValueError, AttributeError) as error:
        known = set(Framework.__struct_fields__) - {"name", "declared"}
        raise UsageError(
            f"{where}: {str(error)[:200]}.",
            f"Its keys are: {', '.join(sorted(known))}.",
        ) from None
    words = list(given.words)
    expressions = [*given.claims, *given.denials, *given.limits]
    expressions += [row.line for row in given.layers]
    for expression in [*expressions, *filter(None, [given.loss])]:
        if fault := fault_of(expression):
            hint = (
                "Write one that names its words and bounds its repetitions, as .{0,80}."
            )
            raise UsageError(f"{where}: {expression[:80]!r} {fault}.", hint)
        words.append(fixed_word(expression))
    if given.loss is not None and "loss" not in re.compile(given.loss).groupindex:
        raise UsageError(
            f"{where}.loss has no group named loss.",
            r"Write for instance 'loss (?P<loss>[\d.]+)'.",
        )
    return msgspec.structs.replace(given, words=tuple(dict.fromkeys(words)))
