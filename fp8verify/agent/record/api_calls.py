"""Learn whether the script asks torchao to convert a model to FP8, whatever comes of it.

torchao tells torch of each such call: `torch._C._log_api_usage_once`. That function is watched from
the import of torchao's conversions until the first one. Wrapping the conversion itself would put a
frame of ours into the traceback of an error in it.
"""

from __future__ import annotations

import torch

CONVERSIONS = "torchao.float8.float8_linear_utils"
WATCHED = frozenset({"torchao.float8.convert_to_float8_training"})


class ApiCalls:
    """The watched APIs that this process has called."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def listen(self) -> None:
        """Watch until the first call of one."""
        original = torch._C._log_api_usage_once

        def log_api_usage_once(name: str) -> None:
            if not torch.compiler.is_compiling() and name in WATCHED:
                self.names.append(name)
                torch._C._log_api_usage_once = original
            original(name)

        torch._C._log_api_usage_once = log_api_usage_once


calls = ApiCalls()
