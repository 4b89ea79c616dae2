"""Traces on object storage: a real S3 server, and fsspec's file system in memory."""

from __future__ import annotations

import gzip
import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import Request, urlopen

import pytest

from fp8verify import inspect
from fp8verify.errors import InputError
from fp8verify.report.forms import to_json
from fp8verify.trace import places, source
from tests.hand_built import TraceBuilder
from tests.unit.test_fleet_ranks import meta, write_ranks, write_window

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("upath", "s3fs", "moto", "aiohttp"))),
    reason="needs the remote and the test extra",
)
KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    from moto.server import (
        ThreadedMotoServer,
    )  # imported for these tests only: it takes seconds

    s3 = ThreadedMotoServer(port=0, verbose=False)
    s3.start()
    host, port = s3.get_host_and_port()
    yield f"http://{host}:{port}"
    s3.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield the server's S3 file system, which holds one empty bucket."""
    import s3fs

    urlopen(Request(f"{endpoint}/moto-api/reset", method="POST")).close()
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    files.mkdir("traces")
    yield files
    s3fs.S3FileSystem.clear_instance_cache()


def upload(files: Any, folder: Path, target: str) -> None:
    for path in folder.iterdir():
        files.pipe_file(f"{target}/{path.name}", path.read_bytes())
    files.clear_instance_cache()


@pytest.mark.parametrize(
    ("path", "workers"), [("s3://traces/run7/rank*.json", 1), ("s3://traces/run7", 2)]
)
def test_ranks_in_a_bucket_read_as_on_disk(
    path: str, workers: int, bucket: Any, tmp_path: Path
) -> None:
    write_ranks(tmp_path, fp8="yynx")
    upload(bucket, tmp_path, "traces/run7")
    found = inspect(path, workers=workers)
    assert to_json(found) == to_json(inspect(tmp_path, name=found.name))


def test_a_capture_in_a_bucket_is_read_with_its_census_and_log(
    bucket: Any, tmp_path: Path
) -> None:
    write_window(tmp_path, "rank0.json.gz", 10, fp8=True)
    write_window(tmp_path, "rank0.w2.json.gz", 20, fp8=True)
    meta(tmp_path, "rank0", ["rank0.json.gz", "rank0.w2.json.gz"])
    (tmp_path / "log.txt").write_text("Float8 training active with recipe rowwise\n")
    upload(bucket, tmp_path, "traces/capture")
    report = inspect("s3://traces/capture")
    assert report.name == "capture"
    assert to_json(report) == to_json(inspect(tmp_path, name="capture"))
    assert len(report.ranks[0].steps) == 4
    assert len(report.claims) == 1


@pytest.mark.parametrize(
    "path",
    [
        "s3://traces/none.json",
        "s3://traces/none/rank*.json",
        "s3://no-such-bucket/a.json",
    ],
)
@pytest.mark.usefixtures("bucket")
def test_what_is_not_there_is_told_in_two_lines(path: str) -> None:
    with pytest.raises(InputError) as caught:
        inspect(path)
    assert path.removeprefix("s3://") in str(caught.value)
    assert caught.value.hint


def test_memory_is_read_in_this_process() -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    for rank in (0, 1):
        document = (
            TraceBuilder(rank=rank, world=2).linear(64, 32, 16, fp8=True).document()
        )
        files.pipe_file(
            f"/run/rank{rank}.json.gz", gzip.compress(json.dumps(document).encode())
        )
    for path in ("memory://run", "memory://run/rank*.json.gz"):
        report = inspect(path, workers=4)
        assert (report.verdict, len(report.ranks)) == ("ACTIVE", 2)


@pytest.mark.parametrize(
    "url", ["nosuch://bucket/trace.json", "gs://bucket/trace.json"]
)
def test_storage_that_cannot_be_read_says_why(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(InputError, match=f"{url} cannot be read") as caught:
        inspect(url)
    assert caught.value.hint


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "upath", None)
    with pytest.raises(InputError) as caught:
        inspect("s3://bucket/trace.json")
    assert "pip install fsspec" in caught.value.hint


class _Endless(BaseHTTPRequestHandler):
    """Answers with a body that never ends, at once or byte by byte."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        is_page = "page" in self.path
        self.send_header("Content-Type", "text/html" if is_page else "application/json")
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        with suppress(OSError):
            self.wfile.write(b'{"traceEvents": [')
            while True:
                self.wfile.write(b" " * (1 if "slow" in self.path else 1 << 16))
                time.sleep(0.05 if "slow" in self.path else 0)

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize("path", ["fast.json", "slow.json", "page", "slow/page"])
def test_an_answer_without_end_is_refused(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MAX_BYTES", 8 << 20)
    monkeypatch.setattr(places, "MAX_SECONDS", 1.0)
    monkeypatch.setattr(places, "MAX_BODY", 8 << 20)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Endless)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(InputError) as caught:
            inspect(f"http://127.0.0.1:{server.server_port}/{path}")
    finally:
        server.shutdown()
    assert path in caught.value.fact
