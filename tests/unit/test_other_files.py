"""Files that are no traces of ours: read where that is simple, else told what to export."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from fp8verify import inspect
from fp8verify.errors import InputError


def archive(kind: str) -> bytes:
    packed = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(packed, "w") as file:
            file.writestr("archive/data.pkl", b"")
    else:
        with tarfile.open(fileobj=packed, mode=kind) as tape:
            tape.addfile(tarfile.TarInfo("run/weights.bin"))
    return packed.getvalue()


SNAPSHOT = b"\x80\x04\x95" + bytes(8) + b"}\x94(\x8c\x08segments\x94]\x94u."


@pytest.mark.parametrize(
    ("name", "content", "fact", "hint"),
    [
        ("snapshot.pickle", SNAPSHOT, "memory", "export_chrome_trace"),
        (
            "weights.pkl",
            b"\x80\x04\x95" + bytes(40),
            "never|not loaded",
            "export_chrome_trace",
        ),
        (
            "cublas.log",
            b"I! cuBLAS (v13.1.0) function",
            "no types",
            "CUBLASLT_LOG_MASK=2",
        ),
        ("run.pftrace", b"\n8M", "Perfetto", "traceconv json"),
        ("run.ncu-rep", b"NVR", "Nsight Compute", "ncu --import"),
        ("run.nsys-rep", b"NVR", "Nsight Systems", "nsys export"),
        ("7_results.db", b"SQLite format 3", "rocprofv3", "rocpd convert"),
        ("host.xplane.pb", b"\n\x80", "xplane", "trace.json.gz"),
        ("weights.pt", archive("zip"), "such as a checkpoint", "unpack"),
        ("run.tar", archive("w"), "such as a checkpoint", "json.gz"),
        ("run.tgz", gzip.compress(archive("w"), mtime=0), "such as", "json.gz"),
        ("run.zip", archive("zip"), "such as a checkpoint", "json.gz"),
    ],
)
def test_what_is_of_no_use_is_named_and_what_to_export(
    name: str, content: bytes, fact: str, hint: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=fact) as caught:
        inspect(path)
    assert hint in caught.value.hint
