"""Take over the traces that a script's own profiler wrote, where ours recorded none.

The agent copies what it sees exported. Where it was kept out of the training, the folder that the
training's own configuration names is all there is to look into.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

MAX_FILES = 4096
SUFFIXES = (".json", ".json.gz")
# Where configurations name the folder: KempnerForge's config/profiling.py; torchtitan's, which
# torchtitan/tools/profiling.py joins to `job.dump_folder`.
FOLDERS = ("trace_dir", "save_traces_folder")
DUMP_FOLDER = "dump_folder"


def adopt_script_traces(capture: Path, command: Sequence[str], started: float) -> tuple[str, ...]:
    """Copy the script's newest traces into a capture without any; return what to say of it.

    Args:
        capture: the capture folder.
        command: the training, whose configuration file or options name the folder of its traces.
        started: when the run began; older traces are another run's.
    """
    if any(capture.glob("rank*.json*.gz")) or any(capture.glob("rank*.script*.json")):
        return ()
    for folder in trace_folders(command):
        found = _newest_together(folder, started)
        for trace in found:
            shutil.copyfile(trace, capture / trace.name)
        if found:
            where = found[0].parent
            which = f"those of the script's own profiler in {where} are read instead"
            return (f"no trace of ours was recorded: {which}",)
    return ()


def trace_folders(command: Sequence[str]) -> Iterator[Path]:
    """Yield the folders that the `[profiling]` of a training's configuration names."""
    given = dict(_options(command))
    configs = [_read(Path(word)) for word in command if word.endswith(".toml")]
    for config in configs or [{}]:
        yield from _folders(_table(config, "profiling"), _table(config, "job"), given)


def _folders(
    profiling: Mapping[str, Any], job: Mapping[str, Any], given: Mapping[str, str]
) -> Iterator[Path]:
    dump = given.get(f"job.{DUMP_FOLDER}", job.get(DUMP_FOLDER, ""))
    for name in FOLDERS:
        folder = given.get(f"profiling.{name}", profiling.get(name))
        if isinstance(folder, str) and isinstance(dump, str):
            yield Path(dump if name == FOLDERS[1] else "", folder)


def _options(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the values of options such as `--profiling.trace_dir DIR`, by name."""
    for word, following in zip(command, [*command[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            yield name[2:].replace("-", "_"), value if equals else following


def _read(path: Path) -> dict[str, Any]:
    from fp8verify.record.settings_file import read_toml

    try:
        return read_toml(path)
    except (OSError, ValueError):
        return {}


def _table(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = config.get(name)
    return table if isinstance(table, dict) else {}


def _newest_together(folder: Path, started: float) -> list[Path]:
    """Return the traces of this run in the folder that got the newest one, one for each rank."""
    try:
        files = {
            path: path.stat().st_mtime
            for path in islice(folder.rglob("*.json*"), MAX_FILES)
            if path.name.endswith(SUFFIXES) and path.is_file()
        }
    except OSError:
        return []
    ours = {path: at for path, at in files.items() if at >= started}
    if not ours:
        return []
    where = max(ours, key=lambda path: ours[path]).parent
    return _one_a_rank(sorted((p for p in ours if p.parent == where), key=lambda p: -ours[p]))


def _one_a_rank(newest_first: Sequence[Path]) -> list[Path]:
    from fp8verify.errors import InputError
    from fp8verify.trace.readers import glance_at

    chosen: dict[int | None, Path] = {}
    for path in newest_first:
        try:
            glance = glance_at(path)[1]
        except InputError:
            continue
        if glance.is_trace:
            chosen.setdefault(glance.rank, path)
    return list(chosen.values())
