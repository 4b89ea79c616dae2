"""Tables of kernels are evidence, in whatever form a tool prints them, as far as they go."""

from __future__ import annotations

import gzip
import hashlib
from contextlib import suppress
from pathlib import Path

import pytest

from fp8verify import Verdict, inspect
from fp8verify.errors import InputError
from fp8verify.terms import Leg
from fp8verify.trace import Trace, read_trace
from tests.hand_built import BF16_KERNEL

# As torch 2.13 prints it, with fewer of the CPU's columns.
RULE = "-" * 55 + "  ------------" * 5
HEADER = f"{'Name':>55}    Self CPU %     CPU total     Self CUDA  CUDA time avg    # of Calls"
FP8 = "nvjet_sm90_qqtst_256x128_128x4_1x2_h_bz_coopA_TNT"
FP8_BACKWARD = "nvjet_sm90_qrtst_128x128_128x6_2x1_v_bz_coopA_algo2_..."
ROWS = (
    ("ProfilerStep*", "0.000us", "240.000us", 3),
    (FP8, "0.000us", "183.000us", 6),
    ("aten::_scaled_mm", "60.000us", "90.000us", 3),
    (FP8_BACKWARD, "0.000us", "0.084ms", 3),
    (
        "void at::native::vectorized_elementwise_kernel<4, at...",
        "0.000us",
        "12.000us",
        3,
    ),
    ("Memcpy DtoD (Device -> Device)", "0.000us", "6.000us", 3),
    ("ProfilerStep*", "270.000us", "0.000us", 3),
)


def printed(
    rows: tuple[tuple[str, str, str, int], ...] = ROWS, total: str | None = "285.000us"
) -> str:
    lines = [
        f"{name:>55}  {'0.00%':>12}  {cpu:>12}  {gpu:>12}  {gpu:>12}  {calls:>12}"
        for name, cpu, gpu, calls in rows
    ]
    ends = ["Self CPU time total: 354.000us"]
    ends += [f"Self CUDA time total: {total}"] if total else []
    return "\n".join([RULE, HEADER, RULE, *lines, RULE, *ends, ""])


def read(folder: Path, text: str) -> Trace:
    path = folder / "train.log"
    path.write_text(text)
    return read_trace(path)


def saved(folder: Path, text: str) -> Path:
    path = folder / "table.csv"
    path.write_text(text)
    return path


def times(trace: Trace) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for name, duration in zip(
        trace.kernels.name, trace.kernels.duration_ns, strict=True
    ):
        calls, time_ns = found.get(trace.names[name], (0, 0))
        found[trace.names[name]] = (calls + 1, time_ns + duration)
    return found


@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "12: "])
@pytest.mark.parametrize("ahead", ["", "step 1 loss 3.2\n", "x" * 300_000 + "\n"])
def test_kernels_have_their_names_times_and_calls(
    prefix: str, ahead: str, tmp_path: Path
) -> None:
    text = "".join(f"{prefix}{line}\n" for line in printed().splitlines())
    trace = read(tmp_path, f"{ahead}{text}the end\n")
    elementwise = ROWS[4][0]
    assert times(trace) == {
        FP8: (6, 183_000),
        FP8_BACKWARD: (3, 84_000),
        elementwise: (3, 12_000),
    }
    assert trace.copies == {"memcpy": (3, 6_000, 0)}
    assert trace.health.complete


def test_the_verdict_goes_by_names(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    path.write_text(printed())
    assert inspect(path).verdict is Verdict.ACTIVE
    path.write_text(printed(((BF16_KERNEL, "0.000us", "285.000us", 9),)))
    assert inspect(path).verdict is Verdict.INACTIVE


def test_a_log_that_holds_a_table_is_evidence_by_itself(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"Float8 training active with recipe tensorwise\n{printed()}")
    found = inspect([], log=log)
    assert found.verdict is Verdict.ACTIVE
    assert len(found.claims) == 1
    log.write_text("Float8 training active with recipe tensorwise\n")
    assert inspect([], log=log).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("total", [None, "985.000us"])
def test_a_table_that_lacks_kernels_proves_no_absence(
    total: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "table.txt"
    path.write_text(printed(((BF16_KERNEL, "0.000us", "285.000us", 9),), total))
    found = inspect(path)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "row_limit=-1" in str(found.ranks[0].health.notes)


def test_of_several_tables_the_last_counts(tmp_path: Path) -> None:
    first = printed(((BF16_KERNEL, "0.000us", "285.000us", 9),))
    assert FP8 in times(read(tmp_path, f"{first}step 2\n{printed()}"))
    assert list(times(read(tmp_path, f"{printed()}{first}"))) == [BF16_KERNEL]


def test_endless_numbers_of_calls_stay_few_rows(tmp_path: Path) -> None:
    trace = read(tmp_path, printed(((FP8, "0.000us", "285.000us", 10**14),)))
    assert times(trace) == {FP8: (20_000, 285_000)}
    said = "its 100,000,000,000,000 calls are counted as 20,000, with their time"
    assert said in trace.remarks


@pytest.mark.parametrize(
    "text", ["loss 3.2\n", RULE, f"{RULE}\n{HEADER}\n{RULE}\n", ""]
)
def test_text_without_a_table_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    assert "train.log" in caught.value.fact


# ---- other tools and layouts

NSYS = ("Time (%)", "Total Time (ns)", "Instances", "Name")
LONG = "gpu__time_duration.sum"


def delimited(sign: str, *lines: tuple[str, ...], ends: bool = False) -> str:
    return "".join(
        f"{sign if ends else ''}{sign.join(line)}{sign if ends else ''}\n"
        for line in lines
    )


def test_counters_of_tensor_cores_decide(tmp_path: Path) -> None:
    counter = "sm__ops_path_tensor_src_fp8_sparsity_off.sum"
    heads = ("ID", "Kernel Name", LONG, counter)
    path = tmp_path / "ncu.csv"
    path.write_text(
        delimited(",", heads, ("0", "acme_kernel", "10", "4096"), ("1", "b", "10", "0"))
    )
    assert inspect(path).gemm.kernels["fp8"] == 1


def test_operators_of_a_table_show_a_backward_pass(tmp_path: Path) -> None:
    rows = [(FP8, "0.000us", "183.000us", 90), (BF16_KERNEL, "0.000us", "5.000us", 3)]
    path = tmp_path / "table.txt"
    path.write_text(printed(tuple(rows), "188.000us"))
    assert "nothing shows a backward pass" in inspect(path).reason
    for nodes, expected in ((4, Verdict.ACTIVE), (3, Verdict.INCONCLUSIVE)):
        # As many GEMMs in BF16 as nodes may be a leg of theirs, and FP8 that of rollouts.
        path.write_text(
            printed((*rows, ("MmBackward0", "9.000us", "1.000us", nodes)), "188.000us")
        )
        assert inspect(path).verdict is expected


def test_names_that_are_cut_say_which_argument_to_use(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    cut = "void cutlass::device_kernel<vllm::cutlass_3x_gemm_fp..."
    path.write_text(printed(((cut, "0.000us", "285.000us", 9),)))
    (hint,) = (one.hint for one in inspect(path).findings if one.code == "unknown-gemm")
    assert "max_name_column_width=None" in hint


def test_a_table_without_kernels_says_how_to_print_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no row of a GPU kernel"):
        read(
            tmp_path, delimited(",", NSYS, ("100.0", "60000", "3", "cudaLaunchKernel"))
        )


def test_rows_that_cannot_be_read_are_not_said_to_be_missing(tmp_path: Path) -> None:
    rows = f"kernel,total_ms\n{FP8},about 3\n{BF16_KERNEL},a while\n"
    with pytest.raises(InputError, match="2 rows cannot be read as a name and a time"):
        read(tmp_path, rows)


@pytest.mark.parametrize("apart", [",", " ", "\u00a0", "\u202f", "'"])
def test_thousands_are_apart_as_in_any_language(apart: str, tmp_path: Path) -> None:
    time = f"285{apart}118{apart}634"
    trace = read(
        tmp_path, f"| kernel | ns | calls |\n|---|---|---|\n| {FP8} | {time} | 2.00 |\n"
    )
    assert times(trace) == {FP8: (2, 285_118_634)}


def test_of_a_line_without_headings_the_largest_time_is_the_total(
    tmp_path: Path,
) -> None:
    line = f"{FP8}  0.00%  0.000us  0.000us  159.5us  3.02%  159.5us  6.9us  23\n"
    assert times(read(tmp_path, line)) == {FP8: (1, 159_500)}


def test_products_by_operator_count_where_no_kernel_is_one(tmp_path: Path) -> None:
    header = "kernel,time_ms\n"
    others = "triton_red_fused_add_mul_sum_2,0.8\naten::copy_,0.1\n"
    products = "aten::mm,15.6\naten::_scaled_mm,8.0\n"
    report = inspect(saved(tmp_path, header + others + products))
    assert report.reason.startswith("33.9% of the listed GEMM time is in low precision")
    with_kernel = header + others + products + f"{BF16_KERNEL},15.6\n"
    trace = read(tmp_path, with_kernel)
    assert set(trace.names) == {"triton_red_fused_add_mul_sum_2", BF16_KERNEL}


def test_of_several_tables_the_last_is_read_and_the_others_are_told(
    tmp_path: Path,
) -> None:
    table = f"Operation  Time (ms)  Calls\n{FP8}  2.0  1\n"
    trace = read(tmp_path, table * 3)
    assert "of its 3 tables of kernels the last is read" in trace.remarks
    assert times(trace) == {FP8: (1, 2_000_000)}


def test_a_table_in_part_does_not_show_that_nothing_was_multiplied(
    tmp_path: Path,
) -> None:
    other = "void at::native::batch_norm_transform_input_kernel<c10::Half>(float)"
    report = inspect(saved(tmp_path, f"{SUMMARY}19,285,5,{other}\n"))
    assert report.reason.startswith("the table lists no known matrix multiplication")


def test_nvprof_names_the_type_of_its_first_row_only(tmp_path: Path) -> None:
    text = (
        "            Type  Time(%)      Time     Calls       Avg       Min       Max  Name\n"
        f" GPU activities:   60.00%  3.00000s    10  300.00ms  300.00ms  300.00ms  {FP8}\n"
        f"                   40.00%  2.00000s    10  200.00ms  200.00ms  200.00ms  {BF16_KERNEL}\n"
    )
    assert set(times(read(tmp_path, text))) == {FP8, BF16_KERNEL}


SUMMARY = "Time (%),Total Time (ns),Instances,Name\n"


@pytest.mark.parametrize("time", ["nan", "inf", "-600", "0,6", "600.000.000", "9" * 40])
def test_a_row_whose_time_is_no_number_is_counted_as_unread(
    time: str, tmp_path: Path
) -> None:
    trace = read(tmp_path, f'{SUMMARY}60,"{time}",6,{FP8}\n40,400,4,{BF16_KERNEL}\n')
    assert (trace.names, trace.health.skipped_events) == ([BF16_KERNEL], 1)


def test_a_table_may_be_cut_within_its_last_row_or_its_packed_bytes(
    tmp_path: Path,
) -> None:
    text = f"{SUMMARY}100,600,6,{FP8}\n"
    assert read(tmp_path, text[:-1]).health.complete
    for rest in ("40,4", '40,4,1,"nvjet_sm90_t'):
        assert not read(tmp_path, f"{text}{rest}").health.complete
    path = tmp_path / "sum.csv.gz"
    names = (hashlib.sha256(bytes([n])).hexdigest() for n in range(200))
    path.write_bytes(
        gzip.compress((text + "".join(f"0,1,1,{n}\n" for n in names)).encode())[:-20]
    )
    assert read_trace(path).health.truncated


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "latin-1"])
def test_encodings_of_windows(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "sum.csv"
    text = f"Kernel name,Kernel duration (\N{MICRO SIGN}s)_sum,UID\r\n{FP8},600,1\r\n"
    path.write_bytes(text.encode(encoding))
    assert list(read_trace(path).kernels.duration_ns) == [600_000]


BF16 = BF16_KERNEL


@pytest.mark.parametrize(
    "text",
    [
        f"| # | ms | % step | kernel |\n|---|---|---|---|\n|1|3.0|21%|`{FP8}`|\n|2|1.0|7%|`{BF16}`|\n",
        f"kernel,total_ms,calls\n{FP8},3.0,3\n{BF16},1.0,1\n",
        f"op\ttime (us)\n{FP8}\t3000\n{BF16}\t1000\n",
        f"Kernel  GPU time\n{FP8}  3ms\n{BF16}  1,000 us\n",
        f"kernel,dur\n{FP8},3 ms\n{BF16},0.001s\n",
        f"the longest kernels\n  3.0 ms  {FP8}\n  1.0 ms  {BF16}\n",
    ],
    ids=["markdown", "csv", "tsv", "aligned", "units in cells", "no headings"],
)  # fmt: skip
def test_any_table_of_names_and_times_is_read(text: str, tmp_path: Path) -> None:
    trace = read(tmp_path, text)
    found = {name: time for name, (_, time) in times(trace).items()}
    assert found == {FP8: 3_000_000, BF16: 1_000_000}
    assert any(remark.startswith("read as: ") for remark in trace.remarks)
    report = inspect(tmp_path / "train.log")
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.reason.startswith("75.0% of the listed GEMM time")


def test_shares_that_collectives_take_hide_what_is_missing(tmp_path: Path) -> None:
    text = (
        "Time (%),Total Time (ns),Instances,Name\n"
        "100.0,2760866536,2,ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclArgs)\n"
        f"0.0,1192066,4,{BF16_KERNEL}\n"
    )
    read(tmp_path, text)
    assert inspect(tmp_path / "train.log").verdict is Verdict.INCONCLUSIVE


def test_what_a_table_cannot_tell_is_not_called_high(tmp_path: Path) -> None:
    cut = "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupl..."
    read(tmp_path, f"kernel,total_ms,calls\n{cut},3.0,10\n{BF16_KERNEL},1.0,10\n")
    report = inspect(tmp_path / "train.log")
    assert report.reason.startswith(
        "0.0% of the listed GEMM time is in low precision, 75.0% in kernels of unknown precision"
    )


def test_operators_with_their_own_times_give_the_share_by_operator(
    tmp_path: Path,
) -> None:
    text = (
        "Name                              Self CUDA   Self CUDA %   # Calls\n"
        "------------------------------------  ----------  -----------  --------\n"
        "aten::mm                             152.3ms       42.1%        258\n"
        "aten::_scaled_mm                      28.1ms        7.8%          2\n"
    )
    trace = read(tmp_path, text)
    assert times(trace)["aten::mm"] == (258, 152_300_000)
    report = inspect(tmp_path / "train.log")
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.reason.startswith("15.6% of the listed GEMM time")
    # A row joins the calls of all passes: nothing says that no backward pass ran.
    assert {row.leg for row in report.ranks[0].kernels} == {Leg.UNKNOWN}
    assert "no-backward" not in {finding.code for finding in report.findings}


@pytest.mark.parametrize(
    "text",
    [
        "kernel,total_ms\n" + ",".join(["x"] * 200_000) + "\n",
        ",".join(["ms"] * 5000) + ",kernel\n",
        "|" * 100_000 + "\n|kernel|ms|\n",
        "kernel,total_ms\n" + "'\"" * 50_000 + "\n",
        "kernel,ms\n" * 5000,
        "".join(f"k{n},{n} ms\n" for n in range(20_000)),
        "kernel\tms\n" + "\t" * 50_000 + "\n",
        "name  time (us)\n" + " " * 100_000 + "x\n",
        '[{"kernel": "' + "[" * 5000 + '", "ms": 1}]',
        "kernel,ms\n" + "1" * 60_000 + "," + "9" * 60_000 + "\n",
        "  " + "total " * 20_000 + "(us)  kernel\n",
        "1 ms " + "nvjet_" * 10_000 + "\n",
    ],
)
def test_hostile_tables_are_read_or_refused(text: str, tmp_path: Path) -> None:
    with suppress(InputError):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("HloModule jit_step, is_scheduled=true\n", "HLO dump", "jax.profiler"),
        ("<!DOCTYPE html><table>\n", "HTML", "CSV"),
        ("#!/bin/bash\ntorchrun train.py\n", "a script", "doctor --config"),
        ("fp8: true\nlr: 0.1\n", "a configuration", "doctor --config"),
        ("12:00:01 INFO step 1 loss 2.1\n", "a log", "--log"),
        ("[rank0]:WARNING:root: no GPU\n", "a log", "--log"),
        ("[titan] - root - INFO - CUDA capacity\n", "a log", "--log"),
        ("# Why\n\nMore info is there, an error of 3.\n", "no known form", "a table"),
        ("layer,shape\nq,4096\nk,1024\n", "a table", "kernel,total_ms"),
        ("precision:\n  fp8: true\n", "a configuration", "doctor --config"),
        ("7755.9 ROOT\n├─ 30.1 elementwise\n", "a tree of calls", "as a list"),
        ("┌──┬──┐\n│ a │ 1 │\n├──┼──┤\n", "no known form", "export_chrome_trace"),
        ("Profile:\nMatMul  348KB  343us\n", "no known form", "export_chrome_trace"),
        ("train.py:88 (total: 63.75 ms)\n", "no known form", "export_chrome_trace"),
        ("hello\n", "no known form", "export_chrome_trace"),
    ],
)
def test_an_unknown_file_is_described(
    text: str, what: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as told:
        read(tmp_path, text)
    fact, advice = str(told.value), told.value.hint
    assert what in fact
    assert text.splitlines()[0][:30] in fact
    assert hint in advice
