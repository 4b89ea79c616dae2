"""The sections of docs/doctor.md on the doctor's codes, written from fp8verify/doctor/data.

doctor_codes.toml has what each code says, and an example for rules and failures.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from fp8verify.doctor.tables import Rule, rules
from fp8verify.logs.failures import Failure, failures

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_REPOSITORIES = {
    "ao": "pytorch/ao", "pytorch": "pytorch/pytorch", "torchtitan": "pytorch/torchtitan",
    "torchtune": "pytorch/torchtune", "TE": "NVIDIA/TransformerEngine",
    "Megatron-LM": "NVIDIA/Megatron-LM", "Megatron-Bridge": "NVIDIA-NeMo/Megatron-Bridge",
    "NeMo-RL": "NVIDIA-NeMo/RL", "Automodel": "NVIDIA-NeMo/Automodel", "verl": "volcengine/verl",
    "accelerate": "huggingface/accelerate", "transformers": "huggingface/transformers",
    "trl": "huggingface/trl", "axolotl": "axolotl-ai-cloud/axolotl", "slime": "THUDM/slime",
    "LLaMA-Factory": "hiyouga/LLaMA-Factory", "prime-rl": "PrimeIntellect-ai/prime-rl",
    "ms-swift": "modelscope/ms-swift", "triton": "triton-lang/triton", "miles": "radixark/miles",
    "nanochat": "karpathy/nanochat", "sd-scripts": "kohya-ss/sd-scripts",
    "unsloth": "unslothai/unsloth", "finetrainers": "huggingface/finetrainers",
    "ROCm/Megatron-LM": "ROCm/Megatron-LM", "StyleTTS2": "yl4579/StyleTTS2",
    "LTX-Video-Trainer": "Lightricks/LTX-Video-Trainer",
    "MS-AMP": "Azure/MS-AMP", "OLMo-core": "allenai/OLMo-core",
    "Lightning": "Lightning-AI/pytorch-lightning", "NeMo-Speech": "NVIDIA-NeMo/Speech",
    "bionemo-recipes": "NVIDIA/bionemo-framework",
}  # fmt: skip


@cache
def examples() -> dict[str, dict[str, Any]]:
    """Return the tables of doctor_codes.toml: "codes", "rules" and "scripts"."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def doctor_codes() -> str:
    """Return a section for every code: what it says, its rules with example, thread, remedy."""
    sections: dict[str, list[str]] = {}
    changes, sources = dict(examples()["rules"]), dict(examples()["scripts"])
    for group, found in rules("rules").items():
        for rule in found:
            parts = sections.setdefault(rule.code, [])
            name = "" if group in ("any", "machine") else group
            parts += _rule(rule, name, _change(changes.pop(rule.plain, None)))
    for rule in rules("scripts")["script"]:
        sections.setdefault(rule.code, []).extend(_rule(rule, "", _source(sources[rule.plain])))
    for row in failures():
        sections.setdefault(row.check, []).append(_failure(row))
    parts = []
    for code, says in examples()["codes"].items():
        parts.append(f"### `{code}`\n\n{says[:1].upper()}{says[1:]}.")
        parts += sections.get(code, ())
    return "\n\n".join(parts)


def _rule(rule: Rule, group: str, example: str) -> Iterator[str]:
    status = {"fail": "FAIL"}.get(rule.status.value, rule.status.value)
    frameworks = rule.fields.get("where", {}).get("framework", group)
    where = ", ".join(frameworks) if isinstance(frameworks, list) else group
    yield f"**{status}**{f' ({where})' if where else ''}: {rule.plain}. {rule.fields['remedy']}"
    if example:
        yield example
    yield f"Evidence: {_linked(rule.fields['evidence'])}."


def _source(text: str) -> str:
    return f"```text\n{text.strip()}\n```"


def _change(found: list[list[str]] | None) -> str:
    if found is None:
        return ""
    _, old, new = found[0]
    lines = [f"- {line}" for line in old.splitlines()]
    lines += [f"+ {line}" for line in new.splitlines()]
    return "```diff\n" + "\n".join(lines) + "\n```"


def _failure(row: Failure) -> str:
    message = row.seen[0].split(" ⏎ ")[-1].replace("`", "'")[:110]
    return (
        f"At run time this fails with `{message}`: {row.cause}. {row.remedy} "
        f"Evidence: {_linked(row.evidence)}."
    )


def _linked(evidence: str) -> str:
    """Return an evidence with its threads as links; "A#1, #2" names two of A."""
    names = "|".join(sorted(map(re.escape, _REPOSITORIES), key=len, reverse=True))

    def link(match: re.Match[str]) -> str:
        name, numbers = match[1], re.findall(r"\d+", match[2])
        base = f"https://github.com/{_REPOSITORIES[name]}/issues"
        return ", ".join(f"[{name}#{n}]({base}/{n})" for n in numbers)

    return re.sub(rf"(?<![\w/])({names})((?:#\d+)(?:, #\d+)*)", link, evidence)
