"""Which files of a folder may be traces, by their names alone."""

from __future__ import annotations

from pathlib import Path

from fp8verify.errors import InputError
from fp8verify.text import lazy_pattern
from fp8verify.trace.places import is_pipe
from fp8verify.trace.readers import suffixes

# JSON files of a capture that are no traces; a hidden file is still being written.
_OURS = lazy_pattern(r"^\.|(\.meta|\.numerics|\.schema)\.json$|^expected\.json$|^report.*\.json$")
# The extra step that `fp8verify run --layers` records is no training step.
_NO_RANKS = "layers"
# What rocprofv3 and nsys write of the same process in several forms, the best to read first.
_FORMS = ("_results.db", "_kernel_trace.csv", ".sqlite", ".nsys-rep")


def candidates_in(path: Path) -> list[Path]:
    """Return the files of a path; of a folder without any those of its direct subfolders."""
    if path.is_file():
        return [] if _OURS.search(path.name) else [path]
    if not path.is_dir():
        raise _no_path(path)
    found = _trace_files(path)
    if not found:
        for child in sorted(entry for entry in path.iterdir() if entry.is_dir()):
            if child.name != _NO_RANKS:
                found += _trace_files(child)
    return found


def _no_path(path: Path) -> InputError:
    """Say what is wrong with a path that is neither a file nor a folder."""
    if is_pipe(path):
        return InputError(
            f"{path} is a pipe, which can be read only once, and only by itself.",
            "Write what comes through it into a file.",
        )
    if path.exists():
        return InputError(f"{path} is neither a file nor a folder.", "Give a trace.")
    return InputError(f"{path} does not exist.", "Give a trace or a folder of traces.")


def _trace_files(folder: Path) -> list[Path]:
    return sorted(
        entry
        for entry in folder.iterdir()
        if entry.name.endswith(suffixes()) and not _OURS.search(entry.name) and entry.is_file()
    )


def one_form_each(paths: list[Path]) -> list[Path]:
    """Leave out files that hold the trace of another file in another form."""
    best: dict[tuple[str, str], int] = {}
    form_of = {path: _form(path) for path in paths}
    for stem, place in filter(None, form_of.values()):
        best[stem] = min(place, best.get(stem, place))
    return [path for path, form in form_of.items() if form is None or best[form[0]] == form[1]]


def _form(path: Path) -> tuple[tuple[str, str], int] | None:
    """Return folder and name without the ending, and the place of the ending in `_FORMS`."""
    for place, ending in enumerate(_FORMS):
        if path.name.endswith(ending):
            return (str(path.parent), path.name.removesuffix(ending)), place
    return None
