"""The wordings by which log lines claim or deny training in low precision.

One table: lines of frameworks, with their sources, and a grammar for scripts' own wordings (`OWN`).
Both are matched at the start of a message. If the rest of the sentence denies a claim (`denies`),
it is not a claim.
"""

from __future__ import annotations

import re
from functools import cache

from fp8verify.logs.messages import OTHERS
from fp8verify.text import lazy_pattern

FORMAT = r"(?:(?:MX|NV)[- ]?FP[48]|FP[- ]?[48]|float[- ]?[48])(?:[_-](?:e4m3|e5m2|e2m1|hybrid))?"
# What `<NAME>` means in the table.
_PARTS = {
    "FORMAT": FORMAT,
    "QUALITY": r"(?:(?:dynamic|delayed|current|tensor-?wise|row-?wise|block-?wise|scal(?:ed|ing)"
    r"|native|grouped|experts?|MoE|low[- ]precision|torchao|TE|transformer[- ]engine|hybrid|E4M3"
    rf"|linear|{FORMAT})\s+){{0,4}}",
    "WORK": r"(?:mixed[- ]precision(?: training)?|(?:pre-?)?training(?: mode)?"
    r"|(?:linear|nn\.Linear)s?(?: layers?| modules?)?|layers|GEMMs?|matmuls?|recipe|autocast"
    r"|compute|precision|scaling|(?:MoE |grouped )?experts|MoE(?: training)?|conversion|backend)",
    "ON": r"(?:active|enabled|activated|applied|turned on|switched on|in use|on\b(?! \w))",
    "OFF": r"(?:disabled|inactive|off\b|(?:turned|switched) off"
    r"|not (?:enabled|active|applied|used))",
    "FALSE": r"['\"]?\s*[:=]\s*['\"]?(?:false|no|off|0)\b",
    "IS": r"(?:(?:is|are|was|were|has been|have been|now|successfully)\s+)*",
    "LINEAR": rf"(?:(?:te\.)?(?:Float8|MXFP8|NVFP4|MX|FP8|TE)\w*Linear\w*|te\.Linear|{FORMAT})",
    "HIGH": r"(?:bf16|bfloat16|fp16|float16|fp32|float32|half|high[- ]precision)",
    "TE_RECIPE": r"(?:DelayedScaling|(?:Float8|MXFP8|NVFP4)(?:Current|Block)Scaling)",
}

OWN = "training script"  # a script's own words, of no framework that we know


# What messages begin with. `[name]` begins a framework; a row is what the line says (fp8, not_fp8,
# or scope: it limits where) and an expression, which goes on in indented lines. `<WORK>` and the
# like stand for `_PARTS`; the group `recipe` is read where given.
_TABLE = r"""
# kempnerforge/distributed/parallel.py:172
[KempnerForge]
fp8 Applied Float8 training: recipe=(?P<recipe>\w+)(?:, fsdp_float8_all_gather=
    \{?(?:True|False)\}?)?
# scripts/base_train.py:170,192 (92d63d4); forks leave parts out
[nanochat]
fp8 FP8 training enabled(?: \((?P<recipe>\w+)(?: scaling)?\))? - converted \d+(?:/
    \d+)? (?:linear )?layers(?:, skipped \d+(?: \([^)]{1,80}\))?)?
not_fp8 FP8 training requires CUDA, ignoring --fp8 flag
# torchtitan/components/quantization/{float8,mx,nvfp4}.py (b5bcd76) and their history
[torchtitan]
fp8 (?:Float8|MX) training active with recipe (?P<recipe>\w+)
fp8 Float8 (?:(?P<recipe>tensorwise) scaled )?training active(?! with)
fp8 Swapped to Float8Linear layers(?: with enable_fsdp_float8_all_gather=(?:True
    |False))?
fp8 Swapped to \w+ float8 linear layers
fp8 Converted (?:\w+|Linear layers
    |(?:MoE )?layers matching FQNS .{1,400}?) to use dynamic (?:float8 )?(?P<recipe>rowwise
    |mxfp[48]\w*|nvfp4\w*|float8\w*) quantization(?: with scaled grouped GEMMs
    | for [\w ]{1,40} ops)?
fp8 (?:Converted Linear layers to|Swapped to) (?:MX|MXFP8|NVFP4)Linear\w*(?: layers)?
fp8 MXFP8 MoE training enabled
fp8 Using (?P<recipe><FORMAT>) for _scaled_grouped_mm
not_fp8 Failed to (?:use Float8 with|swap to Float8Linear) .{0,40}?because .{1,200}
scope Using _auto_filter_for_recipe to avoid converting linear layers .{0,200}
# primus/backends/torchtitan/components/quantization/float8.py:51
[Primus]
fp8 module \S{1,200} shape .{1,80}?, replaced to (?:FP8|MXFP8|FP4)Linear
# moe_training/conversion_utils.py:120; float8_linear_utils.py:110 under
# PYTORCH_API_USAGE_STDERR=1, as 0.1.0 set it (later captures record the call)
[torchao]
fp8 Swapped \S{1,300} to (?:Float8|MXFP8)TrainingWeightWrapperTensor
fp8 PYTORCH_API_USAGE torchao\.float8\.convert_to_float8_training
# accelerator.py:490-496; state.py:936,943,1042
[accelerate]
fp8 Found `(?:torchao|transformer-engine|msamp)` installed, using it for FP8 training\.
fp8 Mixed precision type: fp8\b
not_fp8 The current .{1,100}? (?:insufficient for
    |does not support) FP8 mixed precision training .{0,200}Will use (?:FP16|BF16) instead
# composer/trainer/trainer.py prints its settings
[Composer]
fp8 precision: amp_fp8\b
# llamafactory/train/fp8_utils.py:104-182; what it prints of accelerate is the flag alone
[LLaMA-Factory]
fp8 Accelerate FP8 status - enabled: True
fp8 FP8 environment configured - all FP8 training handled by HuggingFace Accelerate
not_fp8 (?:Failed to create FP8 configuration: .{0,200}
    |FP8 was requested but Accelerate shows fp8_enabled=False)
# monkeypatch/accelerate/float8_moe_filter.py:74
[axolotl]
scope Patched accelerate fp8 conversion to skip MoE router/gate linears
# megatron/training/arguments.py:1053,1061 (d98e8a6); its arguments are read by ArgumentDump
[Megatron-LM]
scope FSDP2 FP[48] param gather is not supported yet .{0,100}will fallback to bf16
# the dump of DeepSpeed's configuration
[MS-AMP]
fp8 msamp_enabled \.{3,} True
# trainer/models/layers/fp8_linear.py:137,157, mxfp8_linear.py:71,94
[prime-rl]
fp8 Repla(?:cing|ced \d+) linear layers with (?:FP8 blockwise
    |MXFP8) linear(?: layers)?(?: \((?:recipe=\w+|skipped \d+ by name, \d+ by [\w-]+\)))?
# lightning/pytorch/accelerate/transformer_engine.py:45,108
[NeMo]
not_fp8 Transformer Engine is not available and the (?:FP8 autocast
    |module replacements) will not be applied
# components/quantization/fp8.py:186-295, moe/mxfp8.py:132, diffusion/train.py:556 (36044ad)
[NeMo Automodel]
fp8 Successfully converted model to FP8 with torchAO, recipe: (?P<recipe>
    \w+), fp8 all-gather enabled: (?:True|False)
    (?:, force recompute FP8 weight in backward pass: (?:True|False))?
fp8 (?:experts='\w+': )?MXFP8 grouped GEMM active
fp8 Transformer Engine FP8: True\b(?: \(recipe=(?P<recipe>\w+))?
fp8 FP8 quantization applied successfully
scope FP8 conversion: \d+ Float8Linear modules, \d+ total linear modules
not_fp8 FP8 quantization (?:is disabled|failed: .{1,200}Returning original model)
# fabric/plugins/precision/transformer_engine.py:158, once a skipped layer
[Lightning]
scope Support for FP8 in the linear layers with this plugin is currently limited .{0,300}
# “Float8 conversion failed: …. Continuing with bf16.”, “FP8 training enabled: False”,
# “Float8 training enabled (rowwise recipe)”, “Converted 48/49 Linear layers to Float8Linear”
[training script]
not_fp8 (?:<FORMAT>|torchao|transformer.engine)\b(?:(?!gather|attention|cache|optimi
    |\bif\b).){0,200}?\b(?:falling back|fall(?:s|ing)? ?back|fell back|revert(?:ing|ed)|continuing
    |training) (?:to|with|in) <HIGH>\b
not_fp8 (?:Using|Running in|Continuing in) <HIGH> (?:training |precision )?instead
not_fp8 .{0,80}?\bno (?:Float8|(?:MX)?FP8)\w* (?:modules|layers) (?:were )?(?:found|converted)
not_fp8 Please install (?:Transformer.?Engine|torchao|MS-AMP) for FP8 training
not_fp8 <QUALITY><FORMAT>(?:\s+<QUALITY><WORK>)?(?:\s+<IS><ON><FALSE>
    |\s*[:=-]?\s*<IS><OFF>)
not_fp8 <FORMAT>(?: \w+){0,2} (?:needs|requires) .{1,80}?[,;:.] ?(?:so )?
    (?:running|using|training)\b.{0,40}?\b<HIGH>\b
not_fp8 (?:Disabling|Disabled|Turning off|Turned off|Switching off|Deactivat(?:ing|ed)
    |(?:Re-?)?(?:start|launch|try|run|train|load|continu|proceed)\w*(?: \w+){0,2} without)
     <QUALITY><FORMAT>(?:\s+<QUALITY><WORK>)?(?!\w)
not_fp8 <FORMAT> (?:<WORK> )?(?:attempt |run |conversion |setup |initiali[sz]ation )?
    (?:failed|(?:is |was |are )?(?:not (?:available|supported)|unavailable|unsupported))\b
not_fp8 (?:(?:falling|fall|fell|going|switch(?:ing|ed)|chang(?:ing|ed)|revert(?:ing|ed)?)(?: back)?
    |continu(?:ing|es)|re-?(?:start|launch|run|try)\w*|retrying|annealing)
    (?: [\w-]+){0,2}? (?:to|in|with|on) (?:--?[\w-]+[ =]|plain |pure |full |standard )?<HIGH>
    (?: (?:training|precision|compute|mode|instead|GEMMs?|matmuls?|linear layers)){0,2}
    (?=\s*(?:$|[.,;:!)]|(?:after|because|due|since|now|from|for the (?:rest|remain\w+)|on this)\b))
not_fp8 No <FORMAT>[- ](?:support|hardware|capab\w+|kernels?)\b.{0,60}?
    \b(?:using|falling|training|running|continuing)\b.{0,20}?\b<HIGH>\b
not_fp8 (?:Accelerate )?<FORMAT> status\s*[-:]\s*enabled<FALSE>
fp8 <QUALITY><FORMAT>(?:\s+|(?=:))(?:<QUALITY><WORK>\s*){0,2}(?:[:=-]\s*)?<IS><ON>
fp8 Enabl(?:ed|ing) <FORMAT> (?:via|with|using) (?:transformer.?engine|torchao|TE|MS-?AMP)\b
fp8 <FORMAT> conversion (?:is )?(?:completed?|done|finished|successful)
fp8 (?:Successfully )?(?:Appl(?:ied|ying)|Enabl(?:ed|ing)|Activat(?:ed|ing)|Using|Running(?: with
    | in)?|Training (?:in|with)) <QUALITY><FORMAT>\s+<QUALITY><WORK>
fp8 Appl(?:ied|ying) <FORMAT> (?P<recipe>\w+wise) quanti[sz]ation to (?:the )?model\b
fp8 (?:Using|Enabled|(?:FP8[ _])?recipe\s*[:=]) (?P<recipe><TE_RECIPE>)(?: recipe)?
fp8 Training (?:in|with) <QUALITY><FORMAT>\b
fp8 (?:(?:<FORMAT>|torchao): ?)?(?:Successfully )?(?:Convert|Swapp|Replac|Wrapp)(?:ed
    |ing) (?=.{0,80}\b(?:linears?|layers?|modules?|model|experts)\b)(?:[\w./-]+ ){0,8}?
    (?:to(?: use)?|with|into|by) <QUALITY><LINEAR>(?!\w)
fp8 (?:Mixed[ _]precision|Training precision)(?: type| mode)?\s*[:=]\s*<FORMAT>\b
fp8 <QUALITY><FORMAT>\s+<QUALITY><WORK>\s*[:=]\s*True\b
fp8 Using (?:Transformer[ -]?Engine|torchao|TE) (?:with|for|in) <QUALITY><FORMAT>(?: <WORK>)?
fp8 (?:Using )?(?:te\.)?fp8_autocast(?: (?:is )?<ON>|\(enabled=True\b)
fp8 Model (?:was )?converted to <QUALITY><LINEAR>(?!\w)
"""


@cache
def patterns() -> tuple[tuple[str, str, re.Pattern[str]], ...]:
    """Return the rows of the table: framework, what it says, expression."""
    found = []
    framework = ""
    for line in re.sub(r"\n {4}", "", _TABLE).splitlines():
        if line.startswith("["):
            framework = line[1:-1]
        elif line and not line.startswith("#"):
            says, _, expression = line.partition(" ")
            whole = re.sub(r"<([A-Z_]+)>", lambda part: _PARTS[part[1]], expression)
            found.append((framework, says, re.compile(whole, re.IGNORECASE | re.DOTALL)))
    return tuple(found)


# A line without any of these words, in lower case, is not looked at; a line with one is looked
# at more closely only where it also says that something is done.
WORDS = (
    b"fp8",
    b"float8",
    b"fp4",
    b"float4",
    b"mxlinear",
    b"mx training",
    b"transformer engine",
    b"delayedscaling",
    b" bf16",
    b"msamp",
)
_DEEDS = lazy_pattern(
    r"train|warm|disab|conver|swapp|appl|enabl|activ|precision|recipe|quanti[sz]|using|replac|wrapp"
    r"|fall|fell|fail|revert|continu|running|insufficient|support|gather|requested|turn|switch|avail"
    r"|re-?start|launch|retry|rerun|anneal|until|autocast"
    r"|: ?o(?:n|ff)\b",
    re.IGNORECASE,
)


def says_something(text: str) -> bool:
    """Whether a line with one of `WORDS` says that something is done."""
    return _DEEDS.search(text) is not None


def match(text: str) -> tuple[str, str, re.Match[str]] | None:
    """Return whose wording a message has, what it says (fp8, not_fp8 or scope) and the match.

    What takes FP8 back may also be said after a colon, a comma or a dash.
    """
    for framework, says, pattern in patterns():
        if found := pattern.match(text):
            return framework, says, found
    if _TAKES_BACK.search(text):
        for clause in _CLAUSE.finditer(text, 0, _MAX_CLAUSES):
            for framework, says, pattern in patterns():
                if framework == OWN and says == "not_fp8":
                    found = pattern.match(text, clause.end())
                    if found and not _is_conditional(text, clause.end()):
                        return framework, says, found
    return None


def _is_conditional(text: str, end: int) -> bool:
    found = _CONDITION.search(text)
    return found is not None and found.start() < end


_MAX_CLAUSES = 2000
_CLAUSE = lazy_pattern(
    r"[:,;.!)] (?:so |and |therefore |then |now )?|\s(?:-+|=+>|->|[\u2013\u2014]) "
)
_TAKES_BACK = lazy_pattern(
    r"disab|turn|switch|fall|fell|revert|instead|without|continu|inactive|retry|re-?start|re-?launch"
    r"|re-?run|anneal|deactiv|avail|support|not ",
    re.IGNORECASE,
)
# What is only said to be possible, or of another model while nothing is said of the actor.
_CONDITION = lazy_pattern(
    r"\b(?:if|when|unless|may|might|can|could(?! not)|should|would|will|note|hint|tip|help|usage)\b"
    r"|[\"?]"
    rf"|\b(?:plan\w*|{OTHERS})(?!.*\bactor\b)",
    re.IGNORECASE,
)
# What follows a denial and limits it: to some layers, steps or tensors, or to a condition.
_LIMITED = lazy_pattern(
    r"\s*(?:,\s*)?\(?(?:(?:only )?(?:for|in|on|during|of|inside|within|at)\s+(?!(?:(?:the|all"
    r"|this|these|your)\s+){0,2}(?:config\w*|settings?|arguments?|args|flags?|entire|whole|rest|remain\w*"
    r"|runs?|training|job|model|devices?|gpus?|hardware|nodes?|cuda|cpu|rocm|sm_?\d+|compute|platform"
    r"|machine|bf16|annealing|cool\w*|every\w*|all|phase|linears?|[AHB]\d00|[\w.]+\s(?:gpu|device)s?)\b)"
    r"|if|when|unless|while|until|till|by default|yet\b)",
    re.IGNORECASE,
)


def is_limited(text: str, end: int) -> bool:
    """Whether what follows a denial says that it does not hold for the run."""
    return _LIMITED.match(text, end) is not None


# An ellipsis ends no sentence: “Enabling FP8 training... failed”.
_SENTENCE = re.compile(
    r".*?(?:(?<!\.)[.!](?=\s|$)(?!\s*[(\[]default)|(?<![:=\s])\s{3,}|[\r\n]|$)", re.DOTALL
)
# What may follow a claim: an end, a stop, a bracket, a preposition; no part of a file name.
_FOLLOWS = lazy_pattern(
    r"\s*(?:$|[,;!()\[\]|=\u2013\u2014\u2026\u2713\u2714\u2705]|\.(?!\w)|:|(?:(?<=\s)/|-)(?=[\s>-])"
    r"|(?:on|for|with|using|in|to|across|at|by|via|from|and|but|of|successfully|recipe|scaling|now"
    r"|layers?|modules?|training|linear)\b)|\s{2,}",
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
    r"|\b(?:from|at|since|starting(?: at| from)?) (?:step|iter(?:ation)?) [01]\b",
    re.IGNORECASE,
)
_OTHERS = (
    r"(?:kv[-_ ]?cache|attention(?!\s*(?:and|&|\+|,|/))|optimi[sz]er|all[-_ ]to[-_ ]all|comm\w*"
    r"|all[-_ ]?gather|dataset|storage|teacher|reference|ref|reward|draft|checkpoint|inference"
    r"|rollouts?|vllm|sglang|eval\w*|vae|text[-_ ]encoders?|frozen|serving|export)"
)
# The one rule: what follows a claim and has one of these takes it back, or is not understood. A
# claim is compared with every step of the window, so a condition and a later beginning do, too.
_DENIAL = lazy_pattern(
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
