"""The pages of docs/doctor, one a code: written from the doctor's data, and from what it says.

doctor_codes.toml has an example of each rule that reads a file. What an example is told is what the
doctor says of it; a rule without one is shown by its message.
"""

from __future__ import annotations

import csv
import difflib
import re
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fp8verify.capture.schema import ModuleRecord
from fp8verify.files import parse_toml
from fp8verify.logs.failures import Failure, causes, failures
from fp8verify.preflight.checks import Check, Status
from fp8verify.preflight.launch import DryModel, read_launch
from fp8verify.preflight.machine import Gpu, RunPython
from fp8verify.preflight.rules import judge
from fp8verify.preflight.tables import Rule, codes, plain, rules
from scripts.docs.shell import ROOT

FOLDER = ROOT / "docs" / "doctor"
_CONFIGS = ROOT / "tests" / "doctor_configs"
_H100 = Gpu("NVIDIA H100 80GB HBM3", "9.0")
_VERSIONS = {"torch": "2.11.0+cu130", "torchao": "0.18.0", "transformer_engine": "2.19.0",
             "accelerate": "1.15.0"}  # fmt: skip
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
    "LTX-Video-Trainer": "Lightricks/LTX-Video-Trainer", "lingua": "facebookresearch/lingua",
    "MS-AMP": "Azure/MS-AMP", "OLMo-core": "allenai/OLMo-core",
    "Lightning": "Lightning-AI/pytorch-lightning", "NeMo-Speech": "NVIDIA-NeMo/Speech",
    "bionemo-recipes": "NVIDIA/bionemo-framework",
}  # fmt: skip


@cache
def examples() -> dict[str, dict[str, Any]]:
    """Return the tables of doctor_codes.toml: "rules" and "texts"."""
    return parse_toml(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def code_pages() -> dict[Path, str]:
    """Return the pages of docs/doctor by their files."""
    pages = {FOLDER / f"{code}.md": _page(code) for code in codes()}
    return {FOLDER / "index.md": _index(), **pages}


def _index() -> str:
    rows = [
        "| code | result | framework | what it means |",
        "| --- | --- | --- | --- |",
    ]
    for code, (means, _) in codes().items():
        told = [*_rules_of(code)]
        results = dict.fromkeys(
            [rule.status for rule in told] or [_scene(code).status.value]
        )
        whose = ", ".join(dict.fromkeys(filter(None, map(_whose, told))))
        rows.append(
            f"| [`{code}`]({code}.md) | {', '.join(results)} | {whose} | {means} |"
        )
    return (
        "# The doctor's codes\n\nWhat each check of [`fp8verify doctor`](../doctor.md) means. "
        "`fp8verify explain CODE` prints its page without the example.\n\n"
        + "\n".join(rows)
        + "\n"
    )


def _page(code: str) -> str:
    means, why = codes()[code]
    shown: list[str] = []
    fixes: list[str] = []
    evidence: list[str] = []
    for rule in _rules_of(code):
        shown.append(_example(rule))
        fixes.append(rule.remedy)
        evidence.append(rule.evidence)
    for row in failures():
        if row.check == code:
            shown.append(_message(row))
            fixes.append(row.remedy)
            evidence.append(row.evidence)
    if not shown:
        check = _scene(code)
        shown.append(_fenced(_said(check)))
        fixes += [check.hint] if check.hint else []
        evidence += [check.source] if check.source else []
    parts = [
        f"# `{code}`",
        f"## What it means\n\n{means}",
        f"## Why it matters\n\n{why}",
        "## Example\n\n" + "\n\n".join(shown),
        "## Fix\n\n" + _list(fixes or ["Nothing needs a fix."]),
        "## Evidence\n\n"
        + _list([_linked(one) for one in evidence] or ["What the doctor sees."]),
    ]
    return "\n\n".join(parts) + "\n"


def _rules_of(code: str) -> Iterator[Rule]:
    yield from (
        rule for of_group in rules().values() for rule in of_group if rule.code == code
    )


def _whose(rule: Rule) -> str:
    named = rule.where.get("framework", rule.where.get("family", ""))
    return ", ".join(named) if isinstance(named, list) else str(named).removeprefix("!")


def _example(rule: Rule) -> str:
    """Return what the doctor says of a rule's example, and the change that fixes it."""
    whose = _whose(rule)
    head = f"**{_word(rule.status)}**{f' ({whose})' if whose else ''}"
    if rule.message in examples()["texts"]:
        source = examples()["texts"][rule.message]
        return f"{head}\n\n```text\n{source.strip()}\n```\n\n{_told('train.py', source, rule)}"
    changes = examples()["rules"].get(rule.message)
    name, old, new = changes[0] if changes else ("trl.yaml", "", "")
    sound = (_CONFIGS / name).read_text(encoding="utf-8")
    faulty = sound.replace(old, new, 1)
    told = _told(name, faulty, rule)
    if told is None:
        return f"{head}\n\n{_fenced(plain(rule))}"
    diff = difflib.unified_diff(
        faulty.splitlines(), sound.splitlines(), n=0, lineterm=""
    )
    lines = [line for line in diff if not line.startswith(("---", "+++", "@@"))]
    change = _fenced("\n".join(lines), "diff")
    return f"{head}\n\n{told}\n\n{rule.remedy}\n\n{change}"


def _told(name: str, text: str, rule: Rule) -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8")
        gpus = () if rule.where.get("capability") is False else (_H100,)
        versions = {} if name == "train.py" else _VERSIONS
        checks = list(_checks(str(path), gpus=gpus, versions=versions))
    told = [one for one in checks if (one.code, one.hint) == (rule.code, rule.remedy)]
    return _fenced(_said(told[0]).replace(f"{folder}/", "")) if told else None


def _checks(
    *configs: str,
    gpus: tuple[Gpu, ...] = (_H100,),
    versions: Mapping[str, str] = _VERSIONS,
) -> Iterator[Check]:
    python = RunPython(
        "/venv/bin/python", "on the PATH", named=False, versions=versions
    )
    yield from judge(
        read_launch(configs, [], {})._replace(
            gpus=gpus,
            why_no_gpu="no nvidia-smi or amd-smi",
            python=python,
        )
    )


def _said(check: Check) -> str:
    return f"{_word(check.status.value)}  {check.code}  {check.place}{check.message}"


def _word(status: str) -> str:
    return "FAIL" if status == "fail" else status


def _message(row: Failure) -> str:
    said = _fenced(_messages()[row])
    return f"At run time this fails with\n\n{said}\n\nA known cause: {row.cause}."


@cache
def _messages() -> dict[Failure, str]:
    """Return the first message of each known cause, of those that were seen."""
    found: dict[Failure, str] = {}
    with (ROOT / "tests/unit/failure_messages.csv").open(
        encoding="utf-8", newline=""
    ) as table:
        for row in csv.DictReader(table):
            message = row["message"].split(" ⏎ ")[-1]
            found.setdefault(causes([message], alone=True)[0].failure, message)
    return found


def _fenced(text: str, kind: str = "text") -> str:
    return f"```{kind}\n{text}\n```"


def _list(items: list[str]) -> str:
    return "\n".join(f"- {item}" for item in dict.fromkeys(items))


@cache
def _scenes() -> dict[str, Check]:
    """Return a check of each code that no rule of the table has, as the doctor makes it."""
    found: dict[str, Check] = {}
    files = {
        "accelerate.yaml": (_CONFIGS / "accelerate.yaml").read_text(encoding="utf-8"),
        "slip.yaml": (_CONFIGS / "accelerate.yaml").read_text(encoding="utf-8")
        .replace("amax_history_len:", "amax_histroy_len:"),
        "litgpt.yaml": (_CONFIGS / "litgpt.yaml").read_text(encoding="utf-8"),
        "7b.toml": (_CONFIGS / "kempnerforge.toml").read_text(encoding="utf-8"),
        "own.yaml": "lr: 0.1\n",
        "train.py": "booster = Booster(plugin=LowLevelZeroPlugin(use_fp8=True))\n",
        "launch.sh": "accelerate launch --config_file /cluster/fp8.yaml train.py\n",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder) / name
            path.write_text(text, encoding="utf-8")
            for gpus, versions in (
                ((_H100,), _VERSIONS),
                ((Gpu("NVIDIA A100-SXM4-80GB", "8.0"),), {"torch": "2.11.0+cpu"}),
                ((), {}),
            ):
                for check in _checks(str(path), gpus=gpus, versions=versions):
                    found.setdefault(check.code, _without(check, f"{folder}/"))
        for name in ("accelerate_ao.yaml", "accelerate.yaml"):
            text = (_CONFIGS / name).read_text(encoding="utf-8")
            path = Path(folder) / f"msamp_{name}"
            path.write_text(text.replace("TE", "MSAMP"), encoding="utf-8")
            for check in _checks(str(path), versions={"torch": "2.11.0"}):
                found.setdefault(check.code, _without(check, f"{folder}/"))
        accelerate = read_launch([str(Path(folder) / "accelerate.yaml")], [], {})
        for states in (("fp8", "high_precision"), ("fp8_module_off",)):
            model = DryModel(tuple(_module(i, state) for i, state in enumerate(states)))
            for check in judge(accelerate._replace(gpus=(_H100,), model=model)):
                found.setdefault(check.code, _without(check, f"{folder}/"))
        odd = (_module(0, "high_precision", outputs=8), _module(1, "high_precision"))
        failed = DryModel((), "it built no optimizer in 120 s, and was ended",
                          "Give it more time with --timeout.", failures()[:1])  # fmt: skip
        for model in (DryModel(odd), failed):
            for check in judge(accelerate._replace(gpus=(_H100,), model=model)):
                found.setdefault(check.code, _without(check, f"{folder}/"))
    return found


def _without(check: Check, folder: str) -> Check:
    fields = {name: getattr(check, name) for name in check.__struct_fields__}
    file = check.file.replace(folder, "") if check.file else None
    return Check(
        **{**fields, "file": file, "message": check.message.replace(folder, "")}
    )


def _module(place: int, state: str, outputs: int = 4096) -> ModuleRecord:
    return ModuleRecord(
        fqn=f"block.linear{place}", class_name="torch.nn.modules.linear.Linear", kind="linear",
        in_features=4096, out_features=outputs, state=state,
    )  # fmt: skip


def _scene(code: str) -> Check:
    return _MEASURED.get(code) or _scenes()[code]


def _measured(code: str, label: str) -> Check:
    return Check(
        code=code,
        status=Status.OK,
        message=f"{label}: BF16 1.92 ms a step, tensorwise 1.34 ms with casts, 1.43x: pays",
        source="measured on NVIDIA H200, torch 2.11.0, torchao 0.17.0, compiled, each layer alone",
    )


_MEASURED = {
    "measured": _measured("measured", "8192 tokens, 4096 -> 14336"),
    "measured-model": _measured("measured-model", "the model's linear layers"),
}


def _linked(evidence: str) -> str:
    """Return an evidence with its threads as links; "A#1, #2" names two of A."""
    names = "|".join(sorted(map(re.escape, _REPOSITORIES), key=len, reverse=True))

    def link(match: re.Match[str]) -> str:
        name, numbers = match[1], re.findall(r"\d+", match[2])
        base = f"https://github.com/{_REPOSITORIES[name]}/issues"
        return ", ".join(f"[{name}#{n}]({base}/{n})" for n in numbers)

    text = re.sub(r"(?<![\w/])([\w.-]+/[\w.-]+)#(\d+)", r"[\1#\2](https://github.com/\1/issues/\2)",
                  evidence) if "/" in evidence else evidence  # fmt: skip
    return re.sub(rf"(?<![\w/\[])({names})((?:#\d+)(?:, #\d+)*)", link, text)
