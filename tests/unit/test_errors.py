"""Errors for the user keep their two lines and their exit code on the way between processes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from fp8verify.errors import Fp8VerifyError, InputError, UsageError
from fp8verify.pipeline.fleet import gather_ranks
from fp8verify.pipeline.workers import process_pool
from fp8verify.trace import NoTraceError, find_traces
from tests.hand_built import TraceBuilder


def kinds(
    base: type[Fp8VerifyError] = Fp8VerifyError,
) -> Iterator[type[Fp8VerifyError]]:
    yield base
    for kind in base.__subclasses__():
        yield from kinds(kind)


@pytest.mark.parametrize("kind", list(kinds()), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_errors_survive_pickling(kind: type[Fp8VerifyError], protocol: int) -> None:
    error = kind("a.json is no trace.", "Name another file.")
    for same in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(same) is kind
        assert (str(same), same.fact, same.hint) == (str(error), error.fact, error.hint)
        assert same.exit_code == error.exit_code


def test_the_kinds_that_are_tested_are_all() -> None:
    assert {InputError, UsageError, NoTraceError} <= set(kinds())


def fail(kind: type[Fp8VerifyError]) -> None:
    raise kind("a.json is no trace.", "Name another file.")


def test_an_error_of_a_worker_process_is_raised_as_it_was() -> None:
    with process_pool(1) as pool:
        for kind in (InputError, UsageError, NoTraceError):
            with pytest.raises(kind, match="is no trace") as caught:
                pool.submit(fail, kind).result()
            assert caught.value.hint == "Name another file."


def test_where_no_rank_is_readable_the_error_of_the_first_is_raised(
    tmp_path: Path,
) -> None:
    for rank in range(2):
        TraceBuilder(rank=rank, world=2).write(tmp_path / f"rank{rank}.json")
    files = find_traces(tmp_path)
    for file in files:
        file.path.write_text("what a full disk leaves")
    with pytest.raises(InputError) as alone:
        gather_ranks(files)
    with pytest.raises(InputError) as by_workers:
        gather_ranks(files, workers=2)
    assert by_workers.value.hint == alone.value.hint != ""
