"""Find the traces that the user's paths stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

from fp8verify.errors import InputError
from fp8verify.trace.candidates import candidates_in, one_form_each
from fp8verify.trace.file_ranks import FoundTrace, TraceFile, rank_of_name, with_ranks
from fp8verify.trace.formats import Glance
from fp8verify.trace.places import expand, is_remote, reading
from fp8verify.trace.readers import glance_at, parts_of, suffixes

_PROBES_AT_ONCE = 16


class NoTraceError(InputError):
    """A folder in which there is no trace."""


class TraceFiles(list[TraceFile]):
    """The traces of a path by rank, and what was given beside them and holds none."""

    def __init__(self, files: Iterable[TraceFile] = (), skipped: Iterable[Path] = ()) -> None:
        super().__init__(files)
        self.skipped = list(skipped)


def find_traces(
    *paths: str | Path,
    declared: Mapping[str, int] | None = None,
) -> TraceFiles:
    """Return the traces that `paths` stand for: files, folders, patterns or URLs, by rank.

    A folder is searched itself; if it holds no trace, its direct subfolders are. A damaged file
    that is called like a rank's trace is returned too: leaving it out would hide a rank.

    Args:
        paths: what the user gave.
        declared: ranks of files by name, as the runner noted them; these may share a rank.

    Raises:
        InputError: nothing there, or no trace among it.
    """
    where = [path for text in paths for path in expand(text)]
    label = str(where[0]) if len(where) == 1 else f"What {paths[0]} stands for"
    with reading(str(where[0])):
        if len(where) == 1 and where[0].is_file():
            return TraceFiles(_of_one_file(where[0]))
        held = {path: candidates_in(path) for path in where}
        empty = _empty_folders(held, list(map(str, paths)))
    probes = _probe_all(one_form_each(list(dict.fromkeys(chain.from_iterable(held.values())))))
    found, skipped = _sort_out(probes)
    declared = declared or {}
    if not any(probes[one.path].is_trace or one.path.name in declared for one in found):
        raise _no_trace(label, probes)
    return TraceFiles(with_ranks(found, declared), [*empty, *skipped])


def _empty_folders(held: Mapping[Path, list[Path]], named: list[str]) -> list[Path]:
    """Return the folders that were named and hold nothing that may be a trace."""
    return [path for path in held if str(path) in named and not held[path] and path.is_dir()]


def _no_trace(label: str, files: Iterable[Path]) -> NoTraceError:
    names = ", ".join(file.name for file in list(files)[:3])
    what = f"holds files, but no trace: {names}" if names else "holds no trace"
    # What torch.profiler writes comes first: it is what most users have.
    *others, last = sorted(suffixes(), key=lambda suffix: not suffix.startswith(".json"))
    endings = f"{', '.join(others)} or {last}"
    hint = f"Traces end in {endings}; give the folder that the profiler wrote to."
    return NoTraceError(f"{label} {what}.", hint)


def _of_one_file(path: Path) -> list[TraceFile]:
    """Return the ranks of a file; what is wrong with it is told when it is read."""
    try:
        glance = parts_of(path)
    except InputError:
        glance = Glance()
    found = _pieces(path, glance)
    if len(found) == 1:
        return [found[0].as_file(rank_of_name(path.name) or 0, path.name)]
    return [one.as_file(rank, path.name) for rank, one in enumerate(found)]


def _pieces(path: Path, glance: Glance) -> list[FoundTrace]:
    shared = len(glance.parts) > 1
    return [FoundTrace(path, part, shared, glance.instead) for part in glance.parts or (None,)]


def _probe_all(paths: list[Path]) -> dict[Path, Glance]:
    """Probe every file; remote ones at once, as each costs a journey to its storage."""
    if not any(map(is_remote, paths)):
        return {path: _probe(path) for path in paths}
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_PROBES_AT_ONCE) as pool:
        return dict(zip(paths, pool.map(_probe, paths), strict=True))


def _probe(path: Path) -> Glance:
    """Look at the start of a file; one that cannot be read counts as damaged."""
    try:
        return glance_at(path)[1]
    except InputError:
        return Glance(is_damaged=True)


def _sort_out(probes: dict[Path, Glance]) -> tuple[dict[FoundTrace, int | None], list[Path]]:
    """Split files into traces with their ranks, as far as known, and what is none."""
    found: dict[FoundTrace, int | None] = {}
    skipped = []
    for path, probe in probes.items():
        rank = probe.rank if probe.rank is not None else rank_of_name(path.name)
        if probe.is_trace or (probe.is_damaged and rank is not None):
            for one in _pieces(path, probe):
                found[one] = None if one.shares_file else rank
        else:
            skipped.append(path)
    return found, skipped
