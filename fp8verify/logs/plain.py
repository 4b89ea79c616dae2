"""Plain sentences: what a program of which nothing is known says of low precision.

A clause is understood if it consists of the words of `plain.toml` alone: a format, what runs in it,
and a state. Any other word leaves it a mention, so a claim is never read into a sentence that says
something else: of another model, of a plan, of an optimizer's state, in another language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from fp8verify.files import parse_toml
from fp8verify.logs.messages import BESIDE, OTHERS
from fp8verify.patterns import lazy_pattern

_TABLE = Path(__file__).with_name("plain.toml")
_MAX_TEXT = 2000
_MEANINGS = ("high", "work", "on", "off", "while", "doubt", "link")
_WORD = lazy_pattern(r"\w+(?:-\w+)*")
_NAMED_RECIPE = lazy_pattern(r"\bwith recipe[ =:]+(?P<name>\w+)", re.IGNORECASE)
# Before the name of a class its module, as in “nn.Linear”, which says nothing more.
NN: Final = r"(?:torch\.)?nn\."
_MODULE_OF_CLASS = lazy_pattern(rf"\b{NN}(?=[A-Z])")
# “Replaced 224 FP8Linear modules with nn.Linear” is the other way round.
_REPLACED_BY_LINEAR = lazy_pattern(
    r"\b(?:replac|swapp|convert)(?:ed|ing)\b.*\b(?:by|for|into|to|with)\s+"
    rf"(?:{NN})?linear\b"
    r"(?! (?:layer|module)s?\b)",
    re.IGNORECASE,
)
# “Float8Linear” is two words, as are “mixed-precision” and “te.autocast”.
_PART = lazy_pattern(r"[A-Z]*[a-z]+|[A-Z]+|\d+")
_STOP = lazy_pattern(
    r"[,;()\[\]!=:]|\.(?=\s|$)|\s[-\u2013\u2014=]+>?\s|->|\.{3}|\u2026"
)
_SENTENCE_END = lazy_pattern(r"(?<!\.)[.!](?=\s|$)|\n")
# The value that a clause is set to, if that is all that follows it.
_VALUE = lazy_pattern(r"\s*(?::|=+>?|->)\s*(?P<value>[^\s,;.!)]*)\s*(?=[,;.!)(\[]|$)")
# “compile=False” says nothing against a claim; “enabled=False” does.
_ASIDE = lazy_pattern(
    r"\b(?!\w*(?:enabled|active|status|recipe|dry))[a-z]\w*=[\w.'\"]+", re.IGNORECASE
)
# What is said of other models than the one that is trained says nothing of this run.
_OF_ANOTHER = lazy_pattern(rf"(?<![a-z])(?:{OTHERS}|{BESIDE})", re.IGNORECASE)
# Templates, tables, options, questions, quotations, and letters and marks of other languages.
_FOREIGN = lazy_pattern(
    r"[?{}<%$`\\\"|]|(?<!\S)--?\w|[^\x00-\x7f\u2013\u2014\u2026\u2713\u2714\u2705]"
)


_STEPS = lazy_pattern(
    r"\b(?P<count>\d{1,9}) (?:training |optimizer )?(?:steps?|iterations?|updates?)\b"
    r"|\b(?:step|iteration|update) (?P<step>\d{1,9})\b",
    re.IGNORECASE,
)
# A count of the layers that can be converted: “21 linear layers”, “96 linears”.
LINEARS: Final = r"\d{1,7} (?:linear (?:layer|module)|(?:float8|fp8)?linear)s\b"
_LINEARS = lazy_pattern(rf"\b{LINEARS}", re.IGNORECASE)


class Clause(NamedTuple):
    """A clause of a message on low precision.

    Attributes:
        says: "fp8" (it claims low precision) or "not_fp8".
        end: where it ends in the message.
        until: the last step for which it holds; None for all, or if it names none.
    """

    says: str
    end: int
    until: int | None = None


@cache
def table() -> dict[str, tuple[str, ...]]:
    """Return the words of `plain.toml` by what they mean."""
    rows = parse_toml(_TABLE.read_text(encoding="utf-8"))
    return {meaning: tuple(words) for meaning, words in rows.items()}


@cache
def _low() -> re.Pattern[str]:
    prefixes = "|".join(table()["low_prefixes"])
    # “float 8” and “FP-8” are as good as “float8”.
    words = [re.sub(r"(?=\d)", "[- ]?", word) for word in table()["low"]]
    formats = "|".join(words)
    return re.compile(rf"(?:(?:{prefixes})[- ]?)?(?:{formats})(?!\d)", re.IGNORECASE)


@cache
def _pattern(meaning: str) -> re.Pattern[str]:
    words = []
    for word in table()[meaning]:
        words.append(re.escape(word).replace(r"\*", "[a-z-]*"))
    any_word = "|".join(words)
    return re.compile(rf"(?:{any_word})s?", re.IGNORECASE)


def read(text: str, prefix: str = "") -> Clause | None:
    """Return the clause by which a message claims low precision, or says that it is off.

    Only the first clause of a message claims: what follows another is said about that. What says
    that low precision is off may come after others. A format that stands alone before the first
    clause, as in “[fp8] 96 linear layers converted”, is what the clause is about.

    Args:
        text: the message.
        prefix: what a logger or the program itself wrote before it.
    """
    text = text[:_MAX_TEXT]
    if _FOREIGN.search(text):
        return None
    is_first = True
    is_labelled = _is_label(prefix)
    for start, end in _clauses(text):
        if _claims_nothing(text, start, end):
            return None
        own = _meanings(text[start:end])
        said = own
        is_label = said == {"low"}
        if is_first and is_labelled:
            said = said | {"low"}
        if value := _VALUE.match(text, end):
            end = value.end()
            said = _with_value(said, value["value"])
        if "doubt" in said:
            return None
        if _denies(said):
            # “FP8 until step 8” holds low precision up to there, and not the other.
            is_warm_up = {"high", "while"} <= own and "low" not in own
            until = _last_step(text[start:end]) if is_warm_up else None
            return Clause("not_fp8", end, until)
        if is_first and _claims(said):
            rest = _rest_of_sentence(text, end)
            counts = _LINEARS.search(text, start, end) is not None
            if not takes_back(rest, counts=counts):
                return Clause("fp8", end)
        is_first = is_first and (is_label or not said - {"low"})
        is_labelled = is_labelled or is_label
    return None


def _claims_nothing(text: str, start: int, end: int) -> bool:
    """Whether a clause is about another model, or has FP8 layers replaced by plain ones."""
    is_of_another = _OF_ANOTHER.search(text, start, end)
    takes_fp8_away = _REPLACED_BY_LINEAR.search(text, start, end)
    return bool(is_of_another or takes_fp8_away)


def _last_step(clause: str) -> int | None:
    """Return the number of steps that a clause names: “BF16 for the first 100 steps”."""
    found = _STEPS.search(clause)
    if found is None:
        return None
    return int(found["count"] or found["step"])


def _is_label(prefix: str) -> bool:
    """Whether the part next to the message is a format in brackets, and nothing else."""
    label = re.search(r"\[([^\[\]]{1,40})\]\s*$", prefix)
    return label is not None and _low().fullmatch(label[1].strip()) is not None


def _rest_of_sentence(text: str, start: int) -> str:
    stop = _SENTENCE_END.search(text, start)
    if stop is None:
        return text[start:]
    return text[start : stop.start()]


def takes_back(rest: str, *, counts: bool = False) -> bool:
    """Whether what follows a claim in its sentence says that it may not hold.

    Args:
        rest: what follows.
        counts: whether the claim counts its layers: others may run in high precision.
    """
    rest = rest[:_MAX_TEXT]
    is_quoted = rest.count("'") % 2 == 1
    if is_quoted or _FOREIGN.search(rest):
        return True
    said = _meanings(_ASIDE.sub(" ", rest))
    against = {"off", "while", "doubt"}
    if not counts:
        against.add("high")
    return not said.isdisjoint(against)


def _claims(said: set[str]) -> bool:
    return said >= {"low", "work", "on"} and said.isdisjoint(
        {"high", "while", "unknown"}
    )


def _denies(said: set[str]) -> bool:
    # Both together, as in “skipping the bf16 warm-up”, say neither.
    is_off = "off" in said
    is_for_a_while = "while" in said
    if "unknown" in said or is_off is is_for_a_while:
        return False
    # “fp8: false” is a setting, and says nothing of what runs.
    is_of_low = "low" in said and not said.isdisjoint({"work", "on"})
    return is_of_low or "high" in said


def _with_value(said: set[str], value: str) -> set[str]:
    """Return what a clause means with the value that it is set to; an empty one is unknown."""
    if _low().match(value):  # “Float8LinearConfig(…)”
        return said | {"low"}
    meanings = _meanings(value) or {"unknown"}
    return said | meanings


def _clauses(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each clause of a message begins and ends."""
    start = 0
    for stop in _STOP.finditer(text):
        yield start, stop.start()
        start = stop.end()
    yield start, len(text)


def _meanings(clause: str) -> set[str]:
    """Return what the words of a clause mean, "number" and "unknown" among these."""
    clause = _NAMED_RECIPE.sub(_without_name, clause)
    clause = _MODULE_OF_CLASS.sub("", clause)
    low = _low()
    found: set[str] = set()
    if low.search(clause):
        found.add("low")
    for word in _WORD.findall(low.sub(" ", clause)):
        meaning = _meaning(word)
        if meaning == "unknown" and "_" not in word:
            found.update(_meaning(part) for part in _PART.findall(word))
        else:
            found.add(meaning)
    return found


def _without_name(recipe: re.Match[str]) -> str:
    """Return a mention of a recipe without its name, which may be any word."""
    is_name = _meaning(recipe["name"]) in ("unknown", "number")
    if is_name:
        return "with recipe"
    return recipe[0]


def _meaning(word: str) -> str:
    if word.isdecimal() and int(word) == 0:
        return "off"
    for meaning in _MEANINGS:
        if _pattern(meaning).fullmatch(word):
            return meaning
    # Sizes, numbers of layers and names of GPUs: 48, 1x16, GB200.
    if any(map(str.isdigit, word)):
        return "number"
    return "unknown"
