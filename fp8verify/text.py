"""How messages write counts, lists, steps and names of layers, and how outside text is cleaned.

Names of layers are exactly as the module list has them, or shortened: the agent takes the
wrappers of DDP, FSDP, compile and checkpointing off a name once, where it reads the model.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Sized
from typing import Any, NamedTuple

from fp8verify.patterns import lazy_pattern

# Commands that GitHub and Azure take from the log of a job, and obey.
_GITHUB_COMMANDS = (
    r"error|warning|notice|debug|group|endgroup|echo|add-mask|stop-commands|set-env|add-path"
    r"|set-output|save-state|add-matcher|remove-matcher|internal-\S{0,40}"
)
_GITHUB = rf"::(?=(?:{_GITHUB_COMMANDS})(?:\s|::))"
_AZURE = r"##(?=vso|\[)"
_COMMAND = lazy_pattern(f"{_GITHUB}|{_AZURE}", re.IGNORECASE)
_UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """Replace control characters, line ends and lone surrogates, which steer terminals and XML."""
    if text.isprintable():
        return text
    return "".join(map(_printable_char, text))


def _printable_char(char: str) -> str:
    if char.isprintable():
        return char
    return _UNPRINTABLE


def cut_middle(text: str, width: int) -> str:
    """Cut the middle out of text longer than `width`; both ends of a kernel name say most."""
    if len(text) <= width:
        return text
    kept = width - 1
    head = kept * 2 // 3
    tail = kept - head
    return f"{text[:head]}…{text[len(text) - tail :]}"


def clean(text: str) -> str:
    """Return text from outside that terminals, logs and encoders take as text.

    Control characters, line breaks, marks of direction and lone surrogates become U+FFFD, and the
    commands of CI systems are taken apart. Each string is cleaned once, if it is read.
    """
    return _COMMAND.sub(_spaced_out, printable(text))


def _spaced_out(command: re.Match[str]) -> str:
    return " ".join(command[0])


def clean_json(data: bytes) -> bytes:
    """Return JSON whose strings and keys are cleaned.

    Raises:
        ValueError: not JSON.
        RecursionError: nested too deep.
    """
    is_plain = b"\\" not in data and b"::" not in data and b"##" not in data
    if is_plain and data.isascii():
        return data
    import msgspec  # messages need none

    return msgspec.json.encode(_cleaned(msgspec.json.decode(data)))


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return list(map(_cleaned, value))
    if isinstance(value, dict):
        cleaned = {}
        for key, inner in value.items():
            cleaned[_cleaned(key)] = _cleaned(inner)
        return cleaned
    return value


def counted(things: Sized | int, name: str) -> str:
    """Return "1 layer" or "2 layers", of things or of their number."""
    count = things
    if not isinstance(count, int):
        count = len(count)
    if count == 1:
        return f"1 {name}"
    return f"{count} {name}s"


def about(share: float) -> str:
    """Return a share for a sentence: "57%", but "99.7%" and "0.3%", which are not all or none."""
    whole = f"{share:.0%}"
    if whole in ("0%", "100%") and 0 < share < 1:
        return f"{share:.1%}"
    return whole


def listed(names: Sequence[str], shown: int = 4, *, between: str = ", ") -> str:
    """Join names; of more than `shown` the first, and how many more there are."""
    joined = between.join(names[:shown])
    rest = len(names) - shown
    if rest > 0:
        return f"{joined} and {rest} more"
    return joined


def enumerated(names: Sequence[str], shown: int = 4) -> str:
    """Join names as a sentence does: "a, b and c"; of more than `shown`, "a, b and 5 more"."""
    rest = len(names) - shown
    if rest > 0:
        first = ", ".join(names[:shown])
        last = f"{rest} more"
    else:
        first = ", ".join(names[:-1])
        last = "".join(names[-1:])
    return " and ".join(filter(None, [first, last]))


def abridged(names: Sequence[str], shown: int) -> str:
    """Join names; of more than `shown` only the first, and "…" where their number says nothing."""
    joined = ", ".join(names[:shown])
    if len(names) > shown:
        return f"{joined} …"
    return joined


def capital(text: str) -> str:
    """Return words as a sentence begins with them."""
    return text[:1].upper() + text[1:]


def of_flops(share: float | None) -> str:
    """Return ", 3.2% of GEMM FLOPs", or nothing if the share is not known or nothing."""
    if share:
        return f", {share:.1%} of GEMM FLOPs"
    return ""


class Measure(NamedTuple):
    """In what the work of kernels is measured: time, or FLOPs in the log of a BLAS library.

    Work is a number of ns, or of MFLOPs there.
    """

    name: str
    unit: str

    def amount(self, work: float, of: float | None = None) -> str:
        """Return work in ns, or in MFLOPs, as "1.2 ms", or a part as "1.2 of 3.4 ms".

        What would be 0.0 with one decimal has three, and what it is a part of too.
        """
        shown = work / 1e6
        decimals = 1
        if 0 < shown < 0.05:
            decimals = 3
        text = f"{shown:.{decimals}f}"
        if of is not None:
            text = f"{text} of {of / 1e6:.{decimals}f}"
        return f"{text} {self.unit}"


MEASURES = {"time": Measure("time", "ms"), "flops": Measure("FLOPs", "TFLOP")}


def shown_size(dims: Iterable[int]) -> str:
    """Return the sides of a matrix or of a GEMM as everything here writes them: "4096x14336"."""
    return "x".join(map(str, dims))


def gib(size: float) -> str:
    """Return a number of bytes as "0.75 GiB" or "12.3 GiB"."""
    gibibytes = size / 2**30
    if gibibytes >= 1:
        return f"{gibibytes:.1f} GiB"
    return f"{gibibytes:.2f} GiB"


def label_of_rank(rank: int | None, source: str = "") -> str:
    """How a rank is called: by its number, else by its file."""
    if rank is None:
        return source
    return f"rank {rank}"


def label_of_ranks(ranks: Sequence[int]) -> str:
    """Return "rank 3" or "ranks 0-3, 6"."""
    numbers = sorted(set(ranks))
    shown = listed(list(map(show_window, _windows_of(numbers))))
    if len(numbers) <= 1:
        return f"rank {shown}"
    return f"ranks {shown}"


Window = tuple[int, int]  # first and last step, 1-based, inclusive


def join_windows(windows: Iterable[Window]) -> list[Window]:
    """Return windows, which are in order and share no step, with those that touch as one."""
    joined: list[Window] = []
    for first, last in windows:
        if joined and joined[-1][1] == first - 1:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined


def _windows_of(numbers: Iterable[int]) -> list[Window]:
    """Return numbers, which are in order, as windows."""
    return join_windows((number, number) for number in numbers)


def show_window(window: Window) -> str:
    """Return how a window is written: "10-12", or "10"."""
    first, last = window
    if first == last:
        return str(first)
    return f"{first}-{last}"


def show_steps(steps: Iterable[int]) -> str:
    """Return "step 10", "steps 10-12" or "steps 10-12, 500-502"; of no steps, nothing."""
    windows = _windows_of(sorted(set(steps)))
    if not windows:
        return ""
    shown = listed(list(map(show_window, windows)))
    first_step = windows[0][0]
    last_step = windows[-1][1]
    if first_step == last_step:
        return f"step {shown}"
    return f"steps {shown}"


_INDEX = lazy_pattern(r"(?<![^.])\d+(?![^.])")
_PARTS = lazy_pattern(f"({_INDEX.pattern})")  # splitting keeps the numbers
_MANY_OF_BLOCK = 3


def patterns(names: Iterable[str]) -> list[str]:
    """Shorten names alike but for their numbers: "layers.*.mlp.up_proj (12)"."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in names:
        alike[pattern(name)].append(name)
    shortened = []
    for shape, group in alike.items():
        if len(group) == 1:
            shortened.append(group[0])
        else:
            shortened.append(f"{shape} ({len(group)})")
    return shortened


def in_sentences(names: Iterable[str]) -> list[str]:
    """Return names as a sentence has them: a bare number is "layer 0", a root alone a layer.

    Three or more layers of one block are named by it: "layers.3 (7 layers)".
    """
    in_order = list(names)
    of_block = defaultdict(list)
    for name in in_order:
        of_block[_block_of(name)].append(name)
    said: dict[str, None] = {}
    for name in in_order:
        block = _block_of(name)
        alike = of_block[block]
        if block and len(alike) >= _MANY_OF_BLOCK:
            said[f"{block} ({len(alike)} layers)"] = None
        else:
            said[_in_sentence(name)] = None
    return list(said)


def _block_of(name: str) -> str:
    """Return the path of the block that a layer is in: "layers.3" of "layers.3.mlp.up"."""
    index = _INDEX.search(name)
    if index is None or index.start() == 0 or index.end() == len(name):
        return ""
    return name[: index.end()]


def _in_sentence(name: str) -> str:
    if name == "(root)":
        return "a linear layer that stands alone"
    if name[:1].isdigit():
        return f"layer {name}"
    return name


def shorten(names: Iterable[str], among: Iterable[str]) -> list[str]:
    """Shorten names as `patterns` does, where all names of `among` of that pattern are meant."""
    wanted = list(names)
    all_alike = Counter(map(pattern, among))
    alike = Counter(map(pattern, wanted))
    by_pattern = []
    by_name = []
    for name in wanted:
        shape = pattern(name)
        if alike[shape] >= all_alike[shape]:
            by_pattern.append(name)
        else:
            by_name.append(name)
    return [*patterns(by_pattern), *by_name]


def indexed(names: Sequence[str]) -> str:
    """Name layers alike but for one number by its values: "layers.{0,3-5}.up"; else as patterns."""
    columns = list(zip(*map(_PARTS.split, names), strict=True))
    varying = [values for values in columns if len(set(values)) > 1]
    if len(varying) != 1:
        return ", ".join(patterns(names))
    numbers = sorted(map(int, varying[0]))
    shown = ",".join(map(show_window, _windows_of(numbers)))
    joined = ""
    for values in columns:
        if values in varying:
            joined += f"{{{shown}}}"
        else:
            joined += values[0]
    return joined


def pattern(name: str) -> str:
    """Return a name with a star for each of its numbers, unless that leaves nothing of it."""
    starred = _INDEX.sub("*", name)
    if any(char.isalpha() for char in starred):
        return starred
    return name
