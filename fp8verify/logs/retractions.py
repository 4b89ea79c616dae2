"""What takes a claim back in its own sentence: a refusal, a condition, a later time, another use.

A claim is held against every step of the window, so what is only to come is none.
"""

from __future__ import annotations

import re

# An ellipsis ends no sentence: “Enabling FP8 training... failed”.
_SENTENCE = re.compile(
    r".*?(?:(?<!\.)[.!](?=\s|$)(?!\s*[(\[]default)|(?<![:=\s])\s{3,}|[\r\n]|$)", re.DOTALL
)
# What may stand after a claim: the end, a stop or a bracket, a mark, a preposition; no part of a
# file's or a run's name.
_GOES_ON = re.compile(
    r"\s*(?:$|[,;!()\[\]|=\u2013\u2014]|\.(?!\w)|:|(?:(?<=\s)/|-)(?=[\s>-])|[^\x00-\x7f]"
    r"|-(?=mixed|hybrid|train)|/(?=bf16|bfloat16|fp16|fp32)"
    r"|(?:on|for|with|using|in|to|across|at|by|via|from|and|of|after|before|successfully|recipe"
    r"|scaling|now|layers?|modules?|training|linear)\b)|\s{2,}",
    re.IGNORECASE,
)
_CONDITION = re.compile(
    r"\?|\b(?:if|when|whenever|unless|once|should|would|could|can|must|may|might|requires?|means"
    r"|will be|dry[-_ ]?run)\b",
    re.IGNORECASE,
)
_HIGH = r"(?:bf16|bfloat16|fp16|float16|fp32|float32|half|high[- ]precision)"
# What a setting has as its value where it is off or open, in quotes and brackets or not.
_OFF_VALUE = (
    r"(?:failed|error(?=:)|never|not|n/a|no|off|false|none|null|nil|unset|undefined|unknown"
    r"|nein|non)"
)
# A refusal right behind the claim, as a clause of its own, or as the value of a setting that
# switches it. “skipped 1 (too small)” and “lm_head not converted” refuse nothing.
_REFUSAL = re.compile(
    r"\b(?:but|is|was|were|are|yet)\s+not\b|\bno[- ]?op\b"
    r"|\bbut no\b[^.]{0,60}\b(?:found|available|support\w*|capable|gpus?|devices?|hardware)\b"
    rf"|\b(?:running|training|continuing|falling back|using) (?:in |with |to )?{_HIGH} instead\b"
    rf"|\boverrid(?:ing|den) (?:it )?(?:with|by|to|in favou?r of) {_HIGH}\b"
    r"|(?:\bnot|n't) (?:applied|enabled|active|supported|available|installed|in effect|used"
    r"|possible|compatible|found)\b"
    r"|\bon (?:an? )?(?:unsupported|incompatible)\b"
    r"|(?:^|[:=(,;>\[\u2013\u2014\u2192\u21d2\u2026-]|\.\.|\b(?:then|now)\b)\s*"
    r"(?:but |was |is |are |then |now )*"
    r"(?:skipp(?:ed|ing)|disabled|ignored|(?:turned|switched) off"
    r"|reverted|rolled back|cancell?ed|aborted|failed|unavailable|unsupported|never)"
    r"\s*(?:$|[.,;!()\]}\u2013\u2014-]|\b(?:because|since|due|as|by|here|this|after)\b"
    r"|\b(?:for|on|in) (?:now|this|the (?:moment|time being|run|gpu|device)|sm\d|\w*gpus?\b|cpu"
    r"|cuda))"
    r"|\b(?:turn|switch)(?:ed|ing) (?:it|fp8|float8|this) (?:back )?off\b"
    rf"|^\s*[:=>(\[{{'\"\u2192\uff1a.\u2026-]*\s*['\"(\[{{]?\s*{_OFF_VALUE}\b(?![-\w])(?!\s*\d)"
    r"|^\s*[:=]\s*(?:['\"]?0\b(?!\.\d)|[(\[{]\s*[)\]}]|['\"]?(?:-|n|auto)['\"]?\s*$)"
    r"|\b(?:enabled?|active|applied|fp8|float8|recipe(?:_name)?|format|status|success)"
    r"['\"]?\s*[=:]\s*['\"{]?(?:false|none|null|no|off|0)\b"
    # No layer at all: “for 0 layers”, “no layer was converted”; “0 layers skipped” is none.
    r"|(?<![\w./])(?:0|no|none of|zero)(?: the| of \d+)?(?: linear| nn\.Linear| \w*Linear)?"
    r" (?:layers?|modules?|linears?)\b"
    r"(?! (?:(?:were|was|are|is) )?(?:skipp|exclu|filter|left|fail|unconv|in (?:bf16|high)|kept))"
    r"|\b0 converted\b|\((?:0/\d+)\)"
    # A help text gives the default behind what it explains.
    r"|[(\[]default:? |[(\[]default:"
    # Marks and characters of other languages that cross out what stands before them.
    r"|^[\s:=([-]*[\u2717\u2718\u274c\u2716\u26d4\U0001f6ab\u2610]"
    r"|^.{0,5}[\u4e0d\u672a\u7981\u5426\u5173\u95dc\u5931\u7121\u65e0\u975e]",
    re.IGNORECASE,
)
# What begins later or ends early is no claim of every step: FP8 behind a warm-up, or in a phase.
_LATER = re.compile(
    r"\b(?:after|until|till|past|upon|following)\b[^,;|:]{0,30}?\b(?:warm-?up|calibration|burn-?in"
    r"|(?:step|iter(?:ation)?|epoch)s?)\b(?!\s*[#=:]?\s*0\b)"
    r"|(?<!resuming )(?<!resumed )(?<!continuing )"
    r"\b(?:from|at|since|start(?:s|ing)?|begin(?:s|ning)?|past)\b(?:\s+(?:from|at|on|with|in))?"
    r"(?:\s+(?:global|training|optimizer))?"
    r"\s+(?:step|iter(?:ation)?|epoch)s?\b(?!\s*[#=:]?\s*0\b)"
    r"|\bbefore (?:phase|stage|epoch|step) \d"
    r"|\bin \d[\d_,.]*k? (?:more )?(?:steps|iter(?:ation)?s|epochs|hours)\b"
    r"|\b(?:in|during|for) (?:the )?(?:(?:phase|stage|epoch)s? [1-9]|steps? \d+ ?(?:-|to|\u2013)"
    r"|(?:first|last|final|second|third) (?:\d[\d_,.]*k? )?(?:step|iter\w*|epoch|phase|stage|part"
    r"|half|%|percent))"
    r"|\bnext (?:re-?start|run|epoch|step|release|time|version|resume|launch)\b|\blater\b|\bsoon\b"
    rf"|\b{_HIGH}[- ](?:warm-?up|steps)\b|\bwarm-?up (?:in|with) {_HIGH}\b"
    r"|\bevery \d+(?:st|nd|rd|th)? ?(?:step|iter|epoch)",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"[,;|(]")
_EMULATES = re.compile(
    r"(?<!no )(?<!not )(?<!without )\bemulat(?:ed?|ion|ing)\b"
    r"(?!['\"]?\s*[=:]\s*['\"]?(?:false|no|off|0)\b)",
    re.IGNORECASE,
)
# What is said of a comparison, or of weights that are only stored so.
_OTHERWISE = re.compile(
    r"\bcompar(?:ed|ing|ison)\b|\bvs\b|\bversus\b|^\s*storage\b|\blayer-?wise cast"
    rf"|\bweights?[- ]only\b|\bcompute(?:s|d)? in {_HIGH}\b",
    re.IGNORECASE,
)
_GATHER = re.compile(r"\S*all[-_ ]?gather\w*(?: enabled)?\s*[=:]\s*\{?\w+\}?", re.IGNORECASE)
_TEMPLATE = re.compile(r"\{(?!True|False)[^}]*\}|%[-\d.]*[sdrf](?!\w)|%\(\w+\)|<[a-z_]+>|\$\{?\w")
_CLOSED_QUOTE = re.compile(r"([\"'`])\s*[,)\]}; +\\]*$")
# Other models than the one that is trained, and other things than its linear layers.
_OTHER_MODEL = (
    r"(?:teacher|reference|ref|reward|draft|checkpoint|inference|rollouts?|vllm|sglang|eval\w*|vae"
    r"|text[-_ ]encoders?|frozen|serving|export)"
)
_ELSEWHERE = re.compile(
    r"\b(?:for|of|in|to|on)\s+(?:the\s+)?(?:(?!and\b)\w+\s+){0,2}?(?:kv[-_ ]?cache"
    r"|attention(?!\s*(?:and|&|\+|,|/))|optimi[sz]er|all[-_ ]to[-_ ]all|all[-_ ]?gather"
    rf"|comm\w*|dataset|storage|{_OTHER_MODEL})\b",
    re.IGNORECASE,
)
_CONVERTS_OTHERS = re.compile(
    rf"^.{{0,40}}(?:convert|swapp|replac|wrapp)(?:ed|ing)\b.{{0,30}}\b{_OTHER_MODEL}\b",
    re.IGNORECASE,
)


def sentence_of(text: str, end: int) -> str:
    """Return the sentence in which a match ended at `end` stands, from the message's start."""
    found = _SENTENCE.match(text, end)
    return text[: found.end() if found else end].strip()


def takes_back(sentence: str, end: int) -> bool:
    """Whether what follows a claim denies it, makes it a condition, or shows it is quoted."""
    rest = _GATHER.sub("", sentence[end:])
    return bool(
        not _GOES_ON.match(rest)
        or _CONDITION.search(rest)
        or _REFUSAL.search(rest)
        or _comes_later(rest)
        or _EMULATES.search(rest)
        or _OTHERWISE.search(rest.partition(";")[0])
        or _CONVERTS_OTHERS.search(sentence[:end])
        or _TEMPLATE.search(rest)
        or _ELSEWHERE.search(rest)
        or _open_quote(sentence)
    )


def _comes_later(rest: str) -> bool:
    """Whether the claim's own clause, or one that only says when, names a later beginning."""
    own, *others = _CLAUSE.split(rest)
    return bool(_LATER.search(own) or any(_LATER.match(clause.lstrip()) for clause in others))


def _open_quote(sentence: str) -> bool:
    closed = _CLOSED_QUOTE.search(sentence)
    return closed is not None and sentence.count(closed[1]) % 2 == 1
