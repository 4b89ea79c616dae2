"""How log lines say that a training runs in a low precision, or that it does not.

Two tables: lines of frameworks, each with where it is written, and a grammar of what scripts
write in their own words. Both are matched where a message begins, never within it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

FORMAT = r"(?:(?:MX|NV)[- ]?FP[48]|FP[- ]?[48]|float[- ]?[48])(?:[_-](?:e4m3|e5m2|e2m1|hybrid))?"
_QUALITY = (
    r"(?:(?:dynamic|delayed|current|tensor-?wise|row-?wise|block-?wise|scal(?:ed|ing)|native|grouped"
    r"|MoE|low[- ]precision|torchao|TE|transformer[- ]engine|hybrid|E4M3|linear"
    rf"|{FORMAT})\s+){{0,4}}"
)
_WORK = (
    r"(?:mixed[- ]precision(?: training)?|(?:pre-?)?training(?: mode)?|(?:linear|nn\.Linear)s?"
    r"(?: layers?| modules?)?|layers|GEMMs?|matmuls?|recipe|autocast|compute|precision|scaling"
    r"|(?:MoE |grouped )?experts|MoE(?: training)?|conversion|backend)"
)
_ON = r"(?:active|enabled|activated|applied|turned on|switched on|in use|on\b(?! \w))"
_IS = r"(?:(?:is|are|was|were|has been|have been|now|successfully)\s+)*"
_LINEAR = rf"(?:(?:te\.)?(?:Float8|MXFP8|NVFP4|MX|FP8|TE)\w*Linear\w*|te\.Linear|{FORMAT})"


class Pattern(NamedTuple):
    """A message. The named groups `recipe` and `all_gather` are read where it has them."""

    framework: str
    says: str
    expression: str
    evidence: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """Compiled when it is first asked for: all of them take as long as a log to read."""
        return _compiled(self.expression)


@cache
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression, re.IGNORECASE)


# A script's own words, of no framework that we know.
OWN = "training script"

# The first row that a message begins with reads it.
PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        "KempnerForge",
        "fp8",
        r"Applied Float8 training: recipe=(?P<recipe>\w+)"
        r"(?:, fsdp_float8_all_gather=\{?(?P<all_gather>True|False)\}?)?",
        "kempnerforge/distributed/parallel.py:172",
    ),
    Pattern(
        "nanochat",
        "fp8",
        r"FP8 training enabled \((?P<recipe>\w+) scaling\) - converted \d+/\d+ linear layers"
        r"(?:, skipped \d+)?",
        "nanochat/scripts/base_train.py:192 (92d63d4)",
    ),
    Pattern(
        "nanochat",
        "not_fp8",
        r"FP8 training requires CUDA, ignoring --fp8 flag",
        "nanochat/scripts/base_train.py:170 (92d63d4)",
    ),
    Pattern(
        "torchtitan",
        "fp8",
        r"(?:Float8|MX) training active with recipe (?P<recipe>\w+)",
        "torchtitan/components/quantization/float8.py:118; mx.py says MX, at first Float8",
    ),
    Pattern(
        "torchtitan",
        "fp8",
        r"Float8 (?:(?P<recipe>tensorwise) scaled )?training active(?! with)",
        "torchtitan, history of float8.py; without a recipe until 2025-03",
    ),
    Pattern(
        "torchtitan",
        "fp8",
        r"Swapped to Float8Linear layers"
        r"(?: with enable_fsdp_float8_all_gather=(?P<all_gather>True|False))?",
        "torchtitan/components/quantization/float8.py:172 and its history",
    ),
    Pattern(
        "torchtitan", "fp8", r"Swapped to \w+ float8 linear layers", "history of float8_linear.py"
    ),
    Pattern(
        "torchtitan",
        "fp8",
        r"Converted (?:\w+|Linear layers|(?:MoE )?layers matching FQNS .{1,400}?) to use dynamic "
        r"(?:float8 )?(?P<recipe>rowwise|mxfp[48]\w*|nvfp4\w*|float8\w*) quantization"
        r"(?: with scaled grouped GEMMs| for [\w ]{1,40} ops)?",
        "torchtitan/components/quantization/float8.py:262, mx.py:202 and their history",
    ),
    Pattern(
        "torchtitan",
        "fp8",
        r"(?:Converted Linear layers to|Swapped to) (?:MX|MXFP8|NVFP4)Linear\w*(?: layers)?",
        "torchtitan/components/quantization/mx.py:97, nvfp4.py:318 (b5bcd76)",
    ),
    Pattern(
        "torchtitan",
        "fp8",
        r"MXFP8 MoE training enabled",
        "torchtitan, history of mx.py, MXFP8Converter.__init__",
    ),
    Pattern(
        "torchtitan",
        "not_fp8",
        r"Failed to (?:use Float8 with|swap to Float8Linear) .{0,40}?because .{1,200}",
        "torchtitan/components/quantization/float8.py:106 and its history; runs on in BF16",
    ),
    Pattern(
        "torchtitan",
        "scope",
        r"Using _auto_filter_for_recipe to avoid converting linear layers .{0,200}",
        "torchtitan/components/quantization/float8.py:132",
    ),
    Pattern(
        "torchao",
        "fp8",
        r"Swapped \S{1,300} to (?:Float8|MXFP8)TrainingWeightWrapperTensor",
        "torchao/prototype/moe_training/conversion_utils.py:120",
    ),
    Pattern(
        "torchao",
        "fp8",
        r"PYTORCH_API_USAGE torchao\.float8\.convert_to_float8_training",
        "torchao/float8/float8_linear_utils.py:110, printed under PYTORCH_API_USAGE_STDERR=1, "
        "as 0.1.0 set it; later captures have the call in a rank's record",
    ),
    Pattern(
        "accelerate",
        "fp8",
        r"Found `(?:torchao|transformer-engine|msamp)` installed, using it for FP8 training\.",
        "accelerate/accelerator.py:490-496",
    ),
    Pattern(
        "accelerate",
        "fp8",
        r"Mixed precision type: fp8\b",
        "accelerate/state.py:1042, the state that scripts log at their start",
    ),
    Pattern(
        "accelerate",
        "not_fp8",
        r"The current .{1,100}? (?:insufficient for|does not support) FP8 mixed precision "
        r"training .{0,200}Will use (?:FP16|BF16) instead",
        "accelerate/state.py:936,943",
    ),
    Pattern(
        "LLaMA-Factory",
        "fp8",
        r"FP8 training enabled with [\w ]+ backend",
        "llamafactory/train/fp8_utils.py:170-177",
    ),
    Pattern(
        "LLaMA-Factory",
        "fp8",
        r"Accelerate FP8 status - enabled: True",
        "llamafactory/train/fp8_utils.py:179; it reads only accelerator.fp8_enabled",
    ),
    Pattern(
        "LLaMA-Factory",
        "fp8",
        r"FP8 environment configured - all FP8 training handled by HuggingFace Accelerate",
        "llamafactory/train/fp8_utils.py:152; printed also where the kwargs came out empty",
    ),
    Pattern(
        "LLaMA-Factory",
        "not_fp8",
        r"(?:Failed to create FP8 configuration: .{0,200}"
        r"|FP8 was requested but Accelerate shows fp8_enabled=False)",
        "llamafactory/train/fp8_utils.py:104,182",
    ),
    Pattern(
        "axolotl",
        "scope",
        r"Patched accelerate fp8 conversion to skip MoE router/gate linears",
        "axolotl/monkeypatch/accelerate/float8_moe_filter.py:74",
    ),
    Pattern(
        "Megatron-LM",
        "scope",
        r"FSDP2 FP[48] param gather is not supported yet .{0,100}will fallback to bf16",
        "megatron/training/arguments.py:1053,1061 (d98e8a6)",
    ),
    Pattern(
        "prime-rl",
        "fp8",
        r"Repla(?:cing|ced \d+) linear layers with (?:FP8 (?P<block>blockwise)|MXFP8) linear"
        r"(?: layers)?(?: \(recipe=(?P<recipe>\w+))?",
        "prime_rl/trainer/models/layers/fp8_linear.py:137,157, mxfp8_linear.py:71,94",
    ),
    Pattern(
        "NeMo",
        "not_fp8",
        r"Transformer Engine is not available and the (?:FP8 autocast|module replacements) will "
        r"not be applied",
        "nemo/lightning/pytorch/accelerate/transformer_engine.py:45,108",
    ),
    Pattern(
        "NeMo Automodel",
        "fp8",
        r"Successfully converted model to FP8 with torchAO, recipe: (?P<recipe>\w+), "
        r"fp8 all-gather enabled: (?P<all_gather>True|False)",
        "nemo_automodel/components/quantization/fp8.py:237 (36044ad)",
    ),
    Pattern(
        "NeMo Automodel",
        "fp8",
        r"(?:experts='\w+': )?MXFP8 grouped GEMM active",
        "nemo_automodel/components/moe/mxfp8.py:132",
    ),
    Pattern(
        "NeMo Automodel",
        "fp8",
        r"Transformer Engine FP8: True\b(?: \(recipe=(?P<recipe>\w+))?",
        "nemo_automodel/recipes/diffusion/train.py:556 (36044ad)",
    ),
    Pattern(
        "NeMo Automodel",
        "fp8",
        r"FP8 quantization applied successfully",
        "nemo_automodel/components/quantization/fp8.py:243",
    ),
    Pattern(
        "NeMo Automodel",
        "scope",
        r"FP8 conversion: \d+ Float8Linear modules, \d+ total linear modules",
        "nemo_automodel/components/quantization/fp8.py:295",
    ),
    Pattern(
        "NeMo Automodel",
        "not_fp8",
        r"FP8 quantization (?:is disabled|failed: .{1,200}Returning original model)",
        "nemo_automodel/components/quantization/fp8.py:186,248",
    ),
    Pattern(
        "Lightning",
        "scope",
        r"Support for FP8 in the linear layers with this plugin is currently limited .{0,300}",
        "lightning/fabric/plugins/precision/transformer_engine.py:158, once a skipped layer",
    ),
    Pattern(
        OWN,
        "not_fp8",
        rf"(?:{FORMAT}|torchao|transformer.engine)\b(?:(?!gather|attention|cache|optimi|\bif\b)."
        r"){0,200}?\b(?:falling back|fall(?:s|ing)? ?back|fell back|revert(?:ing|ed)|continuing|"
        r"training) (?:to|with|in) (?:bf16|bfloat16|fp16|float16|fp32|half|high precision)\b",
        "wording of many scripts, as “Float8 conversion failed: …. Continuing with bf16.”",
    ),
    Pattern(
        OWN,
        "fp8",
        rf"{_QUALITY}{FORMAT}\s+(?:{_QUALITY}{_WORK}\s*)?(?:[:=-]\s*)?{_IS}{_ON}",
        "wording of many scripts, as “Float8 training enabled (rowwise recipe)”",
    ),
    Pattern(
        OWN,
        "fp8",
        r"(?:Successfully )?(?:Appl(?:ied|ying)|Enabl(?:ed|ing)|Activat(?:ed|ing)|Using|"
        rf"Running(?: with| in)?|Training (?:in|with)) {_QUALITY}{FORMAT}\s+{_QUALITY}{_WORK}",
        "wording of many scripts and forks, as “Applied Float8 training”",
    ),
    Pattern(
        OWN,
        "fp8",
        rf"Training (?:in|with) {_QUALITY}{FORMAT}\b",
        "wording of many scripts",
    ),
    Pattern(
        OWN,
        "fp8",
        rf"(?:(?:{FORMAT}|torchao): ?)?(?:Successfully )?(?:Convert|Swapp|Replac|Wrapp)(?:ed|ing) "
        r"(?=.{0,80}\b(?:linears?|layers?|modules?|model|experts)\b)"
        rf"(?:[\w./-]+ ){{0,8}}?(?:to|with|into|by) {_QUALITY}{_LINEAR}(?!\w)",
        "wording of many scripts, as “Converted 48/49 Linear layers to Float8Linear”",
    ),
    Pattern(
        OWN,
        "fp8",
        rf"Mixed precision(?: type| mode)?\s*[:=]\s*{FORMAT}\b",
        "wording of many scripts, as “Mixed precision: fp8”",
    ),
)

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
    b"_for_recipe",
    b"msamp",
)
DEEDS = re.compile(
    r"train|conver|swapp|appl|enabl|activ|precision|recipe|quanti[sz]|using|replac|wrapp|fall"
    r"|fail|revert|continu|running|insufficient|support|gather|requested|\.{4}|turned|: ?on\b",
    re.IGNORECASE,
)
