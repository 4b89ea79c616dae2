"""Replay the doctor over upstream's own configurations, and print what changed since last time.

    python benchmarks/doctor_upstream.py SOURCES

SOURCES holds checkouts as OWNER+NAME. Upstream's files are taken for sound: each complaint about
one is a false alarm, or a real defect that `EXPLAINED` names. Complaints are kept, by file, in
benchmarks/results/doctor_upstream.json. The exit code is 1 where one is not explained.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fp8verify.errors import Fp8VerifyError
from fp8verify.preflight.checks import Status
from fp8verify.preflight.launch import Facts, read_launch
from fp8verify.preflight.machine import Gpu
from fp8verify.preflight.rules import judge

OUT = Path(__file__).parent / "results" / "doctor_upstream.json"
FILES = {
    "NVIDIA+Megatron-LM": (
        "tests/functional_tests/test_cases/**/*.yaml",
        "examples/**/*.sh",
        "examples/**/*.yaml",
    ),
    "NVIDIA+TransformerEngine": (
        "qa/**/*.sh",
        "examples/pytorch/**/*.py",
        "examples/**/*.sh",
    ),
    "pytorch+torchtitan": (
        "torchtitan/**/config_registry.py",
        "torchtitan/**/*.toml",
        "scripts/*",
    ),
    "pytorch+ao": (
        "benchmarks/float8/**/*.py",
        "benchmarks/**/*.sh",
        "benchmarks/float8/**/*.sh",
    ),
    "axolotl-ai-cloud+axolotl": (
        "examples/**/*.yaml",
        "examples/**/*.yml",
        "deepspeed_configs/*",
    ),
    "hiyouga+LLaMA-Factory": (
        "examples/**/*.yaml",
        "examples/**/*.json",
        "examples/**/*.sh",
    ),
    "huggingface+accelerate": (
        "examples/**/*.yaml",
        "benchmarks/fp8/**/*.py",
        "tests/**/*.yaml",
    ),
    "pytorch+torchtune": ("recipes/configs/**/*.yaml",),
    "KempnerInstitute+KempnerForge": ("configs/**/*.toml",),
    "NVIDIA-NeMo+RL": ("examples/configs/**/*.yaml",),
    "NVIDIA-NeMo+Automodel": ("examples/**/*.yaml",),
    "NVIDIA-NeMo+Megatron-Bridge": (
        "examples/**/*.sh",
        "examples/**/*.yaml",
        "scripts/**/*.sh",
    ),
    "AMD-AGI+Primus": ("examples/**/*.yaml",),
    "THUDM+slime": ("scripts/**/*.sh",),
    "volcengine+verl": ("examples/**/*.sh", "verl/trainer/config/*.yaml"),
    "modelscope+ms-swift": ("examples/megatron/**/*.sh",),
    "PrimeIntellect-ai+prime-rl": ("configs/**/*.toml", "examples/**/*.toml"),
    "allenai+OLMo-core": ("src/examples/**/*.py", "src/scripts/train/**/*.py"),
    "deepspeedai+DeepSpeed": ("tests/**/*.json", "examples/**/*.json"),
    "karpathy+nanochat": ("runs/*.sh",),
    "KellerJordan+modded-nanogpt": ("train_gpt*.py",),
}
# What upstream's own files really do, by the end of a path and the code.
EXPLAINED: dict[tuple[str, str], str] = {
    (
        "falcon-h1-1b-qlora-cp.yaml",
        "config-key-unknown",
    ): "context_parapllel_size is a slip",
    (
        "0_34_0_fp8.yaml",
        "config-value-unknown",
    ): "a string for a list: test of loading only",
    (
        "deepseek_proxy_fsdp_ep2_fsdp2/model_config.yaml",
        "fp8-without-bf16",
    ): "no --bf16: FP32 rest",
    (
        "deepseek_proxy_fsdp_ep2_fsdp2_1node/model_config.yaml",
        "fp8-without-bf16",
    ): "no --bf16: FP32 rest",
    (
        "L1_pytorch_mcore_integration/test.sh",
        "fp8-without-bf16",
    ): "no --bf16: FP32 rest",
    (
        "L1_pytorch_mcore_fsdp_integration/test.sh",
        "mxfp8-e5m2-gradients",
    ): "hybrid with mxfp8",
    (
        "nemotron_3/nano/slurm_pretrain_fsdp.sh",
        "config-key-ignored",
    ): "model.fp8 and no mixed_precision: the recipe's bf16_mixed overwrites it",
}
# A cost that upstream accepts is no alarm: these are said of a layout, not of a defect.
ADVICE = (
    "dims-too-small-to-pay",
    "compile-off",
    "tokens-too-few",
    "fp8-with-checkpointing",
)


def main() -> int:
    """Replay, compare and keep."""
    root = Path(sys.argv[1])
    before = json.loads(OUT.read_text()) if OUT.exists() else {}
    found: dict[str, list[str]] = {}
    frameworks: Counter[str] = Counter()
    unexplained = 0
    for path in files(root):
        name = str(path.relative_to(root))
        try:
            facts = facts_of(path)
        except Fp8VerifyError as error:
            found[name] = [
                f"refused: {str(error).splitlines()[0].replace(str(path), '')[:120]}"
            ]
            continue
        for config in facts.configs:
            frameworks[f"{config.framework}{' (FP8)' if config.ask else ''}"] += 1
        frameworks["not recognized"] += len(facts.unread)
        grave = [
            c for c in judge(facts) if c.status in (Status.WARN, Status.FAIL) and c.file
        ]
        for check in grave:
            text = f"{check.status.value} {check.code} {check.line or 0}: {check.message[:160]}"
            found.setdefault(name, []).append(text.replace(str(root), ""))
            if "not checked" in check.message:  # no claim
                continue
            known = any(
                name.endswith(end) and code == check.code for end, code in EXPLAINED
            )
            if not known and check.code not in ADVICE:
                unexplained += 1
                print("false alarm?", name, text)
    for name in sorted({*before, *found}):
        for text in sorted({*before.get(name, ())} ^ {*found.get(name, ())}):
            print("+" if text in found.get(name, ()) else "-", name, text)
    OUT.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    print(
        dict(frameworks),
        f"{len(found)} files with complaints, {unexplained} unexplained",
    )
    return int(unexplained > 0)


def files(root: Path) -> Iterator[Path]:
    """Yield the configurations of every checkout that is there."""
    for repository, patterns in FILES.items():
        paths = {p for pattern in patterns for p in (root / repository).glob(pattern)}
        for path in sorted(paths):
            if path.is_file() and re.search(r"\.(ya?ml|toml|json|sh|py)$", path.name):
                yield path


def facts_of(path: Path) -> Facts:
    """Return the facts of one file, on a B200 with current versions of all libraries."""
    facts = read_launch([str(path)], [], {})
    return facts._replace(gpus=(Gpu("NVIDIA B200", "10.0"),))


if __name__ == "__main__":
    sys.exit(main())
