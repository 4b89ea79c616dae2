"""The wordings by which log lines claim or deny training in low precision.

They are rows of `fp8verify/frameworks/NAME.toml`, those of scripts' own wordings in `script.toml`,
and are matched at the start of a message. If the rest of the sentence denies a claim (`denies`), it
is not a claim. A user's own rows are searched for, and mean what the user says.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from fp8verify.frameworks.expressions import MAX_TEXT
from fp8verify.frameworks.known import OWN, Framework, frameworks
from fp8verify.logs.messages import BESIDE, OTHERS

FORMAT = r"(?:(?:MX|NV)[- ]?FP[48]|FP[- ]?[48]|float[- ]?[48])(?:[_-](?:e4m3|e5m2|e2m1|hybrid))?"
# What `<NAME>` means in a row.
_PARTS = {
    "FORMAT": FORMAT,
    "QUALITY": r"(?:(?:dynamic|delayed|current|tensor-?wise|row-?wise|block-?wise|scal(?:ed|ing)"
    r"|native|grouped|experts?|MoE|low[- ]precision|torchao|TE|transformer[- ]engine|hybrid|E4M3"
    rf"|linear|{FORMAT})\s+){{0,4}}",
    "WORK": r"(?:mixed[- ]precision(?: training)?|(?:pre-?)?training(?: mode)?"
    r"|(?:linear|nn\.Linear)s?(?: layers?| modules?)?|layers|GEMMs?|matmuls?|recipe|autocast"
    r"|compute|precision|scaling|(?:MoE |grouped )?experts|MoE(?: training)?|conversion|backend)",
    "ON": r"(?:active|enabled|activated|applied|turned on|switched on|in use|on\b(?! \w))",
    "OFF": r"(?:(?:being |gets? |got )?(?:disabled|inactive|off\b|(?:turned|switched|shut) off)"
    r"|not (?:enabled|active|applied|used))",
    "FALLS_BACK": r"(?:(?:fall|falling|fell|going|switch(?:ing|ed)|chang(?:ing|ed)"
    r"|revert(?:ing|ed)?)(?: back)?|continu(?:ing|es)|re-?(?:start|launch|run|try)\w*"
    r"|retrying|annealing)",
    "FALSE": r"['\"]?\s*[:=]\s*['\"]?(?:false|no|off|0)\b",
    "IS": r"(?:(?:is|are|was|were|has been|have been|now|successfully)\s+)*",
    "LINEAR": rf"(?:(?:te\.)?(?:Float8|MXFP8|NVFP4|MX|FP8|TE)\w*Linear\w*|te\.Linear|{FORMAT})",
    "HIGH": r"(?:bf16|bfloat16|fp16|float16|fp32|float32|half|high[- ]precision)",
    "TE_RECIPE": r"(?:DelayedScaling|(?:Float8|MXFP8|NVFP4)(?:Current|Block)Scaling)",
}

_SAYS = {"not_fp8": "denials", "fp8": "claims", "scope": "limits"}


class Wording(NamedTuple):
    """A row: whose it is, what it says (fp8, not_fp8 or scope), and whether a user declared it."""

    framework: str
    says: str
    pattern: re.Pattern[str]
    declared: bool


def patterns() -> tuple[Wording, ...]:
    """Return the rows of all frameworks."""
    return _patterns(frameworks())


@lru_cache(maxsize=2)
def _patterns(known: tuple[Framework, ...]) -> tuple[Wording, ...]:
    return tuple(
        Wording(one.name, says, _compiled(expression), one.declared)
        for one in known
        for says, rows in _SAYS.items()
        for expression in getattr(one, rows)
    )


def _compiled(expression: str) -> re.Pattern[str]:
    whole = re.sub(
        r"<([A-Z_]+)>", lambda part: _PARTS.get(part[1], part[0]), expression
    )
    return re.compile(whole, re.IGNORECASE | re.DOTALL)


# A line without any of these words, in lower case, is not looked at; a line with one is looked
# at more closely only where it also says that something is done.
_WORDS = ("fp8", "float8", "fp4", "float4", "bf16")


class Words(NamedTuple):
    """Lower-case words of the lines that are read.

    Attributes:
        all: a line without any of them says nothing.
        closely: of lines about single layers and of those that a user declared.
    """

    all: tuple[str, ...]
    closely: tuple[str, ...]


def words() -> Words:
    """Return the words of all frameworks."""
    return _words(frameworks())


@lru_cache(maxsize=2)
def _words(known: tuple[Framework, ...]) -> Words:
    closely = [row.word for one in known for row in one.layers]
    closely += [word for one in known if one.declared for word in one.words]
    # What has a shorter one of them need not be looked for: each takes as long as the rest.
    found = [*_WORDS]
    for word in sorted(
        [*closely, *(word for one in known for word in one.words)], key=len
    ):
        if not any(one in word for one in found):
            found.append(word)
    return Words(tuple(found), tuple(closely))


_DEEDS = re.compile(
    r"train|warm|disab|conver|swapp|appl|enabl|activ|precision|recipe|quanti[sz]|using|replac|wrapp"
    r"|fall|fell|fail|revert|continu|running|insufficient|support|gather|requested|turn|switch|avail"
    r"|re-?start|launch|retry|rerun|anneal|until|for the first|autocast"
    r"|: ?o(?:n|ff)\b",
    re.IGNORECASE,
)


def says_something(text: str) -> bool:
    """Whether a line with one of `WORDS` says that something is done."""
    return _DEEDS.search(text) is not None


Match = tuple[Wording, re.Match[str]]


def match(text: str, named: str = "") -> Match | None:
    """Return the wording of a message, and the match.

    What takes FP8 back may also be said after a colon, a comma or a dash.

    Args:
        text: the message.
        named: the same with names before a colon, in which a user's own rows are looked for.
    """
    rows = patterns()
    for wording in rows:
        if wording.declared:
            found = wording.pattern.search(named, 0, MAX_TEXT)
        else:
            found = wording.pattern.match(text)
        if found:
            return wording, found
    own = [row for row in rows if row.framework == OWN and row.says == "not_fp8"]
    condition = _CONDITION.search(text)
    end = min(_MAX_CLAUSES, condition.start() if condition else _MAX_CLAUSES)
    for clause in _CLAUSE.finditer(text, 0, end):
        for wording in own:
            if found := wording.pattern.match(text, clause.end()):
                return wording, found
    return None


_MAX_CLAUSES = 2000
_CLAUSE = re.compile(
    r"[:,;.!)] (?:so |and |therefore |then |now )?|\s(?:-+|=+>|->|[\u2013\u2014]) "
)
# What is only said to be possible, or of another model while nothing is said of the actor.
_CONDITION = re.compile(
    r"\b(?:if|when|unless|may|might|can|could(?! not)|should|would|will|note|hint|tip|help|usage)\b"
    r"|[\"?]"
    rf"|\b(?:plan\w*|{OTHERS}|{BESIDE})(?!.*\bactor\b)",
    re.IGNORECASE,
)
_OTHERS = (
    r"(?:kv[-_ ]?cache|attention(?!\s*(?:and|&|\+|,|/))|optimi[sz]er|all[-_ ]to[-_ ]all|comm\w*"
    r"|all[-_ ]?gather|dataset|storage|teacher|reference|ref|reward|draft|checkpoint|inference"
    r"|rollouts?|vllm|sglang|eval\w*|vae|text[-_ ]encoders?|frozen|serving|export)"
)
# What follows a denial and limits it: to some layers, steps or tensors, or to a condition.
_LIMITED = re.compile(
    r"\s*(?:,\s*)?\(?(?:(?:only )?(?:for|in|on|during|of|inside|within|at)\s+(?!(?:(?:the|all"
    r"|this|these|your)\s+){0,2}(?:good|config\w*|settings?|arguments?|args|flags?|entire|whole|rest|remain\w*"
    r"|runs?|training|job|model|devices?|gpus?|hardware|nodes?|cuda|cpu|rocm|sm_?\d+|compute|platform"
    r"|machine|bf16|annealing|cool\w*|every\w*|all|phase|linears?|[AHB]\d00|[\w.]+\s(?:gpu|device)s?)\b)"
    rf"|if|when|unless|while|until|till|by default|yet\b|{_OTHERS}\b)",
    re.IGNORECASE,
)


def is_limited(text: str, end: int) -> bool:
    """Whether what follows a denial says that it does not hold for the run."""
    return _LIMITED.match(text, end) is not None


# An ellipsis ends no sentence: “Enabling FP8 training... failed”.
_SENTENCE = re.compile(
    r".*?(?:(?<!\.)[.!](?=\s|$)(?!\s*[(\[]default)|(?<![:=\s])\s{3,}|[\r\n]|$)",
    re.DOTALL,
)
# What may follow a claim: an end, a stop, a bracket, a preposition; no part of a file name.
_FOLLOWS = re.compile(
    r"\s*(?:$|[,;!()\[\]|=\u2013\u2014\u2026\u2713\u2714\u2705]|\.(?!\w)|:|(?:(?<=\s)/|-)(?=[\s>-])"
    r"|(?:on|for|with|using|in|to|across|at|by|via|from|and|but|of|successfully|recipe|scaling|now"
    r"|layers?|modules?|training|linear|\w+Scaling)\b)|\s{2,}",
    re.IGNORECASE,
)
# What says nothing against it: compile=False, fp8 all-gather enabled: False, skipped 1 (too small).
_ASIDES = re.compile(
    r"\b(?!(?:enabled?|active|applied|fp8|float8|recipe(?:_name)?|format|status|success)\b)"
    r"\w+(?:\(\w+\))?\s*=\s*(?:\w+|\[\])|\S*all[-_ ]?gather\w*(?: enabled)?\s*[=:]\s*\{?\w+\}?"
    # other layers
    r"|\b(?:skipp|exclud|ignor)\w+:? (?:\d+\b(?: \([^)]{1,80}\))?"
    r"|[\w.]*(?:head|output|norm|embed)\w*)|\b\d+ (?:layers? |modules? )?skipped\b"
    # what comes after: resumption, evaluation, checkpoints, warm-up of the learning rate
    r"|[,;|] ?(?:resum|eval|checkpoint|sav|log|lr|compar)[^;|]*"
    r"|^ for \d[\d_,]* (?:steps|epochs|iter\w*)"
    # from the beginning on
    r"|\b(?:from|at|since|starting(?: at| from)?) (?:(?:step|iter(?:ation)?) [01]\b"
    r"|the (?:very )?(?:first step|start|beginning))"
    r"|\w+Scaling\(\)|\bno (?:(?:bf16|high[- ]precision)[- ])?warm-?up",
    re.IGNORECASE,
)
# The one rule: what follows a claim and has one of these takes it back, or is not understood. A
# claim is compared with every step of the window, so a condition and a later beginning do, too.
_DENIAL = re.compile(
    r"\?|\b(?:no|not|n't|non|never|none|null|nil|zero|false|off|without effect|error|fail\w*"
    r"|unavailable|unsupported|un\w+ed|unknown|unset|incompatible|disabl\w+|ignor\w+|skip\w*|revert\w*"
    r"|rolled|cancel\w*|abort\w*|overrid\w+|instead|but (?:no|all)|n/a|nein|nicht|deaktiviert"
    # conditions, plans, times, and what is only said of FP8
    r"|if|when\w*|unless|once|soon|should|would|could|can|must|may|might|requir\w+|means|will"
    r"|dry|later|next|emulat\w+|compar\w+|vs|versus|casting|weights?[- ]only|compute[sd]? in"
    r"|until|till|upon|mistake|steps?|iter\w*|epochs?|phases?|stages?|hours?|re?start\w*|warm-?up|calibration"
    # other models and other tensors than the inputs of the linear layers that are trained
    rf"|(?:for|of|in|to|on|during)\s+(?:the\s+)?(?:(?!and\b)\w+\s+){{0,2}}?{_OTHERS})\b"
    # nothing, or no value
    r"|(?<!rank )(?<![\w.])0(?![\w.])|[\[({]\s*[\])}]|^\s*[:=>-]+\s*['\"]?(?:[n\W]|auto)?['\"]?\s*$"
    # templates, and marks and languages that are not understood
    r"|[(\[]default:?|\{(?!True|False)[^}]*\}|%[-\d.]*[sdrf](?!\w)|%\(\w+\)|<[a-z_]+>|\$\{?\w"
    r"|[^\x00-\x7f\u2013\u2014\u2026\u2713\u2714\u2705]",
    re.IGNORECASE,
)
# What makes a sentence one of something else than what this run trains in.
_ANOTHER = re.compile(
    r"\b(?:no|not|without|skip\w*|if|when|unless|may|might|could|would|should|plan\w*|baseline"
    r"|previous|prior|last|earlier|other|old|paper|notes?|option\w*|run [A-Z]"
    rf"|\w*heads?|\w*embed\w*|norms?|gradients?|{_OTHERS}|{BESIDE}\w*)(?![a-z])",
    re.IGNORECASE,
)
_OF_ANOTHER = re.compile(
    rf"\b(?:if|when|unless)\b|(?:\b(?:for|of|on|by)|\()\s*(?:the )?(?:{_OTHERS}|{BESIDE})(?![a-z])",
    re.IGNORECASE,
)
# The words in which a program says what its own run does, and those of loggers and launchers.
_OWN_WORD = re.compile(
    r"(?:pre)?train(?:s|ed|ers?|ing)?|polic(?:y|ies)|actor|student|model|llm|main|base|network|this|our"
    r"|run(?:s|ning|ner)?|start\w*|begin\w*|warm\w*|up|us(?:e|es|ing)|go(?:es|ing)?|stay\w*|keep\w*|stat\w+"
    r"|mode|phase|stage|step|config\w*|schedule|recipe|precision|mixed|loss|scal\w+|\w+wise|(?:mx|nv)?fp|bf"
    r"|b?float|e|m|linears?|layers?|modules?|gemms?|compute|active|enabled?|first|initial\w*|then|now|still"
    r"|the|we|it|an?|i|is|are|was|will|be|in|to|at|of|on|by|for|from|with|and|after|until|all|full|pure|only"
    r"|root|logg\w+|logs?|console|std\w*|out|err(?:or)?|info|debug|warn(?:ing)?|notice|trace|success|critical"
    r"|rank|local|global|worker|dict|ray|gpu|cuda|node|host|proc(?:ess)?|default|pid|ip|torch\w*|titan|megatron"
    r"|nemo|axolotl|accelerate|deepspeed|composer|lightning|transformers",
    re.IGNORECASE,
)
# Files, paths of modules, dates and what else has a digit.
_PLACE = re.compile(
    r"[A-Z][a-z]{2} +\d|[^\s\[\](){}|]*(?:\d|[^\s:]\.[a-z]|[^\s]:[^\s]|__)[^\s\[\](){}|]*"
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_CLOSED_QUOTE = re.compile(r"([\"'`])\s*[,)\]}; +\\]*$")


def sentence_of(text: str, end: int) -> str:
    """Return the sentence in which a match ended at `end` is, from the message's start."""
    found = _SENTENCE.match(text, end)
    return text[: found.end() if found else end].strip()


def denies(sentence: str, end: int) -> bool:
    """Whether what follows a claim in its sentence takes it back, or shows that it is quoted."""
    rest = sentence[end:]
    closed = _CLOSED_QUOTE.search(sentence)
    return bool(
        not _FOLLOWS.match(rest)
        or (closed is not None and sentence.count(closed[1]) % 2 == 1)
        or _DENIAL.search(_ASIDES.sub("x", rest))
    )


def is_of_run(prefix: str, text: str, found: re.Match[str]) -> bool | None:
    """Whether a part of a message is about this run; None where an unknown word may say whose.

    Another model, tensor or run is named before or after it; so is a plan and a condition.

    Args:
        prefix: what loggers and launchers wrote before the message.
        text: the message.
        found: the part.
    """
    start = max(text.rfind(stop, 0, found.start()) for stop in (";", ". ")) + 1
    before = text[start : found.start()]
    if _ANOTHER.search(before) or _OF_ANOTHER.search(text, found.end()):
        return False
    words_used = _WORD.findall(f"{_PLACE.sub(' ', prefix)} {before}")
    return True if all(map(_OWN_WORD.fullmatch, words_used)) else None
