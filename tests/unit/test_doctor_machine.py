"""What the doctor says of a machine: its GPUs, its versions, combinations known to fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fp8verify.capture.schema import ModuleRecord
from fp8verify.errors import UsageError
from fp8verify.preflight.checks import Check, Status, report_of, to_text
from fp8verify.preflight.launch import DryModel
from fp8verify.preflight.machine import (
    Gpu,
    built_for,
    find_python,
    named_gpus,
    parse,
    parse_scan,
    trains_in,
)
from fp8verify.preflight.machine import formats as known_formats
from fp8verify.preflight.rules import judge
from fp8verify.preflight.tables import rules
from tests import doctor_files as files
from tests.doctor_files import (
    A100,
    B200,
    GOOD,
    H20,
    H100,
    MI300X,
    RTX6000_PRO,
    complaints,
    facts_of,
    write,
)

MXFP8 = files.ACCELERATE.replace("margin: 0", "use_mxfp8_block_scaling: true")
NVFP4 = files.MEGATRON_SH.replace("--fp8-format hybrid", "--fp4-format e2m1")
ROWWISE = files.TORCHTITAN_TOML.replace(
    "filter_fqns", 'recipe_name = "rowwise"\nfilter_fqns'
)
ROWWISE_CHECKPOINTED = ROWWISE + '\n[activation_checkpoint]\nmode = "selective"\n'
RECOMPUTES = files.MEGATRON_SH.replace("--bf16", "--bf16 --recompute-granularity full")


@pytest.mark.parametrize(
    ("name", "capability", "formats"),
    [
        ("NVIDIA A100-SXM4-80GB", "8.0", set()),
        ("NVIDIA RTX A6000", "8.6", set()),
        ("NVIDIA L40S", "8.9", {"fp8"}),
        ("NVIDIA H100 PCIe", "9.0", {"fp8", "fp8_block"}),
        ("NVIDIA B200", "10.0", {"fp8", "fp8_block", "mxfp8", "nvfp4"}),
        ("NVIDIA B300", "10.3", {"fp8", "fp8_block", "mxfp8", "nvfp4"}),
        ("NVIDIA RTX PRO 6000 Blackwell", "12.0", {"fp8", "fp8_block", "nvfp4"}),
        ("AMD Instinct MI250X", "gfx90a", set()),
        ("AMD Instinct MI300X", "gfx942", {"fp8", "fp8_block"}),
        ("AMD Instinct MI355X", "gfx950", {"fp8", "fp8_block", "mxfp8", "mxfp4"}),
    ],
)
def test_which_gpu_trains_in_which_format(
    name: str, capability: str, formats: set[str]
) -> None:
    assert {
        fmt for fmt in known_formats() if trains_in(Gpu(name, capability), fmt)
    } == formats


@pytest.mark.parametrize("capability", [None, "", "[N/A]", "9", "nine.zero"])
def test_a_capability_that_is_not_known_decides_nothing(capability: str | None) -> None:
    assert trains_in(Gpu("NVIDIA Graphics Device", capability), "fp8") is None
    facts = facts_of(gpus=[Gpu("NVIDIA Graphics Device", capability)])
    (check,) = [check for check in judge(facts) if check.code == "fp8-units"]
    assert check.status is Status.SKIPPED


@pytest.mark.parametrize(
    ("names", "gpu", "count"),
    [
        ("RTX4090|rtx-4090|RTX 4090|NVIDIA GeForce RTX 4090", ("NVIDIA RTX 4090", "8.9"), 1),
        ("H100|h100 80gb|H100-SXM5-80GB|NVIDIA H100 80GB HBM3|h100_pcie", ("NVIDIA H100", "9.0"), 1),
        ("8xH100|8 x H100|H100x8|H100 80GB x 8", ("NVIDIA H100", "9.0"), 8),
        ("A100|A100-SXM4-40GB|NVIDIA A100 80GB PCIe|a100-80g", ("NVIDIA A100", "8.0"), 1),
        ("RTX PRO 6000|NVIDIA RTX PRO 6000 Blackwell Server Edition", ("NVIDIA RTX PRO 6000", "12.0"), 1),
        ("RTX 6000 Ada Generation|rtx6000ada", ("NVIDIA RTX 6000 ADA", "8.9"), 1),
        ("MI300X|mi-300x|AMD Instinct MI300X OAM", ("AMD Instinct MI300X", "gfx942"), 1),
        ("sm_120|12.0|sm120a", ("NVIDIA GPU", "12.0"), 1),
        ("gfx942", ("AMD GPU", "gfx942"), 1),
    ],
)  # fmt: skip
def test_a_gpu_is_known_however_its_name_is_written(
    names: str, gpu: tuple[str, str], count: int
) -> None:
    for name in names.split("|"):
        assert named_gpus(name) == (Gpu(*gpu),) * count, name


@pytest.mark.parametrize("name", ["", "RTX", "H1000", "RTX 6000", "x8", "TPU v5e"])
def test_a_name_of_no_known_gpu_or_of_two_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="not a GPU that is known"):
        named_gpus(name)


NO_FP8 = "base_model: x\nsequence_len: 2048\nmicro_batch_size: 2\nbf16: true\n"


@pytest.mark.parametrize(
    ("name", "text", "status"),
    [
        ("axolotl.yaml", NO_FP8, "note"),
        ("axolotl.yaml", NO_FP8 + "fp8: true\n", "fail"),
        ("musubi.sh", "python train.py --fp8_base --fp8_scaled\n", "note"),
        ("train.py", "import transformer_engine.pytorch as te\n", "warn"),
        ("train.py", "import torch\n", "note"),
        ("infer.sh", "python serve.py --kv_cache_dtype fp8\n", "note"),
    ],
)
def test_missing_units_are_a_fault_only_where_something_may_need_them(
    tmp_path: Path, name: str, text: str, status: str
) -> None:
    facts = facts_of(write(tmp_path, name, text), gpus=[A100])
    (found,) = [check for check in judge(facts) if check.code == "no-fp8-units"]
    assert found.status.value == status


# Arguments of `facts_of`, a file, and all that is told.
MACHINES: list[tuple[dict[str, Any], str, str]] = [
    ({"gpus": [A100]}, "", "fail no-fp8-units"),
    ({"gpus": [H100, A100]}, "", "fail no-fp8-units"),
    ({"gpus": [H100]}, MXFP8, "fail no-fp8-units"),
    ({"gpus": []}, "", "fail no-gpu"),
    ({"gpus": [], "require_gpu": False}, "", ""),
    ({"versions": {**GOOD, "torchao": "0.8.0"}}, ROWWISE, "fail torchao-too-old"),
    ({"versions": {**GOOD, "torchao": "0.9.0"}}, files.TORCHTITAN_TOML, ""),
    ({"versions": {"torch": "not a version", "torchao": "?"}}, "", ""),
]


@pytest.mark.parametrize(("machine", "text", "told"), MACHINES)
def test_what_is_told_of_a_machine(
    tmp_path: Path, machine: dict[str, Any], text: str, told: str
) -> None:
    config = [write(tmp_path, f"c.{_ending(text)}", text)] if text else []
    found = complaints(facts_of(*config, **machine))
    assert (
        " ".join(f"{check.status.value} {code}" for code, check in found.items())
        == told
    )
    if "no-fp8-units" in found and A100 in machine["gpus"]:
        count = f"(8.0) of {len(machine['gpus'])} GPUs"
        assert count in found["no-fp8-units"].message


def test_torch_for_cpus_on_a_gpu_machine_fails() -> None:
    versions = {**GOOD, "torch": "2.11.0+cpu"}
    facts = facts_of(versions=versions)
    assert complaints(facts)["torch-without-cuda"].status is Status.WARN
    facts = facts._replace(python=facts.python._replace(named=True))
    assert complaints(facts)["torch-without-cuda"].status is Status.FAIL
    assert complaints(facts_of(versions=versions, gpus=(), require_gpu=False)) == {}


@pytest.mark.parametrize(
    ("text", "package", "code"),
    [
        (files.ACCELERATE, "transformer_engine", "te-not-installed"),
        (files.ACCELERATE_AO, "torchao", "torchao-not-installed"),
        (
            files.ACCELERATE.replace("backend: TE", "backend: MSAMP"),
            "msamp",
            "msamp-not-installed",
        ),
    ],
)
def test_the_library_that_is_asked_for_must_be_there(
    tmp_path: Path, text: str, package: str, code: str
) -> None:
    path = write(tmp_path, "a.yaml", text)
    versions = {name: version for name, version in GOOD.items() if name != package}
    facts = facts_of(path, versions=versions)
    assert (
        complaints(facts)[code].status is Status.WARN
    )  # it may not be the Python that trains
    named = facts.python._replace(named=True)
    assert complaints(facts._replace(python=named))[code].status is Status.FAIL
    assert code not in complaints(facts_of(path, versions={**GOOD, package: "9"}))
    assert code not in complaints(
        facts_of(path, versions={})
    )  # not the training's Python


L40S = Gpu("NVIDIA L40S", "8.9")
TE_D006 = "TE d0067d0 pytorch/quantization.py:"
NIGHTLY = {"torch": "2.14.0.dev20260701+cu130", "triton": "3.8.0", "torchao": "0.18.0"}
BLOCKWISE = files.MEGATRON_SH.replace("hybrid", "e4m3 --fp8-recipe blockwise")
MSAMP = files.ACCELERATE.replace("backend: TE", "backend: MSAMP")
FP32_SCALES = {"NVTE_FP8_BLOCK_SCALING_FP32_SCALES": "1"}


def torch(version: str) -> dict[str, Any]:
    """A machine that has this torch alone."""
    return {"versions": {"torch": version}}


def te(version: str, **more: Any) -> dict[str, Any]:
    """A machine that has this Transformer Engine alone."""
    return {"versions": {"transformer_engine": version}, **more}


def good(**versions: str) -> dict[str, Any]:
    """A machine with current versions but for these."""
    return {"versions": {**GOOD, **versions}}


# The evidence of a row, a machine and a configuration for which it holds, and what repairs it.
BAD: list[tuple[str, dict[str, Any], str | None, dict[str, Any]]] = [
    ("ao#4652", {"versions": NIGHTLY}, None,
     {"versions": {**NIGHTLY, "torchao_inductor_patch": "1"}}),
    ("pytorch#192707", {**torch("2.10.0+cu130"), "gpus": [RTX6000_PRO]}, ROWWISE,
     torch("2.11.0+cu130")),
    ("TE#1190", te("1.10.0"), RECOMPUTES, good()),
    ("torchtitan#1056", good(torchtitan="0.0.2"), ROWWISE_CHECKPOINTED, good(torchtitan="0.1.0")),
    ("TE#1047", te("1.7.0"), files.MEGATRON_SH, good()),
    ("TE#3281", te("2.18.0", gpus=[RTX6000_PRO]), NVFP4, {"gpus": [B200]}),
    ("TE#2255", {"gpus": [RTX6000_PRO]}, NVFP4, {"gpus": [B200]}),
    (f"{TE_D006}179", torch("2.8.0+cu128"), BLOCKWISE, torch("2.11.0+cu129")),
    (f"{TE_D006}155", {**torch("2.1.0+cu118"), "gpus": [L40S]}, files.MEGATRON_SH,
     torch("2.1.0+cu121")),
    ("torch aten ScaledBlas.cpp", {**torch("2.6.0+cu126"), "gpus": [L40S]}, ROWWISE,
     torch("2.7.0+cu126")),
    ("Megatron-LM d98e8a6 megatron/training/arguments.py:1108", te("2.6.0", gpus=[B200]), NVFP4,
     good()),
    ("miles#1340", {"environment": FP32_SCALES, "gpus": [B200]}, MXFP8, {"environment": {}}),
    ("Azure/MS-AMP", good(msamp="0.4"), MSAMP,
     {"versions": {"torch": "2.1.2+cu118", "msamp": "0.4"}}),
    ("accelerate#3830", good(accelerate="1.12.0"), files.ACCELERATE_AO, good(accelerate="1.13.0")),
    ("LLaMA-Factory#9500", good(llamafactory="0.9.4"), files.LLAMA_FACTORY,
     good(llamafactory="0.9.5.dev0")),
    ("pytorch#143465", {**torch("2.6.0+rocm6.2.4"), "gpus": [MI300X]}, None,
     torch("2.9.0+rocm6.4")),
    ("Megatron-LM#860", {"gpus": [H20]}, None, {"gpus": [H100]}),
    ("verl#6172", {"environment": FP32_SCALES, "gpus": [B200]}, BLOCKWISE, {"gpus": [H100]}),
    (f"{TE_D006}164", {"gpus": [RTX6000_PRO]}, MXFP8, {"gpus": [B200]}),
]  # fmt: skip
RULES = [
    rule
    for found in rules().values()
    for rule in found
    if rule.code == "known-bad-versions"
]


@pytest.mark.parametrize(("thread", "machine", "text", "repair"), BAD)
def test_each_known_bad_combination_is_told_and_its_repair_is_not(
    tmp_path: Path,
    thread: str,
    machine: dict[str, Any],
    text: str | None,
    repair: dict[str, Any],
) -> None:
    known = [rule for rule in RULES if rule.evidence.startswith(thread)]
    config = [write(tmp_path, f"c.{_ending(text)}", text)] if text else []

    def told(machine: dict[str, Any]) -> list[Check]:
        checks = judge(facts_of(*config, **machine))
        messages = tuple(rule.message for rule in known)
        return [c for c in checks if c.message.startswith(messages)]

    (check,) = told(machine)
    assert check.status in {rule.status for rule in known}
    assert told({**machine, **repair}) == []


def _ending(text: str) -> str:
    endings = {"#!": "sh", "[": "toml", "from ": "py"}
    return next(
        (end for start, end in endings.items() if text.startswith(start)), "yaml"
    )


def test_versions_of_cuda() -> None:
    assert built_for({"torch": "2.11.0+cu130"}) == {"torch_cuda": "13.0"}
    assert (
        built_for({"torch": "2.11.0", "nvidia_cublas_cu12": "12.8.4.1"})["torch_cuda"]
        == "12.8"
    )
    assert built_for({"torch": "2.11.0"}) == {}


H200_ROW, H200 = "NVIDIA H200, 9.0\n", Gpu("NVIDIA H200", "9.0")
# amd-smi static --asic --driver (ROCm/rocm-systems#2987), which ROCm 7 puts under "gpu_data".
MI350X_ROW = (
    '[{"gpu": 0, "asic": {"market_name": "AMD Instinct MI350X", '
    '"target_graphics_version": "gfx950"}}]'
)
MI350X = Gpu("AMD Instinct MI350X", "gfx950")


@pytest.mark.parametrize(
    ("tool", "text", "gpus"),
    [
        ("nvidia-smi", H200_ROW * 2, [H200] * 2),
        ("nvidia-smi", "NVIDIA-SMI has failed\n", []),
        ("amd-smi", MI350X_ROW, [MI350X]),
        ("amd-smi", f'{{"gpu_data": {MI350X_ROW}}}', [MI350X]),
        *(
            ("amd-smi", text, [])
            for text in ("", "{", '"nothing"', "[1, {}]", '{"gpu_data": [1]}')
        ),
    ],
)
def test_what_a_driver_s_tool_prints_is_read(
    tool: str, text: str, gpus: list[Gpu]
) -> None:
    assert list(parse(tool, text)) == gpus


def test_the_first_folder_on_the_path_is_the_one_that_is_imported() -> None:
    assert parse_scan("python 3.11.7\ntorch 2.11.0\ntorch 2.4.0\n")["torch"] == "2.11.0"


def test_the_python_of_the_command_is_the_trainings(tmp_path: Path) -> None:
    python, venv = tmp_path / "bin" / "python", tmp_path / "venv"
    for program in (python, venv / "bin" / "python", tmp_path / "bin" / "torchrun"):
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("")
        program.chmod(0o755)
    environment = {"PATH": str(python.parent), "VIRTUAL_ENV": str(venv)}

    def found(command: str) -> str:
        return find_python(command.split(), environment).program

    assert found(f"env A=1 {python} train.py") == str(python)
    assert found("torchrun --nproc-per-node 8 train.py") == str(python)
    assert found("") == str(venv / "bin" / "python")
    assert found("srun train.sh") == str(venv / "bin" / "python")


def test_the_gravest_check_gives_the_status() -> None:
    ok, bad = (Check(status.value, status, "") for status in (Status.OK, Status.FAIL))
    report = report_of([ok, bad, ok])
    assert (report.status, report.exit_code, report.checks) == (
        Status.FAIL,
        1,
        (bad, ok),
    )
    assert report_of([ok]).exit_code == 0


def test_layers_of_transformer_engine_are_not_judged_before_their_autocast(
    tmp_path: Path,
) -> None:
    module = ModuleRecord(
        fqn="fc", class_name="Linear", kind="linear", in_features=4096, out_features=4096,
        state="fp8_module_off",
    )  # fmt: skip
    facts = facts_of(write(tmp_path, "go.sh", files.MEGATRON_SH))._replace(
        model=DryModel((module,))
    )
    found = {check.code: check.status for check in judge(facts)}
    assert found["model-in-autocast"] is Status.SKIPPED
    assert "model-layers" not in found


def test_what_is_said_of_this_machine_comes_last_if_the_run_is_for_another() -> None:
    here = Check(
        code="torch-without-cuda", status=Status.WARN, message="built for CPUs"
    )
    of_file = Check(code="compile-off", status=Status.WARN, message="x", file="a.yaml")
    passed = Check(code="fp8-units", status=Status.OK, message="can multiply FP8")
    codes = [
        one.code for one in report_of([here, passed, of_file], elsewhere=True).checks
    ]
    assert codes == ["compile-off", "fp8-units", "torch-without-cuda"]
    assert report_of([here, passed], elsewhere=True).status is Status.WARN


def test_the_remedy_is_labelled_and_the_source_is_told_with_verbose() -> None:
    fault = Check("compile-off", Status.WARN, "not compiled", "Compile it.", "ao#685")
    report = report_of([fault])
    assert "\nfix " in to_text(report)
    assert "ao#685" not in to_text(report)
    assert "\nsource " in to_text(report, verbose=True)


def test_no_remedy_of_other_gpus_is_told_for_a_format_that_hopper_lacks(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, "accelerate.yaml", MXFP8)
    (found,) = [c for c in judge(facts_of(path)) if c.code == "no-fp8-units"]
    assert ">= 9.0 or 8.9" not in found.hint
