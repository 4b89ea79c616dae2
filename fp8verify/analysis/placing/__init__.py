"""Where each launch of a GEMM belongs: its owner, its layer's leg, its call, its micro-batch."""

from __future__ import annotations

from fp8verify.analysis.placing.place import Placed, place

__all__ = ["Placed", "place"]
