"""Options of ours that stand after the script, as in `fp8verify run train.py --steps 10-12`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fp8verify.errors import UsageError
from fp8verify.record.settings import parse_ranks

if TYPE_CHECKING:
    from fp8verify.cli.script_text import ScriptText

_WINDOW = r"[0-9]{1,9}-[0-9]{1,9}"
_WINDOWS = rf"(?:[0-9]{{1,9}},)*{_WINDOW}(?:,(?:{_WINDOW}|[0-9]{{1,9}}))*|global:[0-9,-]+"
# Never taken after the script: there --steps is a window, -m is before its module, and --help is
# what a user asks the script for.
_BEFORE_ONLY = {"after_seconds", "module", "help"}
# What the types of the options do not check.
_CHECKS: dict[str, Callable[[str], object]] = {"ranks": parse_ranks}


class RunCommand(click.Command):
    """A command whose options may also stand after the script that it runs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move the options that `take_options` finds in front of the script, and say so."""
        return super().parse_args(ctx, args if ctx.resilient_parsing else self._in_front(ctx, args))

    def _in_front(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        command = given.get("command_line")
        if not isinstance(command, (tuple, list)) or {"steps", "after_seconds"} & set(given):
            return args
        ours = args[: len(args) - len(command)]
        if ours[-1:] == ["--"]:
            return args
        taken = take_options(command, self._options(ctx), module=bool(given.get("module")))
        if taken.options:
            click.echo(taken.told, err=True)
        return [*ours, *taken.options, *taken.command]

    def _options(self, ctx: click.Context) -> dict[str, click.Option]:
        return {
            name: param
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and param.name not in _BEFORE_ONLY
            for name in param.opts
        }


class Taken(NamedTuple):
    """The words after the script, told apart.

    Attributes:
        options: those of ours.
        command: the script with the others.
        script: what the user calls it.
        left: options that could have been ours, and why they are the script's.
    """

    options: list[str]
    command: list[str]
    script: str
    left: list[tuple[str, str]]

    @property
    def told(self) -> str:
        """The line that says what was taken and what was left."""
        import shlex  # most runs start without it

        left = "".join(f"; {name} stays {self.script}'s: {why}" for name, why in self.left)
        return f"fp8verify: takes {shlex.join(self.options)} from behind {self.script}{left}"


class _Word(NamedTuple):
    """A word after the script, or an option that may be ours with its value."""

    words: Sequence[str]
    name: str = ""
    option: click.Option | None = None
    value: str | None = None


def take_options(
    command: Sequence[str], options: Mapping[str, click.Option], *, module: bool
) -> Taken:
    """Take our options out of the words after a script.

    A `--steps` is ours if its value is a window such as 10-12. The others are ours if there is such
    a window, their values are in our form, and the script could not mean them: `ScriptText`. What
    stands after a `--` is the script's; the `--` goes if something was taken before it.

    Args:
        command: the script, module or program and its arguments.
        options: what may be taken, by the names on the command line.
        module: whether the command is a module's.
    """
    words = list(command)
    start = 0 if module else _script(words)
    end = words.index("--", start) if "--" in words[start:] else len(words)
    found = list(_split(words[start + 1 : end], options))
    script = words[start]
    if not any(map(_is_window, found)):
        return Taken([], words, script, [])
    from fp8verify.cli.script_text import ScriptText  # most runs start without it

    text = ScriptText(words, module=module)
    ours: list[str] = []
    theirs: list[str] = []
    left: list[tuple[str, str]] = []
    for word in found:
        why = _not_ours(word, text)
        (ours if why is None else theirs).extend(word.words)
        if why and word.option is not None:
            left.append((word.name, why))
    return Taken(ours, [*words[: start + 1], *theirs, *words[end + 1 :]], script, left)


def _script(words: Sequence[str]) -> int:
    """Return the place of the script: behind a launcher the first .py file or module."""
    for index, word in enumerate(words):
        if word.endswith(".py"):
            return index
        if word == "-m" and index + 1 < len(words):
            return index + 1
    return 0


def _split(words: Sequence[str], options: Mapping[str, click.Option]) -> Iterator[_Word]:
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        option = options.get(name)
        bare_next = bool(waiting) and not waiting[0].startswith("-")
        if option is None or (equals and (option.is_flag or not name.startswith("--"))):
            yield _Word((word,))
        elif equals:
            yield _Word((word,), name, option, value)
        elif option.is_flag:
            # A flag of ours has no value: with one behind it, it is somebody else's.
            yield _Word((word,)) if bare_next else _Word((word,), name, option)
        elif bare_next:
            value = waiting.pop(0)
            yield _Word((word, value), name, option, value)
        else:
            yield _Word((word,))


def _is_window(word: _Word) -> bool:
    steps = word.option is not None and word.option.name == "steps"
    return steps and re.fullmatch(_WINDOWS, word.value or "") is not None


def _not_ours(word: _Word, text: ScriptText) -> str | None:
    """Return why a word is the script's, None if it is ours; "" needs no telling."""
    if word.option is None:
        return ""
    if word.option.name == "steps":
        return None if _is_window(word) else ""
    if word.value is not None and not _fits(word.option, word.value):
        return "its value is none of ours"
    return text.may_mean(word.name)


def _fits(option: click.Option, value: str) -> bool:
    try:
        converted: Any = option.type.convert(value, option, None)
        if option.callback is not None:
            option.callback(click.get_current_context(), option, converted)
        _CHECKS.get(option.name or "", str)(value)
    except (click.BadParameter, UsageError):
        return False
    return True
