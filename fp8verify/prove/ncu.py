"""Run a command under Nsight Compute and read its counters back.

`ncu --csv --page raw` writes one row for each profiled launch. The log mixes ncu's own lines
(`==PROF== …`) with the table, and a second row holds units. Numbers have thousands separators, of
the locale. A table appears again for every process.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from fp8verify.analysis.kinds import gemm_shape
from fp8verify.errors import Fp8VerifyError
from fp8verify.terms import OpContext
from fp8verify.text import clean

FP8_FP6_FP4: Final = "fp4/fp6/fp8"
CUDA_CORES: Final = frozenset({"fp32"})  # counted in epilogues too, so they decide last

_TENSOR: Final = "sm__ops_path_tensor_"
# As in Nsight Compute's own FP32 roofline: a fused multiply-add is two operations.
_FFMA: Final = "smsp__sass_thread_inst_executed_op_ffma_pred_on"
_SPARSITY: Final = re.compile(
    r"_sparsity_(?:off|on)$"
)  # two halves of the count without it


class Counter(NamedTuple):
    """What a metric counts: operations of one source type, and how many per count."""

    source: str
    operations: int = 1


# Source types of products, each in the first of these forms that ncu lists for the GPU: by
# instruction where it can be. Compared with 2·M·N·K: FP8 and BF16 on an H200, FP8 on an RTX 4090,
# FP8 and FP4 on a B300 (NVIDIA/DCGM#251).
_FORMS: Final = (
    "op_[a-z]+_src_{}",
    "src_{}",
    "op_[a-z]+_src_{}_dst_fp(?:16|32)",
    "src_{}_dst_fp(?:16|32)",
)
_SOURCES: Final = ("fp8", "fp4", FP8_FP6_FP4, "bf16", "fp16", "tf32", "int8", "fp64")
_SPELLED: Final = {FP8_FP6_FP4: "fp4_fp6(?:_fp8)?"}

# The GPUs whose lists have these forms, by compute capability, as nvidia-smi reports it.
_GPUS: Final = {
    "8.0": "A100",
    "8.6": "A10, RTX 30",
    "8.9": "RTX 40, L4, L40, L40S",
    "9.0": "H100, H200, GH200, H800, H20",
    "10.0": "B200, GB200",
    "10.3": "B300, GB300",
    "12.0": "RTX 50, RTX PRO Blackwell",
}


def choose(known: Collection[str]) -> dict[str, Counter]:
    """Return the metrics to measure, each with its counter, out of those that `ncu` knows."""
    chosen = {}
    if _FFMA in known:
        chosen[_FFMA] = Counter("fp32", operations=2)
    for source in _SOURCES:
        for form in _FORMS:
            names = _listed(form.format(_SPELLED.get(source, source)), known)
            if names:
                chosen |= dict.fromkeys(names, Counter(source))
                break
    return chosen


def _listed(form: str, known: Collection[str]) -> list[str]:
    shape = re.compile(_TENSOR + form)
    names = []
    halved = set()
    for name in known:
        whole = _SPARSITY.sub("", name)
        if shape.fullmatch(whole):
            names.append(name)
            if whole != name:
                halved.add(whole)
    # A metric and its halves would count twice.
    return [name for name in names if name not in halved]


# Words of kernels that multiply matrices; what they catch besides is left out afterwards.
GEMM_LIKE: Final = "nvjet|[gG]emm|GEMM|gemv|cutlass|xmma|[mM]atmul|_mm_|_mm$|triton_tem|marlin|wgmma|bmm|gmm"
_QUERY_SECONDS: Final = 120
_METRIC: Final = re.compile(r"^\s*\"?([a-z]+__\w+)\b", re.MULTILINE)
_NO_RIGHT: Final = (
    "Run as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0 "
    "(https://developer.nvidia.com/ERR_NVGPUCTRPERM)."
)
_KERNEL: Final = "Kernel Name"
# Ranges of torch.autograd.profiler.emit_nvtx(record_shapes=True).
_NVTX: Final = re.compile(
    r"(?P<op>[\w.:]{1,200}), [^\"]{0,300}?sizes = \[(?P<sizes>[\[\]\d, ]*)\]"
)
_SIZE: Final = re.compile(r"\[([\d, ]*)\]")
_MAX_ROWS: Final = 100_000
_MAX_LINE: Final = 1 << 16


class ProveError(Fp8VerifyError):
    """The counters cannot be read here."""

    exit_code = 3


class Gpu(NamedTuple):
    """The GPU that is measured, the path of the `ncu` that measures it, and its metrics."""

    name: str
    capability: str
    ncu: str
    metrics: dict[str, Counter]


class Window(NamedTuple):
    """Which launches are measured."""

    launches: int
    skip: int
    kernels: str


def find_gpu() -> Gpu:
    """Return the first GPU, with the metrics that `ncu` knows for it.

    Raises:
        ProveError: no `ncu`, no NVIDIA GPU, or one whose counters are not known.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise ProveError(
            "ncu (NVIDIA Nsight Compute) is not on PATH.",
            "Install it (nsight-compute of the CUDA packages), or add /usr/local/cuda/bin to PATH.",
        )
    done = _output(
        ["nvidia-smi", "--query-gpu=compute_cap,name", "--format=csv,noheader"]
    )
    capability, _, name = map(str.strip, done.partition("\n")[0].partition(","))
    if not name:
        raise ProveError(
            "No NVIDIA GPU was found: nvidia-smi is missing or lists none.",
            "Run this on the machine that trains. AMD's GPUs count by rocprofv3 --pmc "
            "SQ_INSTS_VALU_MFMA_MOPS_F8 SQ_INSTS_VALU_MFMA_MOPS_BF16 (512 operations a count; E5M2 "
            "counts as F8).",
        )
    if capability not in _GPUS:
        known = ", ".join(f"{key} ({gpus})" for key, gpus in _GPUS.items())
        raise ProveError(
            f"No counters are known for {name}, compute capability {capability}.",
            f"Known are {known}. Names are still decoded: fp8verify explain.",
        )
    metrics = choose(_METRIC.findall(_output([ncu, "--query-metrics"])))
    if not metrics:
        raise ProveError(
            f"ncu lists no counter of operations for {name}.",
            "See what `ncu --query-metrics` says.",
        )
    return Gpu(name, capability, ncu, metrics)


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603  the programs that PATH names
            command, capture_output=True, text=True, timeout=_QUERY_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if done.returncode == 0:
        return done.stdout
    return ""


def measure(gpu: Gpu, command: Sequence[str], window: Window) -> list[Launch]:
    """Run a command under ncu until the window is measured, and return its launches.

    What the command prints goes to standard error.

    Raises:
        ProveError: nothing was measured.
    """
    with tempfile.TemporaryDirectory(prefix="fp8verify-prove-") as folder:
        log = Path(folder) / "ncu.csv"
        line = [*_arguments(gpu, log, window), *command]
        try:
            code = subprocess.run(line, stdout=sys.stderr, check=False).returncode  # noqa: S603
        except OSError as problem:
            said = f"{gpu.ncu} could not be started: {problem}."
            raise ProveError(said, "Check it by hand.") from None
        text = ""
        if log.exists():
            text = log.read_text(encoding="utf-8", errors="replace")
    launches = read_launches(text.splitlines(), gpu.metrics)
    if not launches:
        raise _nothing(text, code, window)
    return launches


def _arguments(gpu: Gpu, log: Path, window: Window) -> list[str]:
    """Return the command line of ncu up to the command that it runs.

    Kernel replay repeats single kernels; application replay would repeat the run.
    """
    names = [
        "--kernel-name-base",
        "demangled",
        "--kernel-name",
        f"regex:{window.kernels}",
    ]
    return [
        gpu.ncu, "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log),
        "--metrics", ",".join(f"{name}.sum" for name in gpu.metrics),
        "--replay-mode", "kernel", "--clock-control", "none", "--target-processes", "all",
        "--nvtx", *(names if window.kernels else []),
        "--launch-skip", str(window.skip), "--launch-count", str(window.launches), "--kill", "yes",
    ]  # fmt: skip


def _nothing(log: str, code: int, window: Window) -> ProveError:
    """Say why nothing was measured, by what ncu wrote."""
    errors = [line for line in log.splitlines() if line.startswith("==ERROR==")]
    if errors:
        said = errors[0].removeprefix("==ERROR==").strip()
        if "ERR_NVGPUCTRPERM" in said:
            hint = _NO_RIGHT
        else:
            hint = "Run the command under ncu by hand."
        return ProveError(f"ncu measured nothing: {said}", hint)
    after = f" after {window.skip} launches" if window.skip else ""
    return ProveError(
        f"No launch of a kernel like {window.kernels or 'any'} was measured{after}; "
        f"the command ended with exit code {code}.",
        "Check that it trains on the GPU by itself, or try --skip 0 and --kernels '.*'.",
    )


class Launch(NamedTuple):
    """A profiled launch: its kernel, its operations by source type, and 2·M·N·K if it is known."""

    kernel: str
    operations: dict[str, int]
    flops: int | None


def read_launches(lines: Iterable[str], metrics: Mapping[str, Counter]) -> list[Launch]:
    """Return the launches of a log, in order; rows that cannot be read are left out."""
    launches = []
    for row in islice(_rows(lines), _MAX_ROWS):
        name = clean(row[_KERNEL])
        is_units = not row["ID"].strip()
        if name and not is_units:
            launches.append(Launch(name, _operations(row, metrics), _flops(row)))
    return launches


def _rows(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yield the rows of every table in the log."""
    header: list[str] = []
    for cells in csv.reader(_lines_of_rows(lines)):
        if _KERNEL in cells and "ID" in cells:
            header = cells
        elif header and len(cells) > len(header) // 2:
            yield {"ID": "", _KERNEL: ""} | dict(zip(header, cells, strict=False))


def _lines_of_rows(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        text = line.replace("\0", "")
        if line.startswith('"') and len(text) <= _MAX_LINE:
            yield text


def _operations(
    row: Mapping[str, str], metrics: Mapping[str, Counter]
) -> dict[str, int]:
    """Sum the metrics of a launch by source type."""
    found: dict[str, int] = {}
    for metric, counter in metrics.items():
        count = _number(row.get(f"{metric}.sum", ""))
        if count is not None:
            found[counter.source] = (
                found.get(counter.source, 0) + count * counter.operations
            )
    return found


def _number(text: str) -> int | None:
    """Read a count: 17,179,869,184 · 17179869184 · 17.179.869.184 · 1.7e10 · 0.00."""
    bare = text.strip()
    if re.fullmatch(r"\d{1,3}(?:[,.\u00a0\u202f ]\d{3})+", bare):
        return int(re.sub(r"\D", "", bare))
    try:
        return round(float(bare.replace(",", "")))
    except (ValueError, OverflowError):
        return None


def _flops(row: Mapping[str, str]) -> int | None:
    """Return 2·M·N·K from the innermost NVTX range with sizes."""
    innermost = None
    for column, text in row.items():
        found = list(_NVTX.finditer(text))
        if found and column != _KERNEL:
            innermost = found[-1]
    if innermost is None:
        return None
    sizes = tuple(map(_dimensions, _SIZE.findall(innermost["sizes"])))
    shape = gemm_shape(OpContext(name=innermost["op"], dims=sizes))
    if shape is None:
        return None
    return shape.flops


def _dimensions(size: str) -> tuple[int, ...]:
    """Read "4096, 14336"."""
    sides = size.replace(" ", "").split(",")
    return tuple(int(side[:15]) for side in sides if side)
