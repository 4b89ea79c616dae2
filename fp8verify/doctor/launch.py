"""Read what is about to be launched: configurations, the command's own ones, and scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fp8verify.doctor.documents import Document, kind_of, read_document
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.frameworks import recognise
from fp8verify.doctor.gpus import find_gpus
from fp8verify.doctor.installed import find_installed, find_interpreter
from fp8verify.doctor.launch_script import arguments
from fp8verify.doctor.scripts import read_script
from fp8verify.doctor.training import Config
from fp8verify.errors import Fp8VerifyError

COMMAND = "the command"
_FP8 = re.compile(r"fp8|float8|fp4", re.IGNORECASE)
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


def gather(
    configs: Sequence[str],
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    require_gpu: bool = False,
) -> Facts:
    """Gather the facts; programs run in parallel with reading the files.

    Raises:
        InputError: a configuration cannot be read.
    """
    interpreter = find_interpreter(command, environment)
    with ThreadPoolExecutor(2) as pool:
        gpus, installed = pool.submit(find_gpus), pool.submit(find_installed, interpreter)
        facts = read_launch(configs, command, environment)
    return facts._replace(gpus=gpus.result(), installed=installed.result(), require_gpu=require_gpu)


def read_launch(
    configs: Sequence[str], command: Sequence[str], environment: Mapping[str, str]
) -> Facts:
    """Read the configurations that were named, and those that the command names.

    The facts about the machine are empty.

    Raises:
        InputError: one that was named cannot be read.
    """
    words = list(command)
    variables = {**environment, **dict(_assigned(words))}
    # `--section.key=value`, with which TOML trainings change their file.
    overrides = {key: value for key, value in arguments(words).items() if "." in key}
    documents = [read_document(path) for path in configs]
    documents += list(_of_the_command([*words, *_default_file(words, variables)], set(configs)))
    found: list[Config] = []
    unrecognised: list[str] = []
    for document in documents:
        if document.kind == "python":
            continue
        if document.kind == "toml":
            document = document._replace(values={**document.values, **overrides})
        config = recognise(document)
        if config is not None:
            found.append(config)
            variables |= {  # that a launch script sets
                key.removeprefix("ENV_VARS."): str(value)
                for key, value in document.values.items()
                if key.startswith("ENV_VARS.")
            }
        elif document.path in configs:
            unrecognised.append(document.path)
    arguments_of = recognise(Document(COMMAND, "arguments", arguments(words), {}, " ".join(words)))
    if arguments_of is not None:
        found.append(arguments_of)
    elif not documents and any(_FP8.search(word) for word in words):
        unrecognised.append(COMMAND)
    scripts = [read_script(doc.path, doc.text) for doc in documents if doc.kind == "python"]
    return Facts(
        environment=variables,
        configs=tuple(found),
        scripts=tuple(scripts),
        unrecognised=tuple(unrecognised),
        command=tuple(command),
    )


def _assigned(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that the command sets: `env A=1 python …`."""
    for word in words:
        match = _VARIABLE.fullmatch(word)
        if match:
            yield match[1], match[2]
        elif Path(word).name != "env":
            return


def _of_the_command(words: list[str], known: set[str]) -> Iterator[Document]:
    """Yield the files that a command names; what cannot be read is the training's concern."""
    for word in dict.fromkeys(words):
        name = word.partition("=")[2] if word.startswith("-") and "=" in word else word
        if name in known or kind_of(name) is None or not Path(name).is_file():
            continue
        try:
            yield read_document(name)
        except Fp8VerifyError:
            continue


def _default_file(words: list[str], variables: Mapping[str, str]) -> list[str]:
    """Return the file that `accelerate launch` reads where the command names none."""
    launches = any(Path(word).name == "accelerate" for word in words[:8])
    if not launches or any(word.startswith("--config") for word in words):
        return []
    cache = variables.get("XDG_CACHE_HOME") or f"{variables.get('HOME', '')}/.cache"
    home = variables.get("HF_HOME") or f"{cache}/huggingface"
    return [f"{home}/accelerate/default_config.yaml"]
