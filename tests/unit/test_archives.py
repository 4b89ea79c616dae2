"""A zip or tar of traces is read as its folder is, and nothing is written outside of ours."""

from __future__ import annotations

import io
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from fp8verify import inspect
from fp8verify.errors import InputError
from fp8verify.trace import archives
from tests.captures import report_of

TRACE = Path(__file__).parents[2] / "traces/fp8_compiled"
ENDINGS = [".zip", ".tar", ".tar.gz", ".tgz"]


def packed(path: Path, members: Mapping[str, bytes]) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return path
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as tape:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tape.addfile(info, io.BytesIO(content))
    return path


def capture(below: str = "") -> dict[str, bytes]:
    files = (path for path in TRACE.rglob("*") if path.is_file())
    return {f"{below}{path.relative_to(TRACE)}": path.read_bytes() for path in files}


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of temporary files, which is empty again after each test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("below", ["", "mail/fp8_compiled/"])
def test_an_archive_is_read_as_its_folder_is(
    ending: str, below: str, tmp_path: Path, temporary: Path
) -> None:
    path = packed(tmp_path / f"fp8_compiled{ending}", capture(below))
    assert inspect(path).to_json() == report_of(TRACE.name).to_json()
    assert list(temporary.iterdir()) == []


def test_all_ranks_of_an_archive_are_read(tmp_path: Path) -> None:
    trace = next(TRACE.glob("*.json.gz")).read_bytes()
    path = packed(
        tmp_path / "run.zip", {"a/rank0.json.gz": trace, "a/rank1.json.gz": trace}
    )
    assert [rank.rank for rank in inspect(path).ranks] == [0, 1]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("../rank0.json", "leads out of it"),
        ("a/../../rank0.json", "leads out of it"),
        ("/tmp/rank0.json", "leads out of it"),
        ("a\\..\\rank0.json", "leads out of it"),
        ("C:/rank0.json", "leads out of it"),
        ("more/rank0.tar.gz", "another archive in it"),
        ("rank0.zip", "another archive in it"),
    ],
)
def test_what_does_not_belong_into_an_archive_is_refused(
    name: str, fact: str, ending: str, tmp_path: Path, temporary: Path
) -> None:
    path = packed(tmp_path / f"run{ending}", {**capture(), name: b"{}"})
    before = set(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=fact) as caught:
        inspect(path)
    assert len(str(caught.value).splitlines()) == 2
    assert set(tmp_path.rglob("*")) == before
    assert list(temporary.iterdir()) == []


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "run.tar"
    with tarfile.open(path, "w") as tape:
        link = tarfile.TarInfo("rank0.json")
        link.type = tarfile.SYMTYPE
        link.linkname = str(next(TRACE.glob("*.json.gz")))
        tape.addfile(link)
    with pytest.raises(InputError, match="no trace"):
        inspect(path)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("limit", ["_MAX_MEMBERS", "_MAX_BYTES"])
def test_too_much_is_refused(
    ending: str, limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed zeros are small, and as large as they like."""
    members = {f"rank{number}.json": bytes(1 << 20) for number in range(3)}
    path = packed(tmp_path / f"run{ending}", members)
    monkeypatch.setattr(archives, limit, 2 if limit == "_MAX_MEMBERS" else 2 << 20)
    with pytest.raises(InputError, match="too much in it"):
        inspect(path)


def test_a_header_that_claims_a_huge_table_is_refused(tmp_path: Path) -> None:
    table = tarfile.TarInfo("table")
    table.type = tarfile.XHDTYPE
    table.size = 1 << 40
    path = tmp_path / "run.tar"
    path.write_bytes(table.tobuf(tarfile.GNU_FORMAT) + bytes(8 << 20))
    with pytest.raises(InputError, match=r"too much in it|damaged"):
        inspect(path)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kept", [0, 3, 0.5, 0.98])
def test_a_damaged_archive_is_told_in_two_lines(
    ending: str, kept: float, tmp_path: Path, temporary: Path
) -> None:
    path = packed(tmp_path / f"run{ending}", capture())
    data = path.read_bytes()
    path.write_bytes(data[: int(kept if kept >= 1 else kept * len(data))])
    for line in told(path):
        assert str(temporary) not in line
    assert len(told(path)) in (
        0,
        2,
    )  # a tar that is cut behind its traces has all of them
    assert list(temporary.iterdir()) == []


def told(path: Path) -> list[str]:
    try:
        inspect(path)
    except InputError as error:
        return str(error).splitlines()
    return []
