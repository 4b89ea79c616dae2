"""Write preflight/data/schemas.json: the keys of each framework, read from its own sources.

    python scripts/doctor_schemas.py SOURCES

SOURCES holds a checkout of each framework as OWNER+NAME; with `OWNER+NAME.commit` beside it the
commit is recorded. One that is not there keeps its old keys. No code is run or copied: dataclasses,
pydantic models and argparse calls are read by `ast`, example YAML by its keys.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

OUT = Path(__file__).parents[1] / "fp8verify" / "preflight" / "data" / "schemas.json"
Sections = dict[str, set[str]]


class Source(NamedTuple):
    """Where keys come from: files of a repository, what is read there, and their section.

    `take` is "fields:CLASS" (with its bases and, by annotation, its parts as sections), "classes"
    (the fields of all classes in one section), "arguments" (of argparse; an optional prefix after
    a colon), "keys" (of YAML; an optional path after a colon), or "match:REGEX".
    """

    repository: str
    files: tuple[str, ...]
    take: str
    section: str = ""


MEGATRON = "NVIDIA+Megatron-LM"
BRIDGE = "NVIDIA-NeMo+Megatron-Bridge"
SOURCES: dict[str, tuple[Source, ...]] = {
    "accelerate": (
        Source(
            "huggingface+accelerate",
            ("src/accelerate/commands/config/config_args.py",),
            "classes",
        ),
        Source(
            "huggingface+accelerate",
            ("src/accelerate/commands/launch.py",),
            "arguments:fsdp_",
            "fsdp_config",
        ),
        Source(
            "huggingface+accelerate",
            ("src/accelerate/commands/config/cluster.py",),
            r'match:\bfsdp_config\["(\w+)"\]',
            "fsdp_config",
        ),
    ),
    "accelerate launch": (
        Source(
            "huggingface+accelerate",
            ("src/accelerate/commands/launch.py",),
            "arguments",
        ),
    ),
    "Megatron-LM": (
        Source(
            MEGATRON, ("megatron/training/**/*.py", "examples/**/*.py"), "arguments"
        ),
        Source(
            MEGATRON,
            (
                "megatron/core/transformer/transformer_config.py",
                "megatron/core/model_parallel_config.py",
                "megatron/core/optimizer/optimizer_config.py",
                "megatron/core/distributed/distributed_data_parallel_config.py",
                "megatron/training/config/*.py",
                "megatron/training/**/*config*.py",
            ),
            "classes",
        ),
        Source("modelscope+ms-swift", ("swift/megatron/arguments/*.py",), "classes"),
        Source("THUDM+slime", ("slime/**/arguments.py",), "arguments"),
    ),
    "Megatron-Bridge": (
        Source(
            BRIDGE,
            ("src/megatron/bridge/training/mixed_precision.py",),
            "classes",
            "mixed_precision",
        ),
        Source(
            BRIDGE,
            ("src/megatron/bridge/training/config.py",),
            "fields:ConfigContainer",
        ),
        Source(
            MEGATRON,
            ("megatron/core/distributed/distributed_data_parallel_config.py",),
            "classes",
            "ddp",
        ),
    ),
    "axolotl": (
        Source(
            "axolotl-ai-cloud+axolotl",
            ("src/axolotl/utils/schemas/*.py", "src/axolotl/integrations/**/args.py"),
            "classes",
        ),
        Source(
            "axolotl-ai-cloud+axolotl",
            ("src/axolotl/utils/schemas/*.py",),
            r'match:alias="(\w+)"',
        ),
    ),
    "LLaMA-Factory": (
        Source("hiyouga+LLaMA-Factory", ("src/llamafactory/hparams/*.py",), "classes"),
        Source(
            "huggingface+transformers",
            ("**/training_args.py", "**/training_args_seq2seq.py"),
            "classes",
        ),
    ),
    "DeepSpeed": (
        Source(
            "deepspeedai+DeepSpeed",
            (
                "deepspeed/**/constants.py",
                "deepspeed/**/*config*.py",
                "deepspeed/runtime/*.py",
            ),
            r'match:^[A-Z_0-9]+ = "([a-z][a-z0-9_]+)"',
        ),
        Source(
            "deepspeedai+DeepSpeed",
            ("deepspeed/runtime/config.py",),
            r'match:["\']([a-z_0-9]+)',
        ),
        Source("deepspeedai+DeepSpeed", ("tests/**/*.json",), "keys"),
    ),
    "KempnerForge": (
        Source(
            "KempnerInstitute+KempnerForge",
            ("kempnerforge/config/*.py",),
            "fields:JobConfig",
        ),
    ),
    "prime-rl": (
        Source(
            "PrimeIntellect-ai+prime-rl",
            ("packages/prime-rl-configs/src/prime_rl/configs/*.py",),
            "fields:TrainerConfig",
        ),
        Source(
            "PrimeIntellect-ai+prime-rl",
            ("packages/prime-rl-configs/src/prime_rl/configs/*.py",),
            "fields:SFTConfig",
        ),
        Source(
            "PrimeIntellect-ai+prime-rl",
            ("packages/prime-rl-configs/src/prime_rl/configs/*.py",),
            "fields:RLConfig",
        ),
    ),
    "torchtune": (
        Source("pytorch+torchtune", ("recipes/configs/**/*.yaml",), "keys"),
        Source("pytorch+torchtune", ("recipes/*.py",), r"match:\bcfg\.(\w+)"),
        Source("pytorch+torchtune", ("recipes/*.py",), r'match:\bcfg\.get\(\s*"(\w+)"'),
    ),
    "NeMo Automodel": (
        Source(
            "NVIDIA-NeMo+Automodel",
            ("nemo_automodel/components/quantization/fp8.py",),
            "fields:FP8Config",
            "fp8",
        ),
        Source("NVIDIA-NeMo+Automodel", ("examples/**/*.yaml",), "keys:fp8", "fp8"),
    ),
    "Primus": (
        Source(
            "AMD-AGI+Primus",
            (
                "primus/configs/modules/megatron/*.yaml",
                "primus/configs/models/megatron/*.yaml",
            ),
            "keys",
        ),
        Source(MEGATRON, ("megatron/training/**/*.py",), "arguments"),
        Source(
            MEGATRON, ("megatron/core/transformer/transformer_config.py",), "classes"
        ),
        Source("AMD-AGI+Primus", ("primus/**/*.py",), r"match:\bargs\.(\w+)"),
        Source("AMD-AGI+Primus", ("primus/configs/**/*.yaml",), r"match:^(\w+):"),
    ),
}


def main() -> None:
    """Read the sources that are there and write the file."""
    root = Path(sys.argv[1])
    found = json.loads(OUT.read_text()) if OUT.exists() else {}
    for name, sources in SOURCES.items():
        if not all((root / source.repository).is_dir() for source in sources):
            continue
        sections: Sections = {}
        for source in sources:
            for key, section in taken(root / source.repository, source):
                sections.setdefault(section, set()).add(key)
        found[name] = {
            "source": ", ".join(
                _commit(root, name)
                for name in dict.fromkeys(source.repository for source in sources)
            ),
            "sections": {key: sorted(names) for key, names in sorted(sections.items())},
        }
    lines = (
        f" {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}"
        for k, v in found.items()
    )
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _commit(root: Path, repository: str) -> str:
    path = root / f"{repository}.commit"
    commit = path.read_text().strip()[:7] if path.exists() else ""
    return f"{repository.replace('+', '/')} {commit}".strip()


def taken(folder: Path, source: Source) -> Iterator[tuple[str, str]]:
    """Yield keys with their sections."""
    what, _, detail = source.take.partition(":")
    paths = sorted({path for pattern in source.files for path in folder.glob(pattern)})
    if what == "keys":
        for path in paths:
            yield from _of_yaml(path, detail, source.section)
        return
    texts = [path.read_text(errors="replace") for path in paths]
    if what == "match":
        yield from (
            (key, source.section)
            for text in texts
            for key in re.findall(detail, text, re.MULTILINE)
        )
        return
    trees = [ast.parse(text) for text in texts]
    if what == "arguments":
        yield from (
            (key, source.section)
            for tree in trees
            for key in _options(tree)
            if key.startswith(detail)
        )
        return
    classes = {
        node.name: node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    if what == "classes":
        yield from (
            (key, source.section)
            for node in classes.values()
            for key, _ in _fields(node, {})
        )
        return
    yield from _nested(classes, detail, source.section, 0)


def _options(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        function = node.func if isinstance(node, ast.Call) else None
        if isinstance(function, ast.Attribute) and function.attr in (
            "add_argument",
            "reset_arg",
        ):
            for argument in node.args:
                text = str(argument.value) if isinstance(argument, ast.Constant) else ""
                if text.startswith("--"):
                    yield text[2:].replace("-", "_")


def _fields(
    node: ast.ClassDef, classes: dict[str, ast.ClassDef]
) -> Iterator[tuple[str, str]]:
    """Yield the annotated fields of a class and its bases, with their annotations."""
    for base in node.bases:
        name = base.id if isinstance(base, ast.Name) else ""
        if name in classes and classes[name] is not node:
            yield from _fields(classes[name], classes)
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.target.id, ast.unparse(part.annotation)


def _nested(
    classes: dict[str, ast.ClassDef], name: str, section: str, depth: int
) -> Iterator[tuple[str, str]]:
    for key, annotation in _fields(classes[name], classes):
        yield key, section
        parts = [word for word in re.findall(r"\w+", annotation) if word in classes]
        one = "dict" not in annotation and "list" not in annotation
        for part in parts if depth < 4 and one else ():
            inner = f"{section}.{key}" if section else key
            yield from _nested(classes, part, inner, depth + 1)


def _of_yaml(path: Path, wanted: str, section: str) -> Iterator[tuple[str, str]]:
    text = path.read_text(errors="replace")
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:
        return
    for part in filter(None, wanted.split(".")):
        data = data.get(part) if isinstance(data, dict) else None
    yield from _walk(data, section)


def _walk(data: Any, section: str) -> Iterable[tuple[str, str]]:
    for key, value in data.items() if isinstance(data, dict) else ():
        yield str(key), section
        yield from _walk(value, f"{section}.{key}" if section else str(key))


if __name__ == "__main__":
    main()
