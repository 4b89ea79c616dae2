"""What was measured of a probe, and what can be said of its gain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from statistics import median
from typing import NamedTuple

import msgspec

from fp8verify.doctor.blocks import Group
from fp8verify.doctor.probes import Probe, Shape

BF16 = "bf16"
# A model is more than the blocks that are measured: what lies within is no answer.
# benchmarks/doctor_measure.sh lays the two side by side (docs/doctor.md has its table).
MARGIN = 0.05


class Answer(str, Enum):
    """Whether FP8 pays; `UNSURE` where the gain is within the doubt about it."""

    PAYS = "pays"
    LOSES = "does not pay"
    UNSURE = "cannot tell"


class Gain(NamedTuple):
    """How many times as fast FP8 is, and the bounds of that by the rounds alone."""

    speed_up: float
    low: float
    high: float

    @property
    def answer(self) -> Answer:
        """What follows, with the margin on both sides."""
        if self.low >= 1 + MARGIN:
            return Answer.PAYS
        return Answer.LOSES if self.high <= 1 / (1 + MARGIN) else Answer.UNSURE

    def __str__(self) -> str:
        bounds = f"{self.low:.2f}-{self.high:.2f}"
        return f"{self.speed_up:.2f}x" + (f" ({bounds})" if self.high - self.low > 0.005 else "")


class Saved(NamedTuple):
    """The µs that FP8 saves a step, and by how much rounds differ on that."""

    us: float
    doubt: float


class Gemm(msgspec.Struct, frozen=True):
    """The products of one leg and size in a step; µs of all of them."""

    leg: str
    m: int
    n: int
    k: int
    us: float


class Kernel(msgspec.Struct, frozen=True):
    """A kernel that ran in a step; µs of all its launches."""

    name: str
    us: float


class Timed(msgspec.Struct, frozen=True):
    """A probe in one precision: µs of a step by round, and of its GEMMs and casts by a trace.

    `cast_us` is of the kernels that cast, with all that the compiler fused into them; `kernels` are
    those that take the most time.
    """

    rounds_us: tuple[float, ...]
    gemms: tuple[Gemm, ...] = ()
    cast_us: float = 0.0
    kernels: tuple[Kernel, ...] = ()

    @property
    def us(self) -> float:
        """The time of a step."""
        return median(self.rounds_us)

    @property
    def gemm_us(self) -> float:
        """The time of the GEMMs in it."""
        return sum(gemm.us for gemm in self.gemms)


class Measured(msgspec.Struct, frozen=True):
    """A probe, in BF16 and in the FP8 variants that ran; `errors` has those that did not.

    A variant is a recipe, or a role of which the layers alone are in FP8.
    """

    tokens: int
    groups: tuple[Group, ...]
    times: dict[str, Timed]
    errors: dict[str, str] = {}

    @property
    def probe(self) -> Probe:
        """What was measured."""
        return Probe(self.tokens, self.groups)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The sizes in it."""
        return self.probe.shapes

    @property
    def recipes(self) -> tuple[str, ...]:
        """The recipes that ran, the fastest first."""
        names = (name for name in self.times if name != BF16)
        return tuple(sorted(names, key=lambda name: self.times[name].us))

    @property
    def around_us(self) -> float:
        """The time in BF16 of what is around the layers; 0 where no trace told it."""
        bf16 = self.times[BF16]
        return max(0.0, bf16.us - bf16.gemm_us) if bf16.gemms else 0.0

    def saved(self, recipe: str) -> Saved:
        """Return what a recipe saves: the median over the rounds, whose extremes do not count."""
        pairs = zip(self.times[BF16].rounds_us, self.times[recipe].rounds_us, strict=True)
        gains = sorted(bf16 - fp8 for bf16, fp8 in pairs)
        inner = gains[1:-1] if len(gains) > 3 else gains
        return Saved(median(gains), (inner[-1] - inner[0]) / 2)

    def gain(self, recipe: str) -> Gain:
        """Return how a recipe speeds up the layers themselves, their casts included."""
        return gain_of(self.layers_us, self.saved(recipe))

    @property
    def layers_us(self) -> float:
        """The time in BF16 of the layers themselves."""
        return self.times[BF16].us - self.around_us

    def gain_alone(self, group: Group) -> Gain | None:
        """Return how the layers of one group gain where they alone are in FP8, if that is known."""
        before = self.group_us(group)
        known = before > 0 and group.role.value in self.times
        return gain_of(before, self.saved(group.role.value)) if known else None

    def group_us(self, group: Group) -> float:
        """Return the time in BF16 of a group's GEMMs; layers of one size share theirs evenly."""
        all_keys = Counter(key for one in self.groups for key in _gemms_of(self.tokens, one))
        keys = Counter(_gemms_of(self.tokens, group))
        shares = {key: count / all_keys[key] for key, count in keys.items()}
        gemms = self.times[BF16].gemms
        return sum(g.us * shares.get(_key(g.leg, g.m, g.n, g.k), 0.0) for g in gemms)

    @property
    def best(self) -> Gain | None:
        """The gain by the fastest recipe."""
        return self.gain(self.recipes[0]) if self.recipes else None


def _key(leg: str, m: int, n: int, k: int) -> tuple[str, int, int, int]:
    """Return what a GEMM is known by; its result may be computed transposed."""
    return leg, min(m, n), max(m, n), k


def _gemms_of(tokens: int, group: Group) -> Iterator[tuple[str, int, int, int]]:
    for n in group.outputs:
        yield _key("fprop", tokens, n, group.k)
        yield _key("dgrad", tokens, group.k, n)
        yield _key("wgrad", n, group.k, tokens)


def gain_of(before: float, saved: Saved) -> Gain:
    """Return the gain of a time in BF16 and what is saved of it."""
    least = before / 1e3  # a noisy round may seem to save more than there was
    after = [max(least, before - us) for us in (saved.us, saved.us - saved.doubt)]
    fastest = max(least, before - saved.us - saved.doubt)
    return Gain(before / after[0], before / after[1], before / fastest)


def answer_of(one: Measured) -> Answer:
    """Return whether the best recipe pays."""
    return one.best.answer if one.best is not None else Answer.LOSES


def total_saved(parts: Iterable[tuple[Saved, int]]) -> Saved:
    """Add up what probes save, each as often as a model has it; doubts may all go one way."""
    known: Sequence[tuple[Saved, int]] = list(parts)
    return Saved(
        sum(saved.us * count for saved, count in known),
        sum(saved.doubt * count for saved, count in known),
    )
