"""The byte code of sources of ours, in the form of a file that an import takes as it is."""

from __future__ import annotations

import marshal
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from types import CodeType
from typing import Any

# PEP 552: never held against its source. Both are copies, made together.
UNCHECKED = (0b01).to_bytes(4, "little") + bytes(8)


class _OnlyKept(SourceFileLoader):
    @staticmethod
    def source_to_code(*_: Any, **__: Any) -> CodeType:
        """Take only byte code that Python has kept."""
        raise ImportError


def byte_code(source: str, called: str | None = None, *, compiles: bool = True) -> bytes | None:
    """Return the byte code of a source file: what Python has kept of it, else compiled now.

    Python keeps it beside the source: when a package is installed, or when it is asked here.

    Args:
        source: the file.
        called: what tracebacks are to call it; None where the import sees to that.
        compiles: whether to compile, or to return None, where nothing is kept.
    """
    loader = (SourceFileLoader if compiles else _OnlyKept)("_", source)
    try:
        code = loader.get_code("_")
    except ImportError:
        return None
    if code is None:
        return None
    return MAGIC_NUMBER + UNCHECKED + marshal.dumps(_renamed(code, called) if called else code)


def _renamed(code: CodeType, name: str) -> CodeType:
    inner = tuple(_renamed(c, name) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=name, co_consts=inner)
