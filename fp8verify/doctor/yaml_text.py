"""Read a document of YAML: its values and the lines of its keys, with bounded depth and merges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fp8verify.errors import UsageError

MAX_LINES = 20_000
MAX_DEPTH = 100  # libyaml composes by recursion in C, and ends the process on a deep document
MAX_MERGES = 64
MAX_MERGED = 20_000


def read_yaml(path: str, text: str) -> tuple[Any, dict[str, int]]:
    """Return the first document and the line of each of its keys, by dotted name.

    Raises:
        UsageError: pyyaml is not installed.
        ValueError: it is no YAML, or beyond the bounds.
    """
    try:
        import yaml
    except ImportError:
        raise UsageError(
            f"{path} is YAML, and pyyaml is not installed.", "pip install 'fp8verify[doctor]'"
        ) from None
    try:
        _refuse_deep(yaml, text)
        loader = _loader_class(yaml)(text)
        try:
            node = loader.get_node() if loader.check_node() else None
            data = loader.construct_document(node) if node is not None else {}
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    return data, dict(_lines(node))


def _base(yaml: Any) -> Any:
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _refuse_deep(yaml: Any, text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_base(yaml)):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")


def _loader_class(yaml: Any) -> Any:
    class Bounded(_base(yaml)):  # type: ignore[misc] # its base is known only at run time
        """A loader whose merge keys (`<<`) cannot multiply a small file beyond all memory."""

        def flatten_mapping(self, node: Any) -> None:
            merges = [value for key, value in node.value if key.tag == "tag:yaml.org,2002:merge"]
            if sum(len(value.value) for value in merges if value.id == "sequence") > MAX_MERGES:
                raise ValueError(f"a mapping merges more than {MAX_MERGES} others")
            super().flatten_mapping(node)
            if merges and len(node.value) > MAX_MERGED:
                raise ValueError(f"its merge keys make more than {MAX_MERGED} values")

    return Bounded


def _lines(root: Any) -> Iterator[tuple[str, int]]:
    stack: list[tuple[str, Any]] = [("", root)]
    left = MAX_LINES
    while stack:
        prefix, node = stack.pop()
        for key, value in node.value if getattr(node, "id", "") == "mapping" else ():
            if not left:
                return
            left -= 1
            name = f"{prefix}.{key.value}" if prefix else str(key.value)
            yield name, key.start_mark.line + 1
            stack.append((name, value))
