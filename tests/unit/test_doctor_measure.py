"""What `doctor --measure` times, and what it makes of the times: pays, loses or cannot tell."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fp8verify.capture.schema import ModuleRecord
from fp8verify.errors import UsageError
from fp8verify.preflight.checks import Check, Status
from fp8verify.preflight.launch import DryModel, Facts
from fp8verify.preflight.machine import RunPython
from fp8verify.preflight.measure import MAX_SHAPES, measure, parse_shape
from fp8verify.preflight.rules import judge
from tests import doctor_files as files
from tests.doctor_files import facts_of, write
from tests.shared_torch import python_with_torch

WHERE = {"gpu": "NVIDIA H200", "torch": "2.11.0+cu130", "torchao": "0.17.0"}
RECIPES = ("tensorwise", "rowwise")


class Worker:
    """A Python that answers what it is told to, among other lines, and keeps what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def measure(
        self,
        facts: Facts,
        *shapes: str,
        tokens: int | None = None,
        **rounds: list[float],
    ) -> list[Check]:
        errors = {
            name: "RuntimeError: no"
            for name in ("bf16", *RECIPES)
            if name not in rounds
        }
        answer = {"rounds": rounds, "errors": errors}
        python = self.folder / "python"
        python.write_text(
            f"#!{sys.executable}\nimport json, sys\nasked = json.load(sys.stdin)\n"
            f"json.dump(asked, open({str(self.folder / 'asked')!r}, 'w'))\nprint('hello')\n"
            f"for line in [{WHERE!r}, *[{answer!r}] * len(asked['shapes'])]:\n"
            "    print('fp8verify: ' + json.dumps(line))\n"
        )
        python.chmod(0o755)
        facts = facts._replace(python=RunPython(str(python), "", named=True))
        return list(measure(facts, shapes, tokens, RECIPES))

    @property
    def asked(self) -> dict[str, object]:
        return dict(json.loads((self.folder / "asked").read_text()))


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


@pytest.mark.parametrize(
    ("fp8", "noise", "status", "answer"),
    [
        (900.0, 0.0, Status.OK, "1.11x: pays"),
        (970.0, 0.0, Status.SKIPPED, "1.03x: cannot tell"),
        (1040.0, 0.0, Status.SKIPPED, "0.96x: cannot tell"),
        (1100.0, 0.0, Status.WARN, "0.91x: does not pay alone"),
        # Rounds that differ by more than the gain: nothing can be said of it.
        (900.0, 200.0, Status.SKIPPED, "1.11x (1.00-1.25): cannot tell"),
        (1100.0, 200.0, Status.SKIPPED, "0.91x (0.83-1.00): cannot tell"),
    ],
)
def test_a_gain_within_its_doubt_is_no_answer(
    worker: Worker, fp8: float, noise: float, status: Status, answer: str
) -> None:
    rounds = [fp8 + noise * shift for shift in (-1, -0.5, 0, 0.5, 1)]
    (check,) = worker.measure(
        Facts({}), "8x16x32", bf16=[1000.0] * 5, tensorwise=rounds
    )
    assert check.status is status
    assert check.message.startswith(
        "8 tokens, 16 -> 32; rowwise failed (RuntimeError: no): BF16 1"
    )
    assert check.message.endswith(answer)
    assert "optimizer" in check.hint
    assert check.source.endswith(
        "torch 2.11.0+cu130, torchao 0.17.0, compiled, each layer alone"
    )


def test_a_size_without_memory_for_bf16_says_so(worker: Worker) -> None:
    (check,) = worker.measure(Facts({}), "8x16x32")
    assert check.status is Status.SKIPPED
    assert check.message.endswith("could not be measured")


def test_the_sizes_of_a_configuration_are_summed(
    worker: Worker, tmp_path: Path
) -> None:
    facts = facts_of(write(tmp_path, "k.toml", files.KEMPNERFORGE))
    *sizes, model = worker.measure(
        facts, bf16=[3000.0], tensorwise=[2000.0], rowwise=[2500.0]
    )
    assert [m for m, _, _ in worker.asked["shapes"]] == [32768] * len(sizes)  # type: ignore[attr-defined]
    assert (model.code, model.status) == ("measured-model", Status.OK)
    # 32 blocks of seven layers and the head.
    assert (
        "BF16 675.00 ms a step, tensorwise 450.00 ms with casts, 1.50x; rowwise"
        in model.message
    )
    worker.measure(facts, tokens=100, bf16=[1.0], tensorwise=[1.0])
    assert {m for m, _, _ in worker.asked["shapes"]} == {100}  # type: ignore[attr-defined]


def test_the_fp8_layers_of_a_dry_model_are_measured(
    worker: Worker, tmp_path: Path
) -> None:
    sizes = {
        "0.up": (64, 128),
        "1.up": (64, 128),
        "0.down": (128, 64),
        "lm_head": (64, 512),
    }
    modules = [
        ModuleRecord(
            fqn=fqn, class_name="Linear", kind="linear", in_features=k, out_features=n,
            state="high_precision" if fqn == "lm_head" else "fp8",
        )
        for fqn, (k, n) in sizes.items()
    ]  # fmt: skip
    expert = ModuleRecord(
        fqn="0.experts.0.w1", class_name="Linear", kind="linear", state="fp8",
        in_features=64, out_features=128,
    )  # fmt: skip
    text = files.KEMPNERFORGE.replace("compile_model = true", "compile_model = false")
    facts = facts_of(write(tmp_path, "k.toml", text))
    facts = facts._replace(model=DryModel((*modules, expert)))
    up, down, model = worker.measure(
        facts, tokens=8, bf16=[2000.0], tensorwise=[1000.0]
    )
    assert "8 tokens, 64 -> 128 (*.up (2)), 2 times" in up.message
    assert "8 tokens, 128 -> 64 (0.down)" in down.message
    assert "BF16 6.00 ms a step, tensorwise 3.00 ms" in model.message
    assert worker.asked["compile"] is ("compile_model = true" not in files.KEMPNERFORGE)


def test_the_head_that_megatron_keeps_in_bf16_is_measured_too(worker: Worker) -> None:
    sizes = (
        "--num-layers 8 --hidden-size 2048 --num-attention-heads 16 --vocab-size 1000"
    )
    facts = facts_of(
        command=f"python pretrain_gpt.py --fp8-format hybrid {sizes}".split()
    )
    *_, head, model = worker.measure(
        facts, tokens=8, bf16=[2000.0], tensorwise=[1000.0]
    )
    assert "8 tokens, 2048 -> 1000 (output head); rowwise failed" in head.message
    # Eight blocks of six layers and the head, of whose size FP8 asks nothing.
    assert "BF16 98.00 ms a step, tensorwise 49.00 ms" in model.message
    assert not any("output head" in check.message for check in judge(facts))


def test_of_many_sizes_the_first_are_measured(worker: Worker, tmp_path: Path) -> None:
    facts = facts_of(write(tmp_path, "k.toml", files.KEMPNERFORGE))
    shapes = [f"8x16x{16 * n}" for n in range(1, MAX_SHAPES)]
    *sizes, model = worker.measure(facts, *shapes, bf16=[2000.0], tensorwise=[1000.0])
    assert len(worker.asked["shapes"]) == len(sizes) == MAX_SHAPES == 24  # type: ignore[arg-type]
    assert model.message.startswith(
        "the model's linear layers; 4 sizes are left out: BF16 "
    )


def test_a_python_that_cannot_measure_says_why(tmp_path: Path) -> None:
    python = RunPython(str(tmp_path / "none"), "", named=True)
    (check,) = measure(Facts({}, python=python), ["8x16x32"], None, RECIPES)
    assert (check.status, check.code) == (Status.SKIPPED, "measured")
    assert "cannot be run: No such file" in check.message
    (check,) = measure(Facts({}), [], None, RECIPES)
    assert "--shape" in check.message


@pytest.mark.train
def test_the_worker_times_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    # Emulated on the CPU: the times say nothing, but all of the worker runs, though uncompiled.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    here = Facts({}, python=RunPython(str(python_with_torch()), "", named=True))
    (check,) = measure(here, ["32x16x32"], None, ["tensorwise", "zigzag"], device="cpu")
    assert "zigzag failed (" in check.message
    assert "; tensorwise" not in check.message
    assert " a step, tensorwise " in check.message
    if not torch.cuda.is_available():
        (check,) = measure(here, ["32x16x32"], None, ["tensorwise"])
        assert check.message == "nothing was measured: torch sees no GPU"


@pytest.mark.parametrize(
    "text", ["3", "8192x4096", "axbxc", "0x16x16", "8192x4096x14336x2"]
)
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a matrix size"):
        parse_shape(text)
