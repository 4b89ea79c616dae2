"""Read what is about to be launched: configurations, the command's own ones, and scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fp8verify.errors import Fp8VerifyError
from fp8verify.preflight.documents import Document, kind_of, read_document
from fp8verify.preflight.facts import Config, Facts, Missing
from fp8verify.preflight.frameworks import launched_by, recognize
from fp8verify.preflight.launch_script import arguments
from fp8verify.preflight.machine import Gpus, find_gpus, find_installed, find_interpreter
from fp8verify.preflight.mentions import mentions

COMMAND = "the command"
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_CONFIG_FILE = re.compile(r"(?:[\w.-]*[._-])?config(?:[_-]?file)?")


def gather(
    configs: Sequence[str],
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    gpus: Gpus | None = None,
    require_gpu: bool = False,
) -> Facts:
    """Gather the facts; programs run in parallel with reading the files.

    Args:
        configs: the files that were named.
        command: what would be run.
        environment: the variables that reach it.
        gpus: the GPUs that were named, None for those of this machine.
        require_gpu: whether a machine without a GPU fails.

    Raises:
        InputError: a configuration cannot be read.
    """
    interpreter = find_interpreter(command, environment)
    with ThreadPoolExecutor(2) as pool:
        found = pool.submit(find_gpus) if gpus is None else None
        installed = pool.submit(find_installed, interpreter)
        facts = read_launch(configs, command, environment)
        seen = found.result() if found is not None else gpus or Gpus()
    return facts._replace(gpus=seen, installed=installed.result(), require_gpu=require_gpu)


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
    # `--section.key=value`, with which TOML runs change their file.
    overrides = {key: value for key, value in arguments(words).items() if "." in key}
    line = Document(COMMAND, "arguments", arguments(words), {}, " ".join(words))
    documents = [read_document(path) for path in configs]
    documents += _of_the_command([*words, *_default_file(words, variables)], set(configs))
    for script in [one for one in documents if one.kind == "shell"]:
        named = [file for _, file in _config_files(script)]
        documents += _of_the_command(named, {one.path for one in documents})
    found: list[Config] = []
    unread: list[Document] = []
    for document in [*documents, *([line] if words else [])]:
        if document.kind == "toml":
            document = document._replace(values={**document.values, **overrides})
        if not document.elsewhere:
            document = document._replace(elsewhere=", ".join(f for _, f in _config_files(document)))
        config = recognize(document)
        if config is not None:
            found.append(config)
            variables |= {  # that a launch script sets
                key.removeprefix("ENV_VARS."): str(value)
                for key, value in document.values.items()
                if key.startswith("ENV_VARS.")
            }
        elif document.kind == "python" or document.path in configs or any(mentions(document)):
            unread.append(document)
    missing = tuple(_missing([*documents, line]))
    return Facts(
        environment=variables,
        configs=tuple(found),
        unread=tuple(
            one
            for one in unread
            if one.path not in {file.path for file in missing} or any(mentions(one))
        ),
        missing=missing,
        command=tuple(command),
    )


def _missing(documents: Sequence[Document]) -> Iterator[Missing]:
    """Yield the configurations that launch scripts and the command name, and that are not here."""
    for document in documents:
        for key, file in _config_files(document):
            if not (Path(file).is_file() or "$" in file):
                line = document.lines.get(key)
                yield Missing(document.path, line, launched_by(document), file)


def _config_files(document: Document) -> Iterator[tuple[str, str]]:
    """Yield the arguments of a launch that name a configuration file, with the file."""
    is_launch = document.kind in ("shell", "arguments")
    for key, value in document.values.items() if is_launch else ():
        is_file = kind_of(str(value)) in ("yaml", "toml", "json") or str(value).startswith("$")
        if _CONFIG_FILE.fullmatch(key) and is_file:
            beside = Path(document.path).parent / str(value)
            is_beside = document.kind == "shell" and beside.is_file()
            yield key, str(beside) if is_beside else str(value)


def _assigned(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that the command sets: `env A=1 python …`."""
    for word in words:
        match = _VARIABLE.fullmatch(word)
        if match:
            yield match[1], match[2]
        elif Path(word).name != "env":
            return


def _of_the_command(words: list[str], known: set[str]) -> Iterator[Document]:
    """Yield the files that a command names; what cannot be read is the run's concern."""
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
