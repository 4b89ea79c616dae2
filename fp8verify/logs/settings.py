"""Settings that ask for low precision, in dumps of a configuration of any form.

One rule for YAML, JSON, argument tables, reprs of dataclasses and `key=value`: a key whose last
part asks for FP8 or FP4, or for a precision, and a value that is understood. What a recipe, a
margin or a history is set to asks for nothing; nor do the settings of another model, of an engine
for inference, of an optimizer or of a profile that may not be the one in use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from fp8verify.logs.lines import Line
from fp8verify.logs.messages import ALIKE, OTHERS, Message, indent_of
from fp8verify.patterns import lazy_pattern

_LOW = r"(?:(?:mx|nv)?fp[48]|float[48])"
_OFF = lazy_pattern(r"false|no|off|none|null|nil|0|n/a|disabled|inactive|~")
_HIGH = r"(?:bf16|bfloat16|fp16|float16|fp32|float32|tf32|16|32|half|no|none)"

# Keys that ask for a format by their name, as `fp8` (Megatron-LM, NeMo, Megatron-Bridge, axolotl),
# `use_fp8` (scripts), `fp8_enabled` (accelerate), `enable_float8_linear` (torchtitan to 2024),
# `fp8_hybrid` and `fp8_e4m3` (NeMo 1), `fp8_format` (ms-swift); and what they are set to.
_FLAG = lazy_pattern(
    r"(?:(?:use|enable|enabled|with|is|train|training|linear|te|ao|torchao)_)*"
    rf"{_LOW}(?:_(?:enabled?|active|training|train|linears?|layers?|gemms?|matmuls?|autocast"
    r"|mixed_precision|hybrid|e4m3|format|mode|compute))*"
)
_ON = lazy_pattern(
    rf"true|yes|on|1|enabled|active|hybrid|e4m3(?:fn)?|e5m2|e2m1|{_LOW}(?:[_-]\w+)?"
    r"|delayed|(?:dynamic|current|block|delayed|tensor|row)_?(?:wise|scaling)?|\w+scaling\("
)
# What says how, and is set in NeMo 1 and accelerate also where FP8 is off.
_DETAIL = lazy_pattern(r".*_(?:hybrid|e4m3|format|mode)")
# Keys that are set to a precision: `mixed_precision` (accelerate, Megatron-Bridge), `precision`
# (Lightning, NeMo, Composer).
_PRECISION = lazy_pattern(
    r"(?:(?:using|train|training|trainer|mixed|compute|matmul|linear|gemm|model|run|amp|plugin)_)*"
    r"(?:precision|amp)(?:_(?:type|mode|plugin|recipe|config|dtype))?"
)
_LOW_VALUE = lazy_pattern(
    rf"(?:precision\.|torch\.)?(?:bf16_with_|bf16_|amp_)?{_LOW}"
    r"(?:_(?:mixed|hybrid|e4m3|e5m2|current|delayed|sub\w*|block\w*|tensor\w*|row\w*|scal\w+|training"
    r"|true|te|ao))*"
)
_HIGH_VALUE = lazy_pattern(
    rf"(?:precision\.|torch\.)?(?:amp_)?{_HIGH}(?:_(?:mixed|true))?"
)
_SWITCH = lazy_pattern(r"enabled?|active|use")
_SECTION = lazy_pattern(r"_(?:config|cfg|conf|args|arguments|settings|options|kwargs)$")

# What is around a setting that asks for nothing of this run.
_ELSEWHERE = lazy_pattern(
    r"(?<![a-z])(?:(?<!actor_)rollouts?|(?<!rollout_)ref(?:erence)?"
    rf"|{OTHERS.replace('(?<!actor)rollout|', '').replace('ref(?:erence)?', 'refmodel')}"
    r"|eval\w*|validation|optim\w*|ckpt|checkpoint\w*|kv|cache\w*|export|profiles?|presets?|available"
    r"|support\w*|choices|defaults?|examples?|usage|help|hints?|tips?|notes?|previous|prior|old|others?"
    r"|plan\w*|next|todo|baseline|comm\w*|all_?gather|storage|attention|attn|dpa|mha|vae"
    r"|text_?encoders?|quantization_config|tokenizer|dataset|samples?|prompt|unused|would|dry|if|no|not"
    r"|without|set|pass|\w*(?:error|warning|exception))(?![a-z])|\bfile \""
)
_CAMEL = lazy_pattern(r"(?<=[a-z])(?=[A-Z])")

_PAIR = lazy_pattern(
    r"(?<![\w./'\"-])(?P<quote>['\"]?)(?P<key>[A-Za-z_][\w./-]{0,99}"
    r"(?: (?:precision|type|mode|enabled)\b){0,2})(?P=quote)"
    r"(?: ?[:=][ \t]{0,80}|\s{0,80}\.{3,200} {1,80}| {3,80}|[ \t]{0,80}[|\u2502][ \t]{0,80})"
    r"(?P<value>'[^'\n]{0,80}'|\"[^\"\n]{0,80}\"|[^\s,;(){}\[\]|\u2502'\"]{1,80}\(?|[{\[(]|\s{0,80}$)"
)
_BEFORE = lazy_pattern(
    r"(?:[,;|\u2502{\[]|\w\(|[\w./-]{1,60} ?[:=] ?[^\s,]{1,60}(?: [a-z]{1,12})?)\s*$"
)
_AFTER = lazy_pattern(
    r"\s*(?:$|[,;})\]|\u2502]|#|(?:[a-z]{1,12} )?[\w./-]{1,60} ?[:=])"
)
_HEAD = lazy_pattern(
    r"\s{0,200}(?:(?:[-*\u2022>]|\d+[.)]) {1,9})?(?:(?:[\w./()-]{1,60} ?){1,6}:\s*){0,2}"
)
_NAME = lazy_pattern(r"[\w./-]{1,80}['\"]?\s*[:=]?\s*$")
_RULE = lazy_pattern(r"\s*[-=*#_~\u2500]{3,}")
_BANNER = lazy_pattern(rf"{_RULE.pattern}|:$")
# Where in a text a setting may be worth reading.
_MAYBE = lazy_pattern(
    rf"{_LOW}[\w.-]{{0,40}}['\"]?\s{{0,2}}(?:[:=|\u2502]|\.{{3}}|\s)"
    rf"|(?:[:=|\u2502.]|\s{{3}})\s{{0,2}}['\"]?[\w.-]{{0,40}}?{_LOW}"
    rf"|precision[\w ]{{0,12}}['\"]?\s*(?:[:=|\u2502]|\.{{3}})",
    re.IGNORECASE,
)
_MAX_TEXT = 1 << 16
_MAX_PAIRS = 2000  # of a line, of which so many ask for a precision
_MAX_HITS = 10
_QUOTED = 140  # characters of a long line on each side of a setting
_STRANGERS = 20  # lines of other ranks or loggers within a dump


class Request(NamedTuple):
    """A setting for low precision.

    Attributes:
        key: its name, without sections.
        is_on: whether it asks for low precision, or for none.
        value: what it is set to.
        text: the line, or what of a long line is around it.
        values: the other settings of its section.
    """

    key: str
    is_on: bool
    value: str
    text: str
    values: Mapping[str, str]


def may_set(text: str) -> bool:
    """Whether a line may hold a setting for a precision."""
    return _MAYBE.search(text, 0, _MAX_TEXT) is not None


def requests_in(message: Message, line: Line) -> Iterator[Request | None]:
    """Yield the settings for a precision in a line; None for one of something else."""
    text = message.setting[:_MAX_TEXT]
    hits = 0
    for found in islice(_PAIR.finditer(text), _MAX_PAIRS):
        if hits >= _MAX_HITS:
            return
        child, (name, value) = "", _setting(found)
        is_on = _meaning(name, value)
        if is_on is None and _opens(name, value):
            child, value = _switch(text, found, message, line)
            is_on = None
            if value:
                is_on = _meaning(_SECTION.sub("", name), value)
        if is_on is None or not (child or _stands_alone(text, found)):
            continue
        hits += 1
        before = text[: found.start()]
        around = "\n".join([before[-200:], *_sections(before[-4096:]), found["key"]])
        above = headings(line, message.prefix, indent_of(text))
        if message.denied or any(map(_is_elsewhere, (around, *above))):
            yield None
            continue
        values = _siblings(text, name, message.prefix, line)
        if is_on and _DETAIL.fullmatch(name) and _off_in(values):
            yield None
            continue
        yield Request(
            key=name,
            is_on=is_on,
            value=value,
            text=_excerpt(text, found, child),
            values=values,
        )


def _setting(pair: re.Match[str]) -> tuple[str, str]:
    """Return the last part of a key, and what it is set to."""
    name = (
        re.split(r"[./]", pair["key"])[-1].lower().replace("-", "_").replace(" ", "_")
    )
    return name, pair["value"].strip("'\" ")


def _meaning(name: str, value: str) -> bool | None:
    """Return whether a setting switches low precision on or off; None for any other."""
    value = value.lower()
    if _FLAG.fullmatch(name):
        if _ON.fullmatch(value):
            return True
        if _OFF.fullmatch(value):
            return False
        return None
    if _PRECISION.fullmatch(name):
        value = value.replace("-", "_")
        if _LOW_VALUE.fullmatch(value):
            return True
        if _HIGH_VALUE.match(value):
            return False
        return None
    return None


def _off_in(values: Mapping[str, str]) -> bool:
    return any(
        _meaning(name, value) is False
        and _FLAG.fullmatch(name)
        and not _DETAIL.fullmatch(name)
        for name, value in values.items()
    )


def _opens(name: str, value: str) -> bool:
    """Whether a setting is a section for low precision: `fp8:`, `'fp8': {`, `Float8Config(`."""
    return (
        value[-1:] in ("", "{", "(")
        and _FLAG.fullmatch(_SECTION.sub("", name)) is not None
    )


def _switch(
    text: str,
    found: re.Match[str],
    message: Message,
    line: Line,
) -> tuple[str, str]:
    """Return the text and the value of the `enabled` of a section."""
    behind = text[found.end() : found.end() + 400]
    inside = re.split(r"[)}]", behind, maxsplit=1)[0]
    if inside.strip():
        for pair in _PAIR.finditer(inside):
            name, value = _setting(pair)
            if _SWITCH.fullmatch(name):
                return pair[0], value
        return "", ""
    indent = indent_of(text)
    for below in own_lines(line.below(), message.prefix):
        if below.strip() and indent_of(below) <= indent:
            break
        first = _PAIR.search(below)
        if first is None:
            continue
        name, value = _setting(first)
        if _SWITCH.fullmatch(name):
            return below.strip(), value
    return "", ""


def _stands_alone(text: str, found: re.Match[str]) -> bool:
    """Whether a setting is one, and not a part of a sentence or of a quotation."""
    before = text[: found.start()]
    after = text[found.end() :]
    is_quoted = before.count('"') % 2 == 1
    is_listed = before.count("'") % 2 == 1 and "'," in after
    if is_quoted or is_listed:
        return False
    ends = found["value"].endswith("(") or _AFTER.match(after)
    begins = _BEFORE.search(before[-160:]) or _HEAD.fullmatch(before[:400])
    return bool(ends and begins)


def _is_elsewhere(text: str) -> bool:
    return _ELSEWHERE.search(_CAMEL.sub("_", text).lower()) is not None


def _excerpt(
    text: str,
    found: re.Match[str],
    child: str,
) -> str:
    start = 0
    if len(text) > 2 * _QUOTED:
        start = max(0, found.start() - _QUOTED)
    said = text[start : found.end() + _QUOTED].strip()
    if child and child not in said:
        return f"{said} {child}".strip()
    return said


# ---- what is around a setting


def _sections(before: str) -> Iterator[str]:
    """Yield the names before the brackets that are open at the end of a text."""
    opened: list[int] = []
    for place, char in enumerate(before):
        if char in "({[":
            opened.append(place)
        elif char in ")}]" and opened:
            opened.pop()
    names = (_NAME.search(before, max(0, place - 100), place) for place in opened)
    yield from (name[0] for name in names if name)


def own_lines(lines: Iterable[str], prefix: str) -> Iterator[str]:
    """Yield the lines with the same prefix, apart from its digits, without it."""
    width = len(prefix)
    shape = prefix.translate(ALIKE)
    for line in lines:
        if not prefix or line[:width].translate(ALIKE) == shape:
            yield line[width:].rstrip()


def headings(
    line: Line,
    prefix: str,
    indent: int,
) -> Iterator[str]:
    """Yield what a setting is under: lines with less indentation, and a banner."""
    strangers = 0
    for text in own_lines(line.above(), prefix):
        if not text.strip():
            continue
        depth = indent_of(text)
        if depth < indent:
            indent = depth
            yield text
        elif depth == 0 == indent:
            if _BANNER.search(text):
                yield text
                return
            strangers = 0 if _PAIR.search(text) else strangers + 1
            if strangers > 1:
                return


def _siblings(
    text: str,
    key: str,
    prefix: str,
    line: Line,
) -> dict[str, str]:
    """Return the settings beside one, and of other sections of the dump the number of layers."""
    of_line = dict(map(_setting, _PAIR.finditer(text[:4096])))
    # A record is whole in its line; another dump may come before.
    if text.lstrip().startswith("{"):
        return of_line
    values: dict[str, str] = {}
    indent = indent_of(text)
    for lines in (line.below(), line.above()):
        for name, value in _beside(own_lines(lines, prefix), key, indent):
            values.setdefault(name, value)
    return values | of_line


def _beside(lines: Iterable[str], key: str, indent: int) -> Iterator[tuple[str, str]]:
    """Yield the settings on one side of one, and of other sections the number of layers.

    Args:
        lines: those of the dump, from the setting on.
        key: its name, with which another dump begins.
        indent: how far its line is indented; less ends its section.
    """
    strangers = 0
    has_ended = False
    for line in lines:
        if _RULE.match(line):
            return
        pair = _PAIR.search(line)
        if pair is None:
            strangers += 1
            if strangers > _STRANGERS:
                return
            continue
        strangers = 0
        name, value = _setting(pair)
        if name == key and not has_ended:
            return
        depth = indent_of(line)
        has_ended = has_ended or depth < indent
        is_of_section = depth == indent and not has_ended
        if is_of_section or name == "num_layers":
            yield name, value
