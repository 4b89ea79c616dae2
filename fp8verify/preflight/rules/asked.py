"""What the files request, and what is only mentioned in files that no rule reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from fp8verify.preflight.checks import Check, Status
from fp8verify.preflight.documents import Document
from fp8verify.preflight.facts import Ask, Config, Facts
from fp8verify.preflight.frameworks import framework_of
from fp8verify.preflight.machine import FORMATS, trains_in
from fp8verify.preflight.mentions import Mention, mentions, mentions_of_values, spoken, told
from fp8verify.preflight.tables import known_keys
from fp8verify.text import listed

_START = "`doctor -- COMMAND` and `run` show what a script does"


def asked(facts: Facts) -> Iterator[Check]:
    """The FP8 request of each file, as the doctor understands it."""
    for config in facts.configs:
        yield _of_a_config(config)
    for document in facts.unread:
        found = list(mentions(document))
        # What a script does is told by its model, if that was built.
        told_by_model = document.kind == "python" and facts.model and facts.model.modules
        if not told_by_model and (found or not facts.asks):
            yield _unread(document, found)
        if document.kind != "python":  # which may have a branch for each GPU
            yield from _formats(document, found, facts)
    for missing in facts.missing:
        whose = f"{missing.framework}; its" if missing.framework else "the"
        message = f"{whose} configuration {missing.file} is not on this machine: not checked"
        yield _skipped(message, missing.path, missing.line, "config-not-found")


def _of_a_config(config: Config) -> Check:
    ask, row = config.ask, framework_of(config)
    if ask is not None:
        line = config.lines.get(config.origins.get(ask.key, ask.key))
        where = " in a branch of the script" if ask.key in config.branches else ""
        where += f" in versions until {ask.until}" * bool(ask.until)
        message = f"{config.framework}: requests {_described(ask)}{where}"
        return Check("fp8-asked", Status.OK, message, file=config.path, line=line)
    found = list(mentions_of_values(config.values, config.lines))
    if "unread" in row:
        says = f"mentions {spoken(found)} ({told(found)}); " if found else ""
        message = f"{config.framework}: {says}{row['unread']}: not checked"
        return _skipped(message, config.path, _first(found))
    unknown = [one for one in found if not one.of_generation and not _is_known(one, config)]
    if unknown:
        where = f"mentions {spoken(unknown)} where no rule reads it ({told(unknown)})"
        message = f"{config.framework}: {where}: not checked"
        return _skipped(message, config.path, _first(unknown))
    generation = [one for one in found if one.of_generation]
    more = f"; FP8 for generation only ({told(generation)})" if generation else ""
    other = config.elsewhere or row.get("asked_by", "")
    rest = f"; {other} may request it" if other else ""
    message = f"{config.framework}: no line requests FP8 for training{more}{rest}"
    if rest:
        return _skipped(f"{message}: not checked", config.path, None)
    return Check("fp8-not-asked", Status.NOTE, message, file=config.path, line=_first(generation))


def _is_known(mention: Mention, config: Config) -> bool:
    """Whether a rule or the framework's table of keys knows the setting that mentions FP8."""
    row = framework_of(config)
    key, _, value = mention.text.partition(": ")
    section, _, name = key.rpartition(".")
    plain = name.removeprefix("--").replace("-", "_")
    given = next((given for given, origin in config.origins.items() if origin == key), key)
    asks = [[*one["when"]] for one in row.get("asks", ()) if "format" in one]
    if _is_one_of(given, (keys[0] for keys in asks)):  # a request, of which no row knows the value
        return False
    read = (*row.get("values", ()), *(key for keys in asks for key in keys[1:]))
    if _is_one_of(given, read) or given in row.get("alias", {}).values():
        return "$" not in value  # which the launch resolves
    # Of a value under another key no rule knows what it does.
    in_key = next(mentions_of_values({key: True}, {}), None) is not None
    return in_key and bool({name, plain} & known_keys(row).get(section, frozenset()))


def _is_one_of(name: str, keys: Iterable[str]) -> bool:
    return any(fnmatchcase(name, part) for key in keys for part in key.split("|"))


def _unread(document: Document, found: Sequence[Mention]) -> Check:
    """Return what is said of a file that no rule reads."""
    line = _first(found)
    if document.kind == "python":
        says = f"mentions {spoken(found)} ({told(found)})" if found else "no line mentions FP8"
        message = f"{says}; not checked further: {_START}"
        return _skipped(message, document.path, line)
    rest = "its framework is not recognized: not checked"
    if not found:
        code, message = "config-not-recognized", rest
    elif all(one.of_generation for one in found):
        code = "fp8-mentioned"
        message = f"FP8 for generation only ({told(found)}), which says nothing of training; {rest}"
    else:
        code, message = "fp8-mentioned", f"mentions {spoken(found)} ({told(found)}); {rest}"
    return _skipped(message, document.path, line, code)


def _formats(document: Document, mentioned: Sequence[Mention], facts: Facts) -> Iterator[Check]:
    """Yield the formats that settings of an unknown framework name and a GPU cannot multiply."""
    for fmt in ("mxfp8", "nvfp4"):
        found = [one for one in mentioned if fmt in one.text.lower().replace("_", "")]
        gpus = dict.fromkeys(one.name for one in facts.gpus.found if trains_in(one, fmt) is False)
        if found and gpus:
            message = (
                f"{told(found)}: {listed(list(gpus))} cannot train in {FORMATS[fmt].name} with "
                f"Transformer Engine or torchao, which need {FORMATS[fmt].needs}"
            )
            line = _first(found)
            yield Check("no-fp8-units", Status.WARN, message, file=document.path, line=line)


def _skipped(message: str, file: str, line: int | None, code: str = "fp8-mentioned") -> Check:
    return Check(code, Status.SKIPPED, message, file=file, line=line)


def _first(found: Sequence[Mention]) -> int | None:
    return next((one.line for one in found), None)


def _described(ask: Ask) -> str:
    details = [word for word in (ask.recipe, ask.backend) if word and word != ask.format]
    return FORMATS[ask.format].name + (f" ({', '.join(details)})" if details else "")


def not_started(facts: Facts) -> Iterator[Check]:
    """What configuration files do not show about a run, unless its model was built."""
    if facts.model is None and (facts.asks or facts.command):
        message = (
            "nothing was started: that the model converts, how many tokens a GEMM sees, "
            "pipeline stages, CUDA graphs and checkpoints are not checked"
        )
        hint = "Put the command that trains after --."
        yield Check("training-not-started", Status.SKIPPED, message, hint)
