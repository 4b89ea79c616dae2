"""Each reader of a file from outside is bounded: no pipe is waited for, no number or alias is endless."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fp8verify import Verdict, inspect
from fp8verify.annotate import annotate
from fp8verify.capture import files
from fp8verify.errors import Fp8VerifyError, InputError
from fp8verify.files import open_regular, parse_toml
from fp8verify.preflight.documents import MAX_ALIASED, read_document
from fp8verify.record.trust import find_settings
from fp8verify.trace import read_trace
from fp8verify.trace.readers import glance_at
from fp8verify.verdict.gates import read_baseline
from tests.hand_built import BF16, BF16_KERNEL, FP8_KERNEL, TraceBuilder
from tests.unit.test_blas_log import E4M3, line
from tests.unit.test_kernel_table import printed

HUGE = "9" * 309
TABLE = f"Kernel name,Kernel duration (us)_sum,Kernel duration (us)_count\n{FP8_KERNEL},600.5,3\n"


@pytest.fixture(autouse=True)
def stopped_if_endless() -> Iterator[None]:
    """Fail a test that waits for ever; no test comes near."""

    def stop(*_: object) -> None:
        raise TimeoutError("a reader waits for ever")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def built(folder: Path) -> Path:
    trace = TraceBuilder(folder)
    for kernel in (FP8_KERNEL, BF16_KERNEL):
        trace.launch(kernel, types=(BF16, BF16), dims=((64, 32), (32, 16)))
    return trace.write(folder / "rank0.json")


# ---- pipes in the place of files

READERS: dict[str, Callable[[Path], object]] = {
    "trace": read_trace,
    "glance": glance_at,
    "meta": files.read_meta,
    "configuration": lambda path: read_document(str(path)),
    "baseline": read_baseline,
    "boot": files.boot_lines,
    "settings": lambda path: find_settings(path.parent),
    "annotate": lambda path: annotate(path, path.with_name("out.json")),
}


@pytest.mark.parametrize("reader", READERS)
def test_no_reader_waits_for_a_pipe(reader: str, tmp_path: Path) -> None:
    name = "fp8verify.toml" if reader == "settings" else "rank0.json"
    os.mkfifo(tmp_path / name)
    path = tmp_path / name
    if reader in ("boot", "settings"):  # do without it
        found = READERS[reader](path)
        assert not found or name in str(found)
        return
    with pytest.raises(InputError, match="regular file"):
        READERS[reader](path)


@pytest.mark.parametrize(
    "name",
    ["rank0.numerics.jsonl", ".boot-x/errors.txt", "log.txt", "rank1.json"],
)  # fmt: skip
def test_a_capture_is_read_without_the_pipes_in_it(name: str, tmp_path: Path) -> None:
    built(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / name)
    assert len(inspect(tmp_path).ranks) == 1


@pytest.mark.parametrize("name", ["rank1.meta.json", "rank0.numerics.json"])
def test_a_record_that_is_a_pipe_is_refused(name: str, tmp_path: Path) -> None:
    built(tmp_path)
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=name):
        inspect(tmp_path)


def test_devices_are_no_files() -> None:
    with pytest.raises(OSError, match="regular"):
        open_regular(Path("/dev/zero"))


# ---- keys, aliases


@pytest.mark.parametrize(
    "text",
    [
        "[t]\n" + ".".join("a" * 20_000) + " = 1",
        "[" + ".".join("a" * 900) + "]\n" + "".join(f"b{n}.c = 1\n" for n in range(4000)),
        "".join(f"k{n}." + ".".join("a" * 300) + " = 1\n" for n in range(100)),
    ],
    ids=["one key", "a table's name", "many keys"],
)  # fmt: skip
def test_dotted_keys_are_bounded_wherever_toml_is_read(
    text: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="dots"):
        parse_toml(text)
    (tmp_path / "pyproject.toml").write_text(f"[tool.fp8verify]\n{text}")
    for read in (
        find_settings,
        lambda folder: read_document(f"{folder}/pyproject.toml"),
    ):
        with pytest.raises(InputError, match="dots"):
            read(tmp_path)


def test_usual_toml_with_many_dots_is_read() -> None:
    pins = ", ".join(f'"package{n}==1.2.3"' for n in range(300))
    assert len(parse_toml(f"dependencies = [{pins}]")["dependencies"]) == 300


def nine(number: int) -> str:
    """Return nine aliases of an anchor."""
    return ", ".join([f"*a{number}"] * 9)


@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{nine(n - 1)}]\n" for n in range(1, 9)),
        "a0: &a0 {x: 1}\n"
        + "".join(f"a{n}: &a{n} {{<<: [{nine(n - 1)}]}}\n" for n in range(1, 9)),
        "a: &a [*a]\n",
        "a0: &a0 [x]\n"
        + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 5000)),
    ],
    ids=["lists", "merged", "within itself", "doubled"],
)  # fmt: skip
def test_aliases_of_yaml_are_bounded(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match="alias"):
        read_document(str(path))


def test_usual_aliases_are_read(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    uses = "".join(f"m{n}: {{<<: *base, n: {n}}}\n" for n in range(1000))
    path.write_text(f"base: &base {{fp8: true}}\n{uses}")
    assert read_document(str(path)).values["m999.fp8"] is True
    assert MAX_ALIASED > 1000


# ---- numbers

SOURCES: dict[str, Callable[[Path], str]] = {
    "trace": lambda folder: built(folder).read_text(),
    "table": lambda _: TABLE,
    "printed": lambda _: printed(),
    "log": lambda _: line(E4M3, E4M3, 4096, 1024, 2048) * 2,
    "rows": lambda _: json.dumps([{"Name": FP8_KERNEL, "Total Time (ns)": 600, "Instances": 3}]),
}  # fmt: skip


@pytest.mark.parametrize("value", [HUGE, "NaN", '"NaN"', '"Infinity"', "-1e999"])
@pytest.mark.parametrize("source", SOURCES)
def test_each_number_may_be_anything(source: str, value: str, tmp_path: Path) -> None:
    text = SOURCES[source](tmp_path)
    path = tmp_path / "damaged.json"
    for number in re.finditer(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", text):
        path.write_text(text[: number.start()] + value + text[number.end() :])
        with suppress(Fp8VerifyError):
            inspect(path)


def with_event(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Write a trace of which the first kernel or operator that has sizes is changed."""
    path = built(folder)
    document = json.loads(path.read_text())
    for event in document["traceEvents"]:
        change(event)
    path.write_text(json.dumps(document))
    return path


def test_a_size_that_no_tensor_has_is_damage(tmp_path: Path) -> None:
    def change(event: dict[str, Any]) -> None:
        if event.get("name") == "aten::mm":
            event["args"]["Input Dims"] = [[(1 << 40) + 1, 64], [64, 32]]

    trace = read_trace(with_event(tmp_path, change))
    assert not trace.health.complete
    assert all(shape == () for op in trace.ops for shape in op.dims[:1])


def test_a_bad_number_leaves_the_columns_of_one_length(tmp_path: Path) -> None:
    def change(event: dict[str, Any]) -> None:
        if event.get("name") == FP8_KERNEL:
            event["dur"] = "NaN"

    trace = read_trace(with_event(tmp_path, change))
    kernels = trace.kernels
    assert trace.health.skipped_events == 1
    assert len(kernels.start_ns) == len(kernels.duration_ns) == len(kernels.name) == 1


# ---- damage that would be believed


@pytest.mark.parametrize("damage", ['"', ",", "\n", "x"])
@pytest.mark.parametrize(
    "text",
    [
        f"Kernel name,Kernel duration (us)_sum,calls,UID\n{FP8_KERNEL},600.5,3,1\n{BF16_KERNEL},7,1,2\n",
        f"|Kernel name|Kernel duration (us)_sum|calls|\n|{FP8_KERNEL}|600.5|3|\n|{BF16_KERNEL}|7|1|\n",
    ],
    ids=["csv", "markdown"],
)  # fmt: skip
def test_no_damaged_row_is_dropped_in_silence(
    text: str, damage: str, tmp_path: Path
) -> None:
    path = tmp_path / "table.csv"
    first = text.index(FP8_KERNEL) + len(FP8_KERNEL) + 1
    for place in range(first, text.index(BF16_KERNEL) - 2):
        path.write_text(text[:place] + damage + text[place + 1 :])
        try:
            trace = read_trace(path)
        except InputError:
            continue
        assert inspect(path).verdict is Verdict.INCONCLUSIVE
        is_whole = sum(trace.kernels.duration_ns) == 607_500
        assert is_whole or not trace.health.complete, path.read_text()


def test_a_log_cut_within_the_head_of_its_last_line_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "blas.log"
    whole = line(E4M3, E4M3, 4096, 1024, 2048) * 2
    path.write_text(whole + "[2026-10-01 10:00:")
    assert read_trace(path).health.truncated
    path.write_text(whole)
    assert read_trace(path).health.complete


def damaged_trace(folder: Path, bad: int, good: int) -> Path:
    """Write FP8 GEMMs, of which some events cannot be read."""
    trace = TraceBuilder(folder)
    for _ in range(good):
        trace.launch(FP8_KERNEL, "aten::_scaled_mm")
    document = trace.document()
    document["traceEvents"] += [{"ph": "X", "cat": "kernel", "name": FP8_KERNEL}] * bad
    path = folder / "rank0.json"
    path.write_text(json.dumps(document))
    return path


def test_a_trace_with_many_unreadable_events_decides_nothing(tmp_path: Path) -> None:
    found = inspect(damaged_trace(tmp_path, 30, 30))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "of the trace cannot be read" in found.reason


def test_a_copy_says_what_it_lacks(tmp_path: Path) -> None:
    path = built(tmp_path)
    text = path.read_text().replace(f'"{FP8_KERNEL}"', '"a "quoted" name"')
    path.write_text(text)
    before = read_trace(path).health
    for number in range(2):  # a copy of a copy lacks as much
        copy = tmp_path / f"copy{number}.json"
        missing = annotate(path, copy).missing
        after = read_trace(copy).health
        assert before.skipped_events == after.skipped_events == missing.events == 1
        path = copy


def test_a_copy_of_a_cut_list_of_events_says_so(tmp_path: Path) -> None:
    path = built(tmp_path)
    events = json.dumps(json.loads(path.read_text())["traceEvents"])
    path.write_text(events[: len(events) * 3 // 4])
    assert read_trace(path).health.truncated
    copy = tmp_path / "copy.json"
    assert annotate(path, copy).missing.cut
    assert read_trace(copy).health.truncated


def test_an_entry_that_is_damaged_itself_is_damage(tmp_path: Path) -> None:
    path = built(tmp_path)
    for entry in (f'{{"events": {HUGE}}}', '"none"', "[]", '{"events": -1}'):
        text = path.read_text()
        damaged = text.replace("{", f'{{"fp8verify_missing": {entry}, ', 1)
        (tmp_path / "copy.json").write_text(damaged)
        assert not read_trace(tmp_path / "copy.json").health.complete
