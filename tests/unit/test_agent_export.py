"""Writing a trace: whole, compressed, or not at all and with the reason."""

from __future__ import annotations

import gc
import gzip
from pathlib import Path

import pytest

from fp8verify.agent.windows.profiler import ExportError, export


@pytest.mark.parametrize("draft", ["", ".tmp"], ids=["direct", "renamed"])
def test_a_trace_is_kept_compressed_and_nothing_else_stays(
    tmp_path: Path, draft: str
) -> None:
    seen = []

    def write(path: str) -> None:
        Path(path + draft).write_text('{"traceEvents": []}')
        if draft:
            Path(path + draft).rename(path)
        seen.extend(
            entry.name for entry in tmp_path.iterdir() if not entry.is_symlink()
        )

    export(write, tmp_path / "rank0.json.gz", tmp_path)

    assert seen == []  # no plain text on the disk at any time
    assert [entry.name for entry in tmp_path.iterdir()] == ["rank0.json.gz"]
    assert (
        gzip.decompress((tmp_path / "rank0.json.gz").read_bytes())
        == b'{"traceEvents": []}'
    )


@pytest.mark.parametrize("name", ["rank0.json.gz", "rank0.json"])
def test_writing_a_trace_leaves_no_cyclic_garbage(tmp_path: Path, name: str) -> None:
    gc.collect()
    gc.disable()
    try:
        export(lambda path: Path(path).write_text("{}"), tmp_path / name, tmp_path)
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("text", ["", '{"traceEvents": [{"ph": "X"'])
def test_a_trace_that_was_not_written_whole_is_not_kept(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(ExportError, match="could not write the whole trace"):
        export(
            lambda path: Path(path).write_text(text),
            tmp_path / "rank0.json.gz",
            tmp_path,
        )

    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / ".rank0.json.gz.part").symlink_to("/dev/full")

    with pytest.raises(ExportError, match="No space left on device"):
        export(
            lambda path: Path(path).write_text("{}"),
            tmp_path / "rank0.json.gz",
            tmp_path,
        )

    assert not list(tmp_path.iterdir())
