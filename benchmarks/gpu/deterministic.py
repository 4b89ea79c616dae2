"""Run a script with torch's deterministic algorithms, so equal runs have equal losses.

python benchmarks/gpu/deterministic.py SCRIPT.py [ARGUMENTS…]
"""

from __future__ import annotations

import runpy
import sys

import torch

torch.use_deterministic_algorithms(True, warn_only=True)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
