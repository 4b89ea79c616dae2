"""Read what is about to be launched: configurations, the command's own ones, and scripts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fp8verify.capture.schema import ModuleRecord
from fp8verify.errors import Fp8VerifyError
from fp8verify.logs.failures import Failure
from fp8verify.preflight.checks import Check
from fp8verify.preflight.documents import Document, kind_of, read_document
from fp8verify.preflight.frameworks import Ask, Config, launched_by, recognize
from fp8verify.preflight.launch_script import arguments
from fp8verify.preflight.machine import Gpu, RunPython, built_for
from fp8verify.preflight.tables import said

_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
# Options that name a file of something else than the training's settings, whatever it ends in.
_OF_DATA = re.compile(
    r"(?i)data(?:set|loader)?s?[._-]|tokenizer|wandb|prompt|sample|vae|network[._-]"
)
_OF_ENVIRONMENT = "ENV_VARS."
# The variable is torchtitan's: `CONFIG_FILE=llama3_8b.toml ./run_train.sh`.
_CONFIG_FILE = re.compile(
    r"(?:[\w.-]*[._-])?config(?:[_-]?file)?|ENV_VARS\.CONFIG_FILE"
)


class DryModel(NamedTuple):
    """The result of a dry start.

    Attributes:
        modules: the linear layers of the model, in the order of the model.
        why_none: why no model was found; "" if one was.
        remedy: the next step if none was found.
        causes: known causes of a failure, if it failed.
    """

    modules: tuple[ModuleRecord, ...] = ()
    why_none: str = ""
    remedy: str = ""
    causes: tuple[Failure, ...] = ()


class Facts(NamedTuple):
    """The facts that all rules read.

    Attributes:
        environment: the variables that reach the run.
        configs: the configurations, including those that the command names.
        unread: documents whose framework is not known, among them Python sources.
        named: the files that were named, not only found in the command.
        missing: what is said of configurations that a launch names and that are not here.
        command: what would be run.
        gpus: the GPUs of this machine, or those that were named.
        why_no_gpu: why none is seen here.
        python: the run's Python, and its packages.
        require_gpu: whether a machine without a GPU fails.
        model: the result of a dry start, None if nothing was started.
    """

    environment: Mapping[str, str]
    configs: tuple[Config, ...] = ()
    unread: tuple[Document, ...] = ()
    named: tuple[str, ...] = ()
    missing: tuple[Check, ...] = ()
    command: tuple[str, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    why_no_gpu: str = ""
    python: RunPython = RunPython("", "", named=False)
    require_gpu: bool = False
    model: DryModel | None = None

    @property
    def asks(self) -> tuple[tuple[Ask, str], ...]:
        """The FP8 requests of the configurations, each with its file."""
        asked = []
        for config in self.configs:
            if config.ask is not None:
                asked.append((config.ask, config.path))
        return tuple(asked)

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions by distribution, among them the CUDA or ROCm that torch was built for."""
        installed = self.python.versions
        return {**installed, **built_for(installed)}


def read_launch(
    configs: Sequence[str],
    command: Sequence[str],
    environment: Mapping[str, str],
) -> Facts:
    """Read the configurations that were named, and those that the command names.

    The facts about the machine are empty.

    Raises:
        InputError: one that was named cannot be read.
    """
    assigned = dict(_assigned(command))
    variables = {**environment, **assigned}
    values = arguments(command)
    for name, value in assigned.items():
        values[f"{_OF_ENVIRONMENT}{name}"] = value
    line = Document("the command", "arguments", values, text=" ".join(command))
    documents = [read_document(path) for path in configs]
    words = [*_without_data(command), *_default_file(command, variables)]
    documents += _of_the_command(words, configs)
    # `--section.key=value`, with which TOML runs change their file.
    overrides = _dotted(values)
    documents, changes = _with_their_files(documents)
    overrides |= changes
    if _has_toml(documents):
        line = line._replace(values=_without(values, overrides))
    found: list[Config] = []
    unread: list[Document] = []
    every = list(documents)
    if command:
        every.append(line)
    for document in every:
        if document.kind == "toml":
            changed = {**document.values, **overrides}
            document = document._replace(values=changed)
        if not document.elsewhere:
            files = _files_named_in(document)
            document = document._replace(elsewhere=", ".join(files))
        config = recognize(document)
        if config is None:
            unread.append(document)
            continue
        found.append(config)
        variables |= _variables_of(document)
    return Facts(
        environment=variables,
        configs=tuple(found),
        unread=tuple(unread),
        named=tuple(configs),
        missing=tuple(_missing([*documents, line])),
        command=tuple(command),
    )


def _with_their_files(
    documents: Sequence[Document],
) -> tuple[list[Document], dict[str, Any]]:
    """Return documents with the files that scripts name, and how scripts change TOML files.

    A script no longer has the settings by which it changes a file that is here.
    """
    every = list(documents)
    changes: dict[str, Any] = {}
    for index, script in enumerate(documents):
        if script.kind != "shell":
            continue
        known = [document.path for document in every]
        files = list(_of_the_command(_files_named_in(script), known))
        every += files
        if _has_toml(files):
            dotted = _dotted(script.values)
            every[index] = script._replace(values=_without(script.values, dotted))
            changes |= dotted
    return every, changes


def _has_toml(documents: Iterable[Document]) -> bool:
    return any(document.kind == "toml" for document in documents)


def _dotted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a section among arguments, without variables."""
    dotted = {}
    for key, value in values.items():
        if "." in key and not key.startswith(_OF_ENVIRONMENT):
            dotted[key] = value
    return dotted


def _without(
    values: Mapping[str, Any],
    names: Iterable[str],
) -> dict[str, Any]:
    kept = dict(values)
    for name in names:
        kept.pop(name, None)
    return kept


def _variables_of(document: Document) -> dict[str, str]:
    """Return the variables of the environment that a script sets."""
    variables = {}
    for key, value in document.values.items():
        if key.startswith(_OF_ENVIRONMENT):
            variables[key.removeprefix(_OF_ENVIRONMENT)] = str(value)
    return variables


def _files_named_in(document: Document) -> list[str]:
    """Return the configuration files that the arguments of a launch name."""
    return [file for _, file in _config_files(document)]


def _missing(documents: Sequence[Document]) -> Iterator[Check]:
    """Yield what is said of configurations that launches name, and that are not here."""
    for document in documents:
        for key, file in _config_files(document):
            is_here = Path(file).is_file()
            if is_here or "$" in file:
                continue
            framework = launched_by(document)
            whose = "the"
            if framework:
                whose = f"{framework}; its"
            yield said(
                "config-not-found",
                document.path,
                document.lines.get(key),
                whose=whose,
                missing=file,
            )


def _config_files(document: Document) -> Iterator[tuple[str, str]]:
    """Yield the arguments of a launch that name a configuration file, with the file."""
    if not document.is_launch:
        return
    found = set()
    for key, value in document.values.items():
        file = str(value)
        has_settings = kind_of(file) in ("yaml", "toml", "json")
        is_variable = file.startswith("$")
        names_settings = _CONFIG_FILE.fullmatch(key) and not _OF_DATA.search(key)
        if file in found:
            continue
        if names_settings and (has_settings or is_variable):
            found.add(file)
            beside = Path(document.path).parent / file
            if document.kind == "shell" and beside.is_file():
                file = str(beside)
            yield key, file


def _assigned(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that the command sets: `env A=1 python …`."""
    for word in words:
        match = _VARIABLE.fullmatch(word)
        if match:
            yield match[1], match[2]
        elif Path(word).name != "env":
            return


def _without_data(command: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command without those that an option names as data, not settings."""
    is_data = False
    for word in command:
        name, has_value, _ = word.partition("=")
        is_option = word.startswith("--")
        names_data = is_option and _OF_DATA.search(name) is not None
        if not is_data and not names_data:
            yield word
        is_data = names_data and not has_value


def _of_the_command(
    words: Sequence[str],
    known: Iterable[str],
) -> Iterator[Document]:
    """Yield the files that a command names; what cannot be read is the run's concern."""
    for word in dict.fromkeys(words):
        name, has_value, value = word.partition("=")
        names_file = name.startswith("-") or name == "CONFIG_FILE"
        if has_value and names_file:
            name = value
        else:
            name = word
        if name in known or kind_of(name) is None:
            continue
        if Path(name).is_file():
            with suppress(Fp8VerifyError):
                yield read_document(name)


def _default_file(
    words: Sequence[str],
    variables: Mapping[str, str],
) -> list[str]:
    """Return the file that `accelerate launch` reads where the command names none."""
    launches = any(Path(word).name == "accelerate" for word in words[:8])
    names_one = any(word.startswith("--config") for word in words)
    if names_one or not launches:
        return []
    home = variables.get("HOME", "")
    cache = variables.get("XDG_CACHE_HOME") or f"{home}/.cache"
    settings = variables.get("HF_HOME") or f"{cache}/huggingface"
    return [f"{settings}/accelerate/default_config.yaml"]
