"""An `ncu` and an `nvidia-smi` that write what Nsight Compute 2025 writes, without a GPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# `ncu` answers --query-metrics, else runs the command after its options and writes the log that
# FAKE_NCU_LOG names, with the options that it got beside it.
_NCU = """#!{python}
import os, subprocess, sys
arguments = sys.argv[1:]
if "--query-metrics" in arguments:
    print("Device NVIDIA H200 (GH100)")
    for name in {metrics!r}:
        print(f"{{name:70s}} Counter         # of operations")
    sys.exit(0)
at = next(i for i, word in enumerate(arguments) if word == "yes") + 1
log = arguments[arguments.index("--log-file") + 1]
open({options!r}, "w").write("\\n".join(arguments))
code = subprocess.run(arguments[at:]).returncode
open(log, "w", encoding="utf-8").write(open({log!r}, encoding="utf-8").read())
sys.exit(code)
"""
_SMI = """#!/bin/sh
echo '{capability}, {name}'
"""
FP8 = "sm__ops_path_tensor_src_fp8_sparsity_off"
BF16 = "sm__ops_path_tensor_op_hgmma_src_bf16_dst_fp32_sparsity_off"
HMMA = "sm__ops_path_tensor_op_hmma_src_bf16_dst_fp32_sparsity_off"
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on"
METRICS = (FP8, BF16, HMMA, FFMA, f"{FP8}_realtime", "sm__cycles_elapsed")


def install(
    folder: Path, log: str, *, capability: str = "9.0", name: str = "NVIDIA H200"
) -> dict[str, str]:
    """Write both programs; return the environment in which they are found."""
    programs = folder / "bin"
    programs.mkdir()
    (folder / "log.csv").write_text(log, encoding="utf-8")
    _program(
        programs / "ncu",
        _NCU.format(
            python=sys.executable, metrics=METRICS, options=str(folder / "options"),
            log=str(folder / "log.csv"),
        ),
    )  # fmt: skip
    _program(programs / "nvidia-smi", _SMI.format(capability=capability, name=name))
    return {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def _program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def log_of(*launches: tuple[str, int, int, str]) -> str:
    """Return ncu's log of launches: kernel, FP8 and BF16 operations, the NVTX range around it."""
    columns = [
        "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
        "Block Size", "Grid Size", "Device", "CC", f"{FP8}.sum", f"{BF16}.sum", f"{HMMA}.sum",
        f"{FFMA}.sum", "thread 1:<default domain>:PushPop",
    ]  # fmt: skip
    units = [
        "",
        "",
        "",
        "",
        "",
        "",
        "",
        "block",
        "block",
        "",
        "",
        "",
        "",
        "",
        "inst",
        "",
    ]
    rows = [
        [str(at), "77", "python3.12", "127.0.0.1", kernel, "1", "7", "(384, 1, 1)", "(132, 1, 1)",
         "0", "9.0", f"{fp8:,}", f"{bf16:,}", "0", "1,024", nvtx]
        for at, (kernel, fp8, bf16, nvtx) in enumerate(launches)
    ]  # fmt: skip
    table = "\n".join(_line(row) for row in [columns, units, *rows])
    return (
        "==PROF== Connected to process 77 (/usr/bin/python3.12)\n"
        '==PROF== Profiling "Kernel" - 0 (1/3): 0%....50%....100% - 6 passes\n'
        f"==PROF== Disconnected from process 77\n{table}\n"
    )


def _line(cells: list[str]) -> str:
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)
