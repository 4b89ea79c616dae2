"""Whether the gaps between two losses may be chance, or the rounding of what was printed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import islice, pairwise
from statistics import fmean, median

LEAST_GAPS = 4
SURE = 4.0  # standard errors beyond which a mean gap is no chance
FEW = 8  # gaps of which it takes twice as many: their scatter is hardly known
SURE_OF_PARTS = 3.0  # the same of means of parts, of which there are few
PARTS = 4
STANDS_OUT = 1.5  # times what the same number of gaps came to before
MOST = 10.0  # medians that a single gap counts for: spikes are told apart
_MOST_LOOKED_AT = 512


def mean(values: Sequence[float]) -> float:
    """Return the mean, of values whose sum may be too large for a float, too."""
    try:
        return fmean(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)


def is_noise(gaps: Sequence[float], like: Sequence[float]) -> bool:
    """Whether the mean of gaps may be chance: losses of other data or seeds scatter.

    Args:
        gaps: those in question, in the order of the steps.
        like: more gaps that scatter as these do; few gaps do not tell how much they scatter.
    """
    gaps = _tamed(gaps)
    if len(gaps) < LEAST_GAPS:
        return True
    scatter = max(_scatter(gaps), _usual_move(like))
    sure = SURE * (1 + FEW / len(gaps))
    if abs(mean(gaps)) <= sure * scatter / math.sqrt(len(gaps)):
        return True
    return abs(mean(gaps)) <= SURE_OF_PARTS * _error_of_parts(gaps)


def stands_out(gaps: Sequence[float], earlier: Sequence[float]) -> bool:
    """Whether the last gaps are above all that as many came to before: averaged losses drift."""
    size = min(len(gaps), len(earlier)) or 1
    before = (mean(earlier[first : first + size]) for first in range(0, len(earlier), size))
    return median(gaps) > STANDS_OUT * max(map(abs, before), default=0.0)


def standard_error(gaps: Sequence[float]) -> float:
    """Return that of the mean, if each gap scatters by itself."""
    return _scatter(gaps) / math.sqrt(len(gaps)) if gaps else 0.0


def resolution(values: Iterable[float]) -> float:
    """Return the last digit that any of the numbers was printed with."""
    known = (Decimal(repr(value)).as_tuple().exponent for value in _some(values))
    last = min((place for place in known if isinstance(place, int)), default=0)
    return 1.001 * 10.0**last  # differences of printed numbers are rounded, too


def _some(values: Iterable[float]) -> Iterator[float]:
    found = list(values)
    return islice(found, 0, None, 1 + len(found) // _MOST_LOOKED_AT)


def _tamed(gaps: Sequence[float]) -> Sequence[float]:
    most = MOST * median(map(abs, gaps)) if gaps else 0.0
    return [min(most, max(-most, gap)) for gap in gaps]


def _scatter(gaps: Sequence[float]) -> float:
    """Return the standard deviation; from what follows each other, since a trend is no scatter."""
    moves = [after - before for before, after in pairwise(gaps)]
    if not moves:
        return 0.0
    # The root mean square of the difference of two normal values is 1.414 of their deviation; of
    # few values it is surer than the median, which forgives jumps.
    return max(_usual_move(gaps), math.hypot(*moves) / math.sqrt(2 * len(moves)))


def _usual_move(gaps: Sequence[float]) -> float:
    moves = [abs(after - before) for before, after in pairwise(gaps)]
    # The median of |x - y| of two normal values is 0.954 of their standard deviation.
    return median(moves) / 0.954 if moves else 0.0


def _error_of_parts(gaps: Sequence[float]) -> float:
    """Return the standard error of the mean from those of parts: averaged losses move little."""
    size = len(gaps) // PARTS
    means = [mean(gaps[place * size : (place + 1) * size]) for place in range(PARTS)]
    signed = [math.copysign(part, part * means[-1]) for part in means]
    grows = signed[0] > 0 and signed == sorted(signed)
    return 0.0 if grows else _scatter(means) / math.sqrt(PARTS)
