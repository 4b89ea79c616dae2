"""How messages write counts, lists, steps and names of layers, and how outside text is cleaned.

Names of layers are exactly as the module list has them, or shortened: the agent takes the
wrappers of DDP, FSDP, compile and checkpointing off a name once, where it reads the model.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Sized
from typing import Any, NamedTuple

# Commands that GitHub and Azure take from the log of a job, and obey.
_COMMAND = re.compile(
    r"::(?=(?:error|warning|notice|debug|group|endgroup|echo|add-mask|stop-commands|set-env|add-path"
    r"|set-output|save-state|add-matcher|remove-matcher|internal-\S{0,40})(?:\s|::))|##(?=vso|\[)",
    re.IGNORECASE,
)


def printable(text: str) -> str:
    """Replace control characters, line ends and lone surrogates, which steer terminals and XML."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text
    )


def cut_middle(text: str, width: int) -> str:
    """Cut the middle out of text longer than `width`; both ends of a kernel name say most."""
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def clean(text: str) -> str:
    """Return text from outside that terminals, logs and encoders take as text.

    Control characters, line breaks, marks of direction and lone surrogates become U+FFFD, and the
    commands of CI systems are taken apart. Each string is cleaned once, if it is read.
    """
    return _COMMAND.sub(lambda found: " ".join(found[0]), printable(text))


def clean_json(data: bytes) -> bytes:
    """Return JSON whose strings and keys are cleaned.

    Raises:
        ValueError: not JSON.
        RecursionError: nested too deep.
    """
    if data.isascii() and not any(sign in data for sign in (b"\\", b"::", b"##")):
        return data
    import msgspec  # messages need none

    return msgspec.json.encode(_cleaned(msgspec.json.decode(data)))


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return list(map(_cleaned, value))
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(one) for key, one in value.items()}
    return value


def counted(things: Sized | int, name: str) -> str:
    """Return "1 layer" or "2 layers", of things or of their number."""
    count = things if isinstance(things, int) else len(things)
    return f"{count} {name}{'' if count == 1 else 's'}"


def about(share: float) -> str:
    """Return a share for a sentence: "57%", but "99.7%" and "0.3%", which are not all or none."""
    whole = f"{share:.0%}"
    if whole in ("0%", "100%") and 0 < share < 1:
        return f"{share:.1%}"
    return whole


def listed(names: Sequence[str], shown: int = 4, *, between: str = ", ") -> str:
    """Join names; of more than `shown` the first, and how many more there are."""
    rest = len(names) - shown
    return between.join(names[:shown]) + (f" and {rest} more" if rest > 0 else "")


def enumerated(names: Sequence[str], shown: int = 4) -> str:
    """Join names as a sentence does: "a, b and c"; of more than `shown`, "a, b and 5 more"."""
    rest = len(names) - shown
    last = [f"{rest} more"] if rest > 0 else list(names[-1:])
    first = list(names[: shown if rest > 0 else -1])
    return " and ".join(filter(None, [", ".join(first), *last]))


def abridged(names: Sequence[str], shown: int) -> str:
    """Join names; of more than `shown` the first, where how many more there are tells nothing."""
    return ", ".join(names[:shown]) + (" …" if len(names) > shown else "")


def of_flops(share: float | None) -> str:
    """Return ", 3.2% of GEMM FLOPs", or nothing if the share is not known or nothing."""
    if share:
        return f", {share:.1%} of GEMM FLOPs"
    return ""


class Measure(NamedTuple):
    """In what the work of kernels is measured: time, or FLOPs in the log of a BLAS library.

    There each ns is a MFLOP.
    """

    name: str
    unit: str

    def amount(self, time_ns: float, of_ns: float | None = None) -> str:
        """Return an amount of work as "1.2 ms", or a part as "1.2 of 3.4 ms"."""
        whole = "" if of_ns is None else f" of {of_ns / 1e6:.1f}"
        return f"{time_ns / 1e6:.1f}{whole} {self.unit}"


MEASURES = {"time": Measure("time", "ms"), "flops": Measure("FLOPs", "TFLOP")}


def gib(size: float) -> str:
    """Return a number of bytes as "0.75 GiB" or "12.3 GiB"."""
    gibibytes = size / 2**30
    return f"{gibibytes:.{1 if gibibytes >= 1 else 2}f} GiB"


def label_of_rank(rank: int | None, source: str = "") -> str:
    """How a rank is called: by its number, else by its file."""
    if rank is None:
        return source
    return f"rank {rank}"


def label_of_ranks(ranks: Sequence[int]) -> str:
    """Return "rank 3" or "ranks 0-3, 6"."""
    names = [
        show_window(run)
        for run in join_windows((rank, rank) for rank in sorted(set(ranks)))
    ]
    return f"rank{'' if len(set(ranks)) <= 1 else 's'} {listed(names)}"


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


def show_window(window: Window) -> str:
    """Return how a window is written: "10-12", or "10"."""
    first, last = window
    if first == last:
        return str(first)
    return f"{first}-{last}"


def show_steps(steps: Iterable[int]) -> str:
    """Return "step 10", "steps 10-12" or "steps 10-12, 500-502"; of no steps, nothing."""
    windows = join_windows((step, step) for step in sorted(set(steps)))
    if not windows:
        return ""
    one = windows[0][0] == windows[-1][1]
    return f"step{'' if one else 's'} " + listed([*map(show_window, windows)], 4)


_INDEX = re.compile(r"(?<![^.])\d+(?![^.])")


def patterns(names: Iterable[str]) -> list[str]:
    """Shorten names alike but for their numbers: "layers.*.mlp.up_proj (12)"."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in names:
        alike[pattern(name)].append(name)
    return [
        group[0] if len(group) == 1 else f"{shape} ({len(group)})"
        for shape, group in alike.items()
    ]


def in_sentences(names: Iterable[str]) -> list[str]:
    """Return names as a sentence has them: a bare number is "layer 0", a root alone a layer."""
    return [
        "a linear layer that stands alone"
        if name == "(root)"
        else f"layer {name}"
        if name[:1].isdigit()
        else name
        for name in names
    ]


def shorten(names: Iterable[str], among: Iterable[str]) -> list[str]:
    """Shorten names as `patterns` does, where all names of `among` of that pattern are meant."""
    wanted = list(names)
    all_alike = Counter(map(pattern, among))
    alike = Counter(map(pattern, wanted))
    whole = {
        name for name in wanted if alike[pattern(name)] >= all_alike[pattern(name)]
    }
    return [
        *patterns(name for name in wanted if name in whole),
        *(n for n in wanted if n not in whole),
    ]


def indexed(names: Sequence[str]) -> str:
    """Name layers alike but for one number by its values: "layers.{0,3-5}.up"; else as patterns."""
    parts = list(
        zip(*(re.split(r"(?<![^.])(\d+)(?![^.])", name) for name in names), strict=True)
    )
    varying = [place for place, values in enumerate(parts) if len(set(values)) > 1]
    if len(varying) != 1:
        return ", ".join(patterns(names))
    windows = join_windows(
        (number, number) for number in sorted(map(int, parts[varying[0]]))
    )
    shown = f"{{{','.join(map(show_window, windows))}}}"
    return "".join(shown if place in varying else p[0] for place, p in enumerate(parts))


def pattern(name: str) -> str:
    """Return a name with a star for each of its numbers, unless that leaves nothing of it."""
    starred = _INDEX.sub("*", name)
    if any(char.isalpha() for char in starred):
        return starred
    return name
