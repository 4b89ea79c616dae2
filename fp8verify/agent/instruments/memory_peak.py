"""How much GPU memory the process has used at most, by torch's own counters."""

from __future__ import annotations

from typing import Any

import torch

from .instrument import Instrument


class MemoryPeak(Instrument):
    """Reads the counters when a window ends; never resets them, they may be the script's."""

    def end(self) -> dict[str, Any]:
        """Return the window's `MemoryRecord`; None where no GPU is used."""
        if not torch.cuda.is_initialized():
            return {"memory": None}
        return {
            "memory": {
                "allocated_peak": int(torch.cuda.max_memory_allocated()),
                "reserved_peak": int(torch.cuda.max_memory_reserved()),
                "total": int(torch.cuda.get_device_properties(None).total_memory),
            }
        }
