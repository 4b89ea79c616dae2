"""What machine code multiplies, and which kernels of a trace it is the code of."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8verify import Report, inspect
from fp8verify.capture.files import read_code
from fp8verify.errors import InputError
from fp8verify.kernels.code_files import (
    AFTER_A_RUN,
    ON_REQUEST,
    CodeSource,
    read_caches,
    registers_of,
)
from fp8verify.kernels.code_of_file import code_of_file, explained
from fp8verify.kernels.machine_code import (
    instructions_of,
    machine_code,
    operands_of,
    products_of_ttgir,
)
from fp8verify.record.compiled_code import cache_folders, code_of_run

NAME = "_tile_matmul_kernel"
FP8 = "wgmma.mma_async.sync.aligned.m64n256k32.f32.e5m2.e4m3"
MXFP8 = (
    "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32"
    ".ue8m0"
)
BF16 = "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"


@pytest.mark.parametrize(
    ("line", "a", "b", "precision"),
    [
        (f"\t{FP8} {{%f1}}, %rd1, %rd2, p, 1, 1;", "e5m2", "e4m3", "fp8"),
        ("\t@%p1 mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {", "e4m3", "e4m3", "fp8"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {", "fp16", "fp16", "fp16"),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {", "tf32", "tf32", "tf32"),
        ("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32 {", "int8", "int8", "int8"),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {", "fp16", "fp16", "fp16"),
        ("tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1,", "16bit", "16bit", "bf16"),
        ("tcgen05.mma.cta_group::2.kind::f8f6f4 [%r1],", "below16", "below16", "below16"),
        ("tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X [", "e2m1", "e2m1", "nvfp4"),
        ("tcgen05.mma.cta_group::1.kind::mxf4.block_scale.scale_vec::2X [", "e2m1", "e2m1", "mxfp4"),
        (f"{MXFP8} {{", "e4m3", "e4m3", "mxfp8"),
        ("\tv_mfma_f32_16x16x32_fp8_fp8 a[0:3], v[1:2], v[3:4], a[0:3]", "e4m3", "e4m3", "fp8"),
        ("\tv_mfma_f32_16x16x32_bf8_fp8 a[0:3], v[1:2]", "e5m2", "e4m3", "fp8"),
        ("\tv_mfma_f32_32x32x64_f8f6f4 v[0:15], v[1:8] cbsz:1 blgp:1", "e5m2", "e5m2", "fp8"),
        ("\tv_mfma_f32_32x32x64_f8f6f4 v[0:15], v[1:8] cbsz:4 blgp:4", "e2m1", "e2m1", "fp4"),
        ("\tv_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[1:8]", "e4m3", "e4m3", "mxfp8"),
        ("\tv_mfma_f32_32x32x8bf16_1k a[0:15], v[0:1]", "bf16", "bf16", "bf16"),
        ("\tv_mfma_f32_32x32x4_xf32 a[0:15]", "tf32", "tf32", "tf32"),
        ("\tv_wmma_f32_16x16x16_fp8_fp8 v[0:7]", "e4m3", "e4m3", "fp8"),
        ("        /*1390*/    QGMMA.64x256x32.F32.E4M3.E5M2 R24, gdesc[UR8] ;", "e4m3", "e5m2", "fp8"),
        ("        /*0a50*/    HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8] ;", "bf16", "bf16", "bf16"),
        ("        /*0a50*/    HMMA.16816.F32 R4, R8, R12, R4 ;", "fp16", "fp16", "fp16"),
        ("        /*0a50*/    @!P0 QMMA.16832.F32.E4M3.E4M3 R4, R8 ;", "e4m3", "e4m3", "fp8"),
    ],
)  # fmt: skip
def test_an_instruction_says_its_types(
    line: str, a: str, b: str, precision: str
) -> None:
    code = machine_code(instructions_of(f"//\n{line}\n"))
    assert [(types.a, types.b) for types, _ in code.products] == [(a, b)]
    assert code.precision.value == precision


def test_what_is_no_matrix_instruction_is_none() -> None:
    text = (
        "\tadd.f32 %f1, %f2, %f3;\n\tfma.rn.f32 %f1, %f2, %f3, %f4;\n"
        "// mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 in a comment\n"
        "\ttcgen05.ld.sync.aligned.32x32b.x64.b32 {;\n\tv_mfma_ld_scale_b32 v1, v2\n"
    )
    code = machine_code(instructions_of(text))
    assert (code.products, code.fmas, code.precision.value) == ((), 1, "unknown")
    assert operands_of("QUANT.E4M3") is operands_of("fp8_gemm") is None


def test_two_classes_in_one_kernel_are_none() -> None:
    code = machine_code({FP8: 4, BF16: 4})
    assert code.precision.value == "unknown"
    assert "e5m2 x e4m3" in str(code)
    assert "bf16 x bf16" in str(code)


def test_the_intermediate_code_says_the_types_of_its_products() -> None:
    text = (
        "    %5 = ttng.tc_gen5_mma %a, %b, %c, %t, %t : !ttg.memdesc<128x64xf8E4M3FN, #s, #smem>, "
        "!ttg.memdesc<64x128xf8E5M2, #s, #smem>, !ttg.memdesc<128x128xf32, #tmem>\n"
    )
    (types,) = products_of_ttgir(text)
    assert (types.a, types.b) == ("e4m3", "e5m2")


# ---- files


def ptx(
    *instructions: str, name: str = NAME, arch: int = 90, threads: int = 256
) -> str:
    body = "".join(f"\t{one} {{%r1}}, %rd1;\n" for one in instructions)
    return (
        f".version 8.7\n.target sm_{arch}a\n.address_size 64\n"
        f".visible .entry {name}(\n\t.param .u64 p0\n)\n.reqntid {threads}\n{{\n{body}\tret;\n}}\n"
    )


def compiled(
    cache: Path, *instructions: str, folder: str = "A", code: str = "", **changed: Any
) -> Path:
    """Write one kernel as Triton does; `changed` are launch parameters."""
    target = {"backend": "cuda", "arch": 90, "warp_size": 32}
    launch = {"name": NAME, "target": target, "num_warps": 8, "shared": 147456}
    path = cache / folder
    path.mkdir(parents=True)
    (path / f"{NAME}.json").write_text(json.dumps({**launch, **changed}))
    (path / f"{NAME}.ptx").write_text(code or ptx(*instructions))
    return path


def traced(
    folder: Path, *, block: int = 256, shared: int = 147456, count: int = 3
) -> Path:
    """Write a trace of launches of the kernel by a function of the script's own."""
    events: list[dict[str, Any]] = []
    for at in range(count):
        start = 100 * at
        args = {
            "External id": at + 1, "device": 0, "stream": 7, "correlation": at + 1,
            "registers per thread": 178, "shared memory": shared, "block": [block, 1, 1],
        }  # fmt: skip
        events += [
            {"ph": "X", "cat": "cpu_op", "name": "MyLinear", "pid": 1, "tid": 1, "ts": start,
             "dur": 50, "args": {"External id": at + 1}},
            {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernelEx", "pid": 1, "tid": 1,
             "ts": start + 10, "dur": 2, "args": {"correlation": at + 1}},
            {"ph": "X", "cat": "kernel", "name": NAME, "pid": 0, "tid": 7, "ts": start + 20,
             "dur": 30, "args": args},
        ]  # fmt: skip
    gpu = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0}
    folder.mkdir(exist_ok=True)
    path = folder / "rank0.json"
    path.write_text(json.dumps({"deviceProperties": [gpu], "traceEvents": events}))
    return path


def ran(report: Report) -> dict[str, int]:
    return {name: count for name, count in report.gemm.kernels.items() if count}


def seen(trace: Path, cache: Path) -> Report:
    return inspect(trace, code=CodeSource(folders=(cache,), asked=True))


def test_the_code_settles_a_kernel_that_nothing_else_explains(tmp_path: Path) -> None:
    trace = traced(tmp_path / "capture")
    assert ran(inspect(trace)) == {"unknown": 3}
    compiled(tmp_path / "cache", FP8)
    found = seen(trace, tmp_path / "cache")
    assert ran(found) == {"fp8": 3}
    (row,) = found.ranks[0].kernels
    assert (row.decided_by, row.precision.value) == ("code", "fp8")
    report = found.ranks[0].compiled_code
    assert report is not None
    assert (report.gemms, report.vouched, report.settled) == (3, 3, 3)


def test_an_unrecognized_kernel_that_multiplies_is_a_product(tmp_path: Path) -> None:
    trace = traced(tmp_path / "capture")
    trace.write_text(trace.read_text().replace(NAME, "my_kernel"))
    cache = tmp_path / "cache" / "A"
    cache.mkdir(parents=True)
    target = {"backend": "cuda", "arch": 90, "warp_size": 32}
    launch = {"name": "my_kernel", "target": target, "num_warps": 8, "shared": 147456}
    (cache / "my_kernel.json").write_text(json.dumps(launch))
    (cache / "my_kernel.ptx").write_text(ptx(FP8, name="my_kernel"))
    assert ran(seen(trace, cache)) == {"fp8": 3}
    # Beside exponentials it may be attention.
    (cache / "my_kernel.ptx").write_text(
        ptx(FP8, "ex2.approx.ftz.f32", name="my_kernel")
    )
    assert ran(seen(trace, cache)) == {}


def test_codes_that_agree_decide_and_codes_that_differ_do_not(tmp_path: Path) -> None:
    trace = traced(tmp_path / "capture")
    compiled(tmp_path / "cache", FP8)
    compiled(tmp_path / "cache", FP8.replace("e5m2", "e4m3"), folder="B")
    assert ran(seen(trace, tmp_path / "cache")) == {"fp8": 3}
    compiled(tmp_path / "cache", BF16, folder="C")
    found = seen(trace, tmp_path / "cache")
    assert ran(found) == {"unknown": 3}
    assert "differ: bf16 and fp8" in found.ranks[0].kernels[0].reason


@pytest.mark.parametrize(
    "changed",
    [
        {"num_warps": 4, "code": ptx(FP8, threads=128)},
        {"shared": 1024},
        {"target": {"backend": "cuda", "arch": 100, "warp_size": 32}, "code": ptx(FP8, arch=100)},
        {"name": "another_kernel"},  # the parameters are of another function
        {"code": ptx(FP8, name="another_kernel")},
        {"code": ptx(FP8, arch=80)},  # parameters and code disagree
        {"code": ptx(FP8, threads=64)},
        {"code": ptx(FP8) + ptx(BF16, name="second")},
        {"code": "no code at all"},
        {"num_warps": "many"},
    ],
)  # fmt: skip
def test_code_of_another_launch_or_lying_code_decides_nothing(
    changed: dict[str, Any], tmp_path: Path
) -> None:
    trace = traced(tmp_path / "capture")
    compiled(tmp_path / "cache", FP8, **changed)
    assert ran(seen(trace, tmp_path / "cache")) == {"unknown": 3}


def test_one_name_in_two_precisions_is_told_apart_by_its_memory(tmp_path: Path) -> None:
    compiled(tmp_path / "cache", FP8)
    compiled(tmp_path / "cache", BF16, folder="B", shared=65536)
    first = seen(traced(tmp_path / "one"), tmp_path / "cache")
    second = seen(traced(tmp_path / "two", shared=65536), tmp_path / "cache")
    assert (ran(first), ran(second)) == ({"fp8": 3}, {"bf16": 3})


def test_code_without_products_is_no_gemm_on_tensor_cores(tmp_path: Path) -> None:
    trace = traced(tmp_path / "capture")
    compiled(tmp_path / "cache", "fma.rn.f32")
    assert ran(seen(trace, tmp_path / "cache")) == {"fp32": 3}
    compiled(tmp_path / "other", "add.f32")
    assert ran(seen(trace, tmp_path / "other")) == {}


def test_a_foreign_cache_says_so(tmp_path: Path) -> None:
    trace = traced(tmp_path / "capture")
    (tmp_path / "cache" / "A").mkdir(parents=True)
    found = seen(trace, tmp_path / "cache")
    assert ran(found) == {"unknown": 3}
    assert any("is of the kernels of this trace" in note for note in found.notes)


def test_what_a_run_finds_stays_in_its_capture(tmp_path: Path) -> None:
    capture = traced(tmp_path / "capture").parent
    cache = compiled(tmp_path / "cache", FP8).parent
    source = code_of_run({"TRITON_CACHE_DIR": str(cache), "TMPDIR": str(tmp_path)})
    assert source.folders == (cache,)
    assert ran(inspect(capture, code=source)) == {"fp8": 3}
    (kernel,) = read_code(capture)
    assert (kernel.name, kernel.threads, kernel.instructions) == (NAME, 256, {FP8: 1})
    assert ran(inspect(capture)) == {"fp8": 3}  # without the cache
    (capture / "rank0.code.json").write_text('{"schema":1,"rank":0,"kernels":7}')
    damaged = inspect(capture)
    assert ran(damaged) == {"unknown": 3}
    assert any("compiled code was not used" in note for note in damaged.notes)


def test_a_run_without_kernels_of_triton_reads_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = traced(tmp_path / "capture")
    trace.write_text(
        trace.read_text().replace(NAME, "nvjet_sm90_tst_128x128_64x4_1x2_h_bz_TNT")
    )

    def read(*_: object) -> None:
        pytest.fail("a cache was read")

    monkeypatch.setattr("fp8verify.kernels.code_files.read_caches", read)
    source = CodeSource(folders=(tmp_path,))
    assert ran(inspect(trace.parent, code=source)) == {"bf16": 3}
    assert not (trace.parent / "rank0.code.json").exists()


def test_caches_of_others_are_not_believed(tmp_path: Path) -> None:
    cache = compiled(tmp_path / "cache", FP8).parent
    environment = {"TRITON_CACHE_DIR": str(cache), "TMPDIR": str(tmp_path)}
    cache.chmod(0o777)
    assert code_of_run(environment).folders == ()
    cache.chmod(0o700)
    assert code_of_run(environment).folders == (cache,)


def test_caches_are_where_the_environment_says() -> None:
    named = {"TRITON_CACHE_DIR": "/a", "TORCHINDUCTOR_CACHE_DIR": "/b"}
    assert cache_folders(named) == [Path("/a"), Path("/b/triton")]
    home, temporary = cache_folders({"TRITON_HOME": "/h", "TMPDIR": "/t"})
    assert home == Path("/h/.triton/cache")
    assert temporary.parent.name.startswith("torchinductor_")


def test_more_than_is_read_decides_nothing(tmp_path: Path) -> None:
    compiled(tmp_path, FP8)
    wanted = {NAME: {(256, 147456)}}
    for limits in (
        AFTER_A_RUN._replace(folders=1),
        AFTER_A_RUN._replace(seconds=-1.0),
        AFTER_A_RUN._replace(size=1),
    ):
        found = read_caches([tmp_path], wanted, "9.0", limits)
        assert found.kernels == ()
        assert "was not used" in found.notes[0]
    assert len(read_caches([tmp_path], wanted, "9.0", AFTER_A_RUN).kernels) == 1


def test_links_and_pipes_in_a_cache_are_left_alone(tmp_path: Path) -> None:
    real = compiled(tmp_path / "real", FP8)
    cache = tmp_path / "cache"
    for folder in ("A", "B"):
        (cache / folder).mkdir(parents=True)
    os.mkfifo(cache / "A" / f"{NAME}.json")
    (cache / "A" / f"{NAME}.ptx").symlink_to(real / f"{NAME}.ptx")
    for suffix in (".json", ".ptx"):
        (cache / "B" / f"{NAME}{suffix}").symlink_to(real / f"{NAME}{suffix}")
    (cache / "C").symlink_to(real)
    found = read_caches([cache], {NAME: {(256, 147456)}}, "9.0", ON_REQUEST)
    assert found.kernels == ()
    assert len(found.notes) == 1


# ---- explained


def test_a_file_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "kernel.ptx"
    path.write_text(ptx(FP8, FP8))
    said = explained(path)
    assert "multiplies fp8: 2 matrix instructions of e5m2 x e4m3" in said
    assert FP8 in said
    path.write_text(ptx("fma.rn.f32"))
    assert "no matrix instruction" in explained(path)


@pytest.mark.parametrize("suffix", [".ptx", ".ttgir", ".amdgcn", ".cubin"])
def test_what_is_no_code_is_refused_in_two_lines(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"kernel{suffix}"
    for content in (b"", b"no code", b"\x7fELF\x02\x01" + bytes(100)):
        path.write_bytes(content)
        with pytest.raises(InputError) as refused:
            code_of_file(path)
        assert refused.value.hint
    path.unlink()
    with pytest.raises(InputError, match="No such file"):
        code_of_file(path)


# ---- whatever the files hold

PIECES = st.sampled_from(
    [f"\t{FP8} ", f"\t{BF16} ", "\n", ".visible .entry ", NAME, "(", ".reqntid 256\n", ".target sm_90a\n",
     "tcgen05.mma.", "kind::", "mma.", "v_mfma_", "f8f6f4", " cbsz:", ":", ".", "@%p1 ", "QGMMA.",
     "64x256x32", ".F32.E4M3", ";", "\x00", "\ud800", "9" * 30, "tt.dot ", "tensor<128x64xf8E4M3FN"]
)  # fmt: skip
TEXTS = st.one_of(st.text(max_size=300), st.lists(PIECES, max_size=40).map("".join))


@given(TEXTS)
def test_any_text_is_read_as_code(text: str) -> None:
    counts = instructions_of(text)
    code = machine_code(counts)
    assert sum(count for _, count in code.products) <= sum(counts.values())
    assert products_of_ttgir(text) is not None


@given(st.binary(max_size=300), TEXTS)
def test_any_files_in_a_cache_are_read(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, text: str
) -> None:
    cache = tmp_path_factory.mktemp("cache")
    wanted = {NAME: {(256, 147456)}}
    folder = compiled(cache, FP8)
    (folder / f"{NAME}.cubin").write_bytes(b"\x7fELF\x02\x01" + data)
    (folder / f"{NAME}.ptx").write_bytes(text.encode("utf-8", "surrogatepass"))
    read_caches([cache], wanted, "9.0", ON_REQUEST)
    (folder / f"{NAME}.json").write_bytes(data)
    assert read_caches([cache], wanted, "9.0", ON_REQUEST).kernels == ()


@given(st.binary(max_size=400))
def test_any_binary_has_registers_or_none(data: bytes) -> None:
    for binary in (data, b"\x7fELF\x02\x01" + data):
        found = registers_of(binary)
        assert found is None or found >= 0
