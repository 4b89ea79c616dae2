"""What is recorded of a run besides the profiler's trace: one instrument for each kind of evidence.

To record a new kind, write an `Instrument` in a file of this folder and add it to `INSTRUMENTS`;
the fields that it returns get a struct in `fp8verify/capture/schema.py`.
"""

from __future__ import annotations

from .instrument import Instrument
from .numerics import Numerics
from .recorded import FrameworkNumbers, MemoryPeak, ModuleList, WindowLayers

INSTRUMENTS: tuple[type[Instrument], ...] = (
    ModuleList,
    FrameworkNumbers,
    WindowLayers,
    MemoryPeak,
    Numerics,
)
