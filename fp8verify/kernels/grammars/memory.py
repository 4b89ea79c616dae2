"""Copies and fills that the driver runs, as Kineto and roctracer name them."""

from __future__ import annotations

import re
from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.symbol import Symbol
from fp8verify.terms import KernelName, Role

_NAME: Final = re.compile(
    r"(?:Memcpy|Memset)(?: .*)?|\[CUDA mem(?:cpy|set).*|(?:Copy|Fill)(?:Device|Host|Buffer)\w*|"
    r"__amd_rocclr_\w+",
    re.DOTALL,
)


def decode(symbol: Symbol) -> KernelName | None:
    """Decode a copy or fill."""
    if not _NAME.fullmatch(symbol.text):
        return None
    return describe.other(symbol.name, "driver", Role.MEMORY, "a copy or fill of memory")
