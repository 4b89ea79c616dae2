"""What is recorded of a run besides the profiler's trace: one instrument for each kind of evidence.

To record a new kind, write an `Instrument` in a file of this folder and add it to `INSTRUMENTS`;
the fields that it returns get a struct in `fp8verify/capture/schema.py`.
"""

from __future__ import annotations

from .framework_numbers import FrameworkNumbers
from .instrument import Instrument
from .memory_peak import MemoryPeak
from .module_list import ModuleList
from .numerics import Numerics
from .window_layers import WindowLayers

INSTRUMENTS: tuple[type[Instrument], ...] = (
    ModuleList,
    FrameworkNumbers,
    WindowLayers,
    MemoryPeak,
    Numerics,
)
