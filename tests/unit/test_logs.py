"""Reading logs: packing, encodings, ends of lines, lines without end, and how much memory."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fp8verify.errors import InputError
from fp8verify.logs import lines
from fp8verify.logs.claims import read_claims
from fp8verify.logs.lines import Line, read_lines

LINE = "Applied Float8 training: recipe=TENSORWISE, fsdp_float8_all_gather=True"


def texts(path: Path) -> list[str]:
    return [line.text for line in read_lines(path)]


def written(folder: Path, data: bytes) -> Path:
    path = folder / "train.log"
    path.write_bytes(data)
    return path


def test_plain_and_packed_logs_are_read_alike(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    data = b"one\ntwo \xff\n"
    for packed in (data, gzip.compress(data), zstandard.compress(data)):
        assert texts(written(tmp_path, packed)) == ["one", "two \ufffd"]


def test_a_hole_of_nuls_is_no_text(tmp_path: Path) -> None:
    log = written(tmp_path, b"\0" * 9000 + f"one\n{LINE}\n".encode())
    assert [claim.line for claim in read_claims(log).claims_at()] == [2]


def test_utf_16_appended_to_ascii_is_still_read(tmp_path: Path) -> None:
    log = written(tmp_path, b"step\n" * 2000 + f"{LINE}\r\n".encode("utf-16-le"))
    assert [claim.line for claim in read_claims(log).claims_at()] == [2001]


def test_a_line_without_end_comes_in_pieces(tmp_path: Path) -> None:
    log = written(tmp_path, b"ab" * (8 << 20) + b"\nnext")
    pieces = list(read_lines(log))
    assert {piece.number for piece in pieces} == {1, 2}
    assert pieces[-1] == Line(2, "next")
    assert max(len(piece.text) for piece in pieces) < 6 << 20


def test_blocks_end_where_lines_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 4)
    pieces = [b"a\r", b"\nb\rc", b"dddd", b"e\nff", b"gg", b"g", b"\nh"]
    # A carriage return may be half of an end; five bytes without an end are a piece.
    assert list(lines._whole_lines(iter(pieces))) == [
        b"a\nb\n",
        b"cdddd",
        b"e\n",
        b"ffggg",
        b"\nh",
    ]


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    small, large = tmp_path / "small.log.gz", tmp_path / "large.log.gz"
    assert peak_of(large, 20) < peak_of(small, 4) + (6 << 20)


def peak_of(log: Path, megabytes: int) -> int:
    """Return the most memory that reading a log of that size takes."""
    with gzip.open(log, "wb", compresslevel=1) as out:
        for _ in range(megabytes):
            out.write(b"step 1 | loss 2.0 | tokens 1000\n" * 32768)
        out.write(LINE.encode())
    tracemalloc.start()
    (claim,) = read_claims(log).claims_at()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert claim.line == megabytes * 32768 + 1
    return peak


def test_a_cut_gzip_gives_what_it_has_and_says_so(tmp_path: Path) -> None:
    noise = random.Random(0).randbytes(400_000).hex().encode()
    log = written(tmp_path, gzip.compress(f"{LINE}\n".encode() + noise)[:-100_000])
    read = read_claims(log)
    assert [claim.line for claim in read.claims_at()] == [1]
    assert read.notes == [
        "train.log was read up to where its packed data is cut or damaged"
    ]


@pytest.mark.parametrize(
    "content",
    [None, gzip.compress(b"x" * 10_000, mtime=0)[:12], b"\x1f\x8b\0\0"],
    ids=["folder", "cut gzip", "no gzip"],
)
def test_an_unreadable_log_is_named(tmp_path: Path, content: bytes | None) -> None:
    log = tmp_path / "train.log"
    if content is not None:
        log.write_bytes(content)
    with pytest.raises(InputError, match=r"train\.log"):
        list(read_lines(log))


ANYWHERE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@ANYWHERE
@given(
    st.one_of(
        st.binary(max_size=400),
        st.binary(max_size=200).map(lambda data: b"\x1f\x8b\x08\0" + data),
        st.binary(max_size=200).map(lambda data: b"\x28\xb5\x2f\xfd" + data),
        st.binary(max_size=200).map(lambda data: data + b"\nFP8 training" + data),
    )
)
def test_any_bytes_are_read_or_refused(tmp_path: Path, data: bytes) -> None:
    log = written(tmp_path, data)
    with suppress(InputError):
        read_claims(log)


# What a line of the surroundings holds: no line end, and nothing that claims.
SURROUNDING = st.text(
    st.characters(codec="ascii", exclude_characters="\r\n\0"), min_size=1, max_size=40
).filter(lambda text: "8" not in text and "4" not in text)
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"]


@ANYWHERE
@example([("a", "\r")], [("b", "\r\n")], "utf-16-be", "\n")
@given(
    st.lists(
        st.tuples(SURROUNDING, st.sampled_from(["\n", "\r\n", "\r"])), max_size=20
    ),
    st.lists(
        st.tuples(SURROUNDING, st.sampled_from(["\n", "\r\n", "\r"])), max_size=20
    ),
    st.sampled_from(ENCODINGS),
    st.sampled_from(["\n", "\r\n", "\r", ""]),
)
def test_a_claim_among_any_lines_is_found_with_its_number(
    tmp_path: Path,
    before: list[tuple[str, str]],
    after: list[tuple[str, str]],
    encoding: str,
    end: str,
) -> None:
    head = "".join(text + ended for text, ended in before)
    tail = "".join(text + ended for text, ended in after) if end else ""
    log = written(tmp_path, f"{head}[rank0]: {LINE}{end}{tail}".encode(encoding))
    (claim,) = read_claims(log).claims_at()
    assert (claim.line, claim.text) == (len(before) + 1, LINE)
