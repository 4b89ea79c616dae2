"""The grammars of kernels' names: one for each library that they come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fp8verify.kernels.grammars import (
    amd,
    attention,
    cublas,
    cutlass,
    gemm_names,
    helper_names,
    libraries,
    pytorch,
)
from fp8verify.kernels.symbol import Symbol
from fp8verify.terms import KernelName

# Each grammar recognizes its own names and returns None for others. Where two could claim a
# name, the narrower is first: attention before the CUTLASS kernels it is built from, and the
# words of helpers last.
GRAMMARS: Final[tuple[Callable[[Symbol], KernelName | None], ...]] = (
    cublas.nvjet,
    cublas.logged,
    pytorch.native,
    pytorch.triton,
    libraries.untyped,
    cublas.xmma,
    attention.decode,
    cutlass.procedural,
    cutlass.template,
    libraries.deepgemm,
    amd.tensile,
    libraries.tensorrt_llm,
    cublas.decode,
    amd.composable_kernel,
    amd.aiter_assembly,
    libraries.convolution,
    libraries.cute_dsl,
    libraries.thunderkittens,
    attention.by_words,
    gemm_names.decode,
    helper_names.decode,
)
