"""What a GPU kernel is: from its name, and from the operator that launched it."""

from fp8verify.kernels.classify import Classification, classify
from fp8verify.kernels.grammars import decode

__all__ = ["Classification", "classify", "decode"]
