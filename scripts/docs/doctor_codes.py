"""The sections of docs/doctor.md on the doctor's codes, written from fp8verify/doctor/data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fp8verify.doctor.conditions import table

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
    "NeMo-Speech": "NVIDIA-NeMo/Speech", "bionemo-recipes": "NVIDIA/bionemo-framework",
}  # fmt: skip


def doctor_codes() -> str:
    """Return a section for every code: what it says, its rules with example, thread, remedy."""
    rules: dict[str, list[Mapping[str, Any]]] = {}
    for rule in [*table("rules")["rule"], *table("scripts")["rule"]]:
        rules.setdefault(rule["code"], []).append(rule)
    parts = []
    for code, says in table("codes").items():
        parts.append(f"### `{code}`\n\n{says[:1].upper()}{says[1:]}.")
        parts += [part for rule in rules.get(code, ()) for part in _rule(rule)]
        parts += [_failure(row) for row in table("failures")["failure"] if row.get("check") == code]
    return "\n\n".join(parts)


def _rule(rule: Mapping[str, Any]) -> Iterator[str]:
    status = {"fail": "FAIL", "ok": "ok"}.get(rule.get("status", ""), "warn")
    message = re.sub(r"<[=$@]?([^<>]+)>", lambda m: f"`{m[1].split('|')[0]}`", rule["message"])
    where = rule.get("framework", "")
    where = ", ".join(where) if isinstance(where, list) else where
    yield f"**{status}**{f' ({where})' if where else ''}: {message}. {rule['remedy']}"
    if isinstance(rule.get("example"), str):
        yield f"```text\n{rule['example'].strip()}\n```"
    elif "example" in rule:
        _, old, new = rule["example"]
        lines = [f"- {line}" for line in old.splitlines()]
        lines += [f"+ {line}" for line in new.splitlines()]
        yield "```diff\n" + "\n".join(lines) + "\n```"
    seen = "".join(
        f" {name.capitalize()}: {rule[name]}." for name in ("seen", "fixed") if name in rule
    )
    yield f"Evidence: {_linked(rule['evidence'])}.{seen}"


def _failure(row: Mapping[str, Any]) -> str:
    last = row["example"][0].split(" ⏎ ")[-1]
    return (
        f"A run that ends with `{last.replace('`', chr(39))[:110]}`: {row['cause']}. "
        f"{row['remedy']} Evidence: {_linked(row['evidence'])}."
    )


def _linked(evidence: str) -> str:
    """Return an evidence with its threads as links; "A#1, #2" names two of A."""
    names = "|".join(sorted(map(re.escape, _REPOSITORIES), key=len, reverse=True))

    def link(match: re.Match[str]) -> str:
        name, numbers = match[1], re.findall(r"\d+", match[2])
        base = f"https://github.com/{_REPOSITORIES[name]}/issues"
        return ", ".join(f"[{name}#{n}]({base}/{n})" for n in numbers)

    return re.sub(rf"(?<![\w/])({names})((?:#\d+)(?:, #\d+)*)", link, evidence)
