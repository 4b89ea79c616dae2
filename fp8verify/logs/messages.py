"""The message in a log line, behind progress bars and loggers' prefixes.

Text elsewhere in a line, such as a quotation, a comment or source code, is not a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from fp8verify.logs.lines import uncolored
from fp8verify.patterns import lazy_pattern

MAX_MESSAGE = 4096
_MAX_DUMP = 1 << 16  # of a line that is no JSON
_MAX_PREFIXES = 16
_MAX_NESTING = 3
# Source code and wrapped help texts are indented this far; what programs print is not.
_INDENT = 4


class Message(NamedTuple):
    """What a program said.

    Attributes:
        text: without the prefixes of loggers and launchers; empty for an indented line without one,
            which may be a setting of a dump, but says nothing.
        denied: whether its prefix takes it back, as `[dry-run]` does, or gives it to another model.
        setting: the same, indentation and names before a colon included.
        prefix: what only a logger or a launcher writes before it.
        rank: whose line it is by its prefix; None for rank 0 too, which speaks for the run.
    """

    text: str
    denied: bool = False
    setting: str = ""
    prefix: str = ""
    rank: str | None = None

    @property
    def before(self) -> str:
        """What is before its text, a logger's names included."""
        return self.prefix + self.setting.removesuffix(self.text)


# Lines that differ in digits alone are alike. As many digits as before, so fp8 stays another word
# than fp16.
ALIKE = str.maketrans("123456789", "0" * 9)

# Where a message may begin within a line: after a cursor move, a progress bar of tqdm, and rows
# of one character, which progress bars and rulers are made of.
_BREAK = lazy_pattern(
    r"\x1b\[[0-9;?]*[A-HJKf]|[\b\v\f]+"
    r"|\[\d+:\d\d(?::\d\d)?(?:<[^\]]{1,300}|, [^\]]{0,80}(?:/s|s/\w)[^\]]{0,300})\]"
    r"|([^\w\s])\1{7,}|(\w)\2{39,}|[ \t]{200,}"
)
# Comments of programming languages and markup, docstrings and quotations.
_FOREIGN = lazy_pattern(r"\s*(?:#|//|/\*|<!--|--\s|;|%%|[\"'`“\u2018«])")
_QUOTED = lazy_pattern(r"\s*['\"][\w./-]{1,80}['\"]\s?:")

_CLOCK = r"\d{1,2}:\d\d:\d\d(?:[.,]\d+)?(?:\s?[AP]M\b)?"
_DAY = (
    r"(?:\d{4}[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.]\d\d?[-/.]\d{2,4}"
    r"|(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),?\s+)?"
    r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s+\d{1,2})"
)
# What only a logger or a launcher writes.
_STRONG = lazy_pattern(
    rf"(?:{_DAY}[T _-]?\s*{_CLOCK}(?:\s+\d{{4}})?|{_CLOCK}|{_DAY}|\d{{10}}\.\d+)"
    r"(?:Z|\s?[+-]\d\d:?\d\d)?"
    r"|(?:DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|SUCCESS|TRACE)\b"
    r"|(?:[Dd]ebug|[Ii]nfo|[Nn]otice|[Ww]arn(?:ing)?|\w{1,30}Warning)(?=\s*:)"
    rf"|[IWEF]\d{{4}} {_CLOCK}\s+\d+ [\w./-]{{1,80}}:\d+\]"
    r"|\[[^\[\]]{0,160}\]|<std(?:out|err)>"
    r"|\((?=[^()]{0,120}\b(?:pid|ip|rank|worker)\b)[^()]{1,120}\)"
    r"|(?i:(?:global|local)?[ _-]?rank[ _=#-]?\d+|(?:worker|gpu|node|process|proc)[ _=#-]?\d+)"
    r"(?=\s*[:|\]>-])"
    r"|\d{1,5}(?=: )|std(?:out|err) [FP](?= )|[\w.-]{1,60}(?= {1,20}\| )"
    r"|[^\s:()]{1,300}\.py:\d+:(?: \w{0,40}Warning:)?"
)
# What may also be a word of the text: a logger's name counts only next to a strong prefix.
_NAME = lazy_pattern(
    r"[A-Za-z_][\w./-]{0,100}(?:::?[\w.<>/-]{1,60}){0,3}(?:\[\d+\])?(?=\s*[:|]|\s+(?:-|>>)\s)"
    r"|[A-Za-z][\w.-]{0,60} [\w./-]{1,60}\[\d+\](?=:)"
)
_FIELD = lazy_pattern(r"[\w.:/@-]{1,160}(?=\t)")  # of a logger that separates with tabs
_SEPARATOR = lazy_pattern(
    r"[\s\ufeff\ufffd]+|[:»•·\u2013\u2014]+|(?<=.)\|+|>{1,2}(?=\s)|(?:[-*]|={2,}|-{3,}|\*{2,})(?=\s)"
)
# Models and programs beside the one that is trained; an actor with a rollout is trained.
OTHERS = (
    r"(?:teacher|(?<!actor)rollout|ref(?:erence)?(?:[-_ ]?(?:worker|model|policy))?(?![a-z])|reward"
    r"|draft|inference|generat(?:ion|or)|serving|vllm|sglang|trt-?llm|lmdeploy|tensorrt_?llm)"
)
# Models that are trained beside the one that a log is about.
BESIDE = r"(?:critic(?!al)|discriminator|value[-_ ]?(?:model|net|func)\w*|ema(?![a-z]))"
_DENIAL = lazy_pattern(
    r"\bdry\b|\bdry.?run|\bwould\b|\bexample|\bsample\b|\bskip|\bnot\b|^\[no\b|\bfail|\bdisab"
    r"|\bexpected|EngineCore|\bsimulat|\bmock|\bprompt\b|\bdataset|\btodo\b|\boff\b|^\[\s*\]$"
    rf"|(?<![a-z])(?:{OTHERS}|{BESIDE})"
    # Words that, on their own, give what follows to something else than this run; within a
    # logger's name they are those of files.
    r"|^\W*(?:eval(?:uat\w+)?|validat\w+|export\w*|baseline|next|unused|plan\w*|propos\w+|future"
    r"|later|upcoming|wish\w*|ideas?|(?:previous|prior|last|other|old)[ _-](?:run|job|log))\b"
    r"(?![^\])]*[/.:])",
    re.IGNORECASE,
)
# Words before a colon that name a text, not a logger.
_TEXTUAL = lazy_pattern(
    r"prompt|text|sample|input|output|label|answer|question|expect|example|\bnotes?\b|hint|usage"
    r"|help|\bdoc|comment|todo|say|quote|\buser\b|assistant|dry|would|skip|\bnot?\b|\w*Error\b"
    r"|\w*Exception\b|^(?:(?:mx|nv)?fp[48]|float[48])$",
    re.IGNORECASE,
)
_MARKS = lazy_pattern(r"[\u2190-\u2bff\u200d\ufe0e\ufe0f\U0001f000-\U0001faff]+")
# The number of a rank in a prefix: [rank3], 3:, [1,3]<stdout>, [default3]; no date or clock.
_RANK = lazy_pattern(
    r"\b(?:rank|worker|process|proc|default)[ _=#-]?0*(?P<rank>[1-9]\d{0,4})\b(?!\])"
    r"|(?:\[(?:rank|default)[ _=#-]?|^\[\d+,)0*(?P<named>[1-9]\d{0,4})\]"
    r"|^0*(?P<alone>[1-9]\d{0,4})$",
    re.IGNORECASE,
)
_CROSSES = lazy_pattern("[✗✘❌✖⛔🚫☐⬜❎⏭🟥🔴]")


def messages_of(
    line: str,
    words: Sequence[str] = ("",),
) -> Iterator[Message]:
    """Yield the messages of a line: mostly one, several after progress bars.

    Only parts with one of the lower-case `words` are read: a line may contain the progress bars of
    a whole run.
    """
    if _QUOTED.match(line):
        yield Message("", setting=line.rstrip())  # a line of a dump, if anything
    for part in _parts(line):
        if any(map(part.lower().__contains__, words)):
            yield from _messages(part)


def _parts(text: str) -> Iterator[str]:
    """Yield the line and what follows each break in it."""
    if _FOREIGN.match(text):
        return
    yield text
    quotes = 0
    breaks = [found.span() for found in _BREAK.finditer(text)]
    for (_, start), (end, _) in pairwise([(0, 0), *breaks, (len(text), 0)]):
        if start and quotes % 2 == 0:
            yield text[start:end]
        quotes += text.count('"', start, end)


def _messages(text: str, depth: int = 0) -> Iterator[Message]:
    text = uncolored(text[: None if "{" in text[:200] else _MAX_DUMP]).rstrip()
    at, strong, denied, named, rank = _prefix(text)
    body = text[at:]
    if depth < _MAX_NESTING and (inner := _structured(body)) is not None:
        if body.startswith("{"):  # a record or a dump, whose fields may be settings
            yield Message(
                text="",
                denied=denied,
                setting=text[named:],
                prefix=text[:named],
                rank=rank,
            )
        for line in inner.splitlines():
            for part in _parts(line):
                yield from _messages(part, depth + 1)
    else:
        said = ""
        if strong or indent_of(text) < _INDENT:
            said = body[:MAX_MESSAGE]
        yield Message(
            text=said,
            denied=denied,
            setting=text[named:],
            prefix=text[:named],
            rank=rank,
        )


def indent_of(text: str) -> int:
    """Return how far a line is indented, with its tabs expanded."""
    expanded = text[:200].expandtabs()
    return len(expanded) - len(expanded.lstrip())


def _prefix(text: str) -> tuple[int, bool, bool, int, str | None]:
    """Read what loggers and launchers put before a message.

    Return where that ends, whether only a logger writes it, whether it denies the message, where
    the last part ends that only a logger writes, and the rank.
    """
    at = 0
    named = 0
    denied = False
    names = 0
    rank = None
    for _ in range(_MAX_PREFIXES):
        if found := _STRONG.match(text, at):
            names = 0
            named = _PUNCTUATION.match(text, found.end()).end()  # type: ignore[union-attr]
            denied = denied or bool(_DENIAL.search(found[0]))
            if number := _RANK.search(found[0]):
                rank = number["rank"] or number["named"] or number["alone"]
        elif found := _MARKS.match(text, at):
            # A mark is what a program prints to be seen, as good as a logger's prefix.
            named = found.end()
            denied = denied or bool(_CROSSES.search(found[0]))
        elif (
            not names
            and (found := _NAME.match(text, at))
            and not _TEXTUAL.search(found[0])
        ):
            # A host's or a program's name is followed by what only a logger writes.
            if not named and not _STRONG.match(text, _next_word(text, found.end())):
                break
            names += 1
            denied = denied or bool(_DENIAL.search(found[0]))
        elif not (
            found := (named and _FIELD.match(text, at)) or _SEPARATOR.match(text, at)
        ):
            break
        at = found.end()
    return at, named > 0, denied, named, rank


_PUNCTUATION = lazy_pattern(r"[:|>]*")


def _next_word(text: str, at: int) -> int:
    return len(text) - len(text[at:].lstrip(" \t:|"))


_LOGFMT = lazy_pattern(
    r'(?:[\w.@-]{1,60}=(?:"(?:[^"\\]|\\.){0,400}"|[^\s"]{0,200})\s+){0,12}'
    r'(?:msg|message|event)="(?P<text>(?:[^"\\]|\\.){1,4000})"'
)
_TEXT_KEYS = ("message", "msg", "event", "log", "text")
_NESTED_KEYS = ("jsonpayload", "record", "fields")
# What loggers and shippers of logs write with a message, and data sets do not with a text.
_LOG_KEYS = lazy_pattern(
    r"@?time|date|ts$|asctime|level|severity|logger|rank|stream|pid|process|thread|line_?no"
    r"|func|file|module|pathname|host|pod|container|kubernetes|record|caller|log$|json|fields"
)


def _structured(text: str) -> str | None:
    """Return the message of a record of a structured log, "" of other JSON, None of other text."""
    if not text.startswith("{"):
        said = _LOGFMT.match(text)
        if said:
            return said["text"].replace('\\"', '"')
        return None
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return ""
    if isinstance(value, dict):
        return _said(value)
    return ""


def _said(record: dict[str, Any]) -> str:
    keys = {str(key).lower(): item for key, item in record.items()}
    for key in _NESTED_KEYS:
        if isinstance(keys.get(key), dict):
            keys = {**keys[key], **keys}
    is_alone = len(keys) == 1 and "text" not in keys
    is_log = is_alone or any(map(_LOG_KEYS.match, keys))
    is_taken_back = any(item is False for item in keys.values())  # as "enabled"
    if not is_log or is_taken_back:
        return ""
    for key in _TEXT_KEYS:
        text = keys.get(key)
        if isinstance(text, str):
            return text
    return ""


def misses_fbgemm(text: str) -> bool:
    """Whether a line is unsloth's that it found no fbgemm_gpu, whose GEMM it takes first."""
    return "Unsloth: Could not find fbgemm_gpu" in text
