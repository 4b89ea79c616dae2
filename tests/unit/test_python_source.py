"""What a Python source asks for is read from its lines, and said with the doubt whether they run."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8verify.preflight.rules import judge
from tests.doctor_files import facts_of, write

TORCHAO = """from torchao.float8 import Float8LinearConfig, convert_to_float8_training
config = Float8LinearConfig.from_recipe_name("rowwise")
convert_to_float8_training(model, config=config)
"""


def _said(folder: Path, text: str) -> str:
    facts = facts_of(write(folder, "train.py", text))
    (found,) = [check for check in judge(facts) if check.code == "fp8-mentioned"]
    assert found.status.value == "skipped"
    return found.message


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (TORCHAO, "FP8 by torchao, line 3 (recipe: rowwise, line 2)"),
        ("with te.fp8_autocast(enabled=True):\n  y = m(x)\n", "FP8 by Transformer Engine, line 1"),
        ("x = 1\nwith te.autocast(recipe=MXFP8BlockScaling()): pass\n",
         "FP8 by Transformer Engine, line 2 (recipe: MXFP8, line 2)"),
        ("a = Accelerator(mixed_precision='fp8', kwargs_handlers=[TERecipeKwargs()])\n",
         "FP8 by accelerate, line 1"),
        ("trainer = Trainer(precision='amp_fp8')\n", "FP8 by Transformer Engine (Composer), line 1"),
        ("c = GPTConfig(\n  fp8='hybrid',\n  fp8_recipe='blockwise',\n)\n",
         "FP8 by Transformer Engine (Megatron Core), line 2 (recipe: blockwise, line 3)"),
        ("recipe.trainer.plugins = bf16_with_mxfp8_mixed()\n",
         "MXFP8 by Transformer Engine (Megatron Core), line 1"),
        ("converters=[MXFP8LinearConverter.Config(model_compile_enabled=True)]\n",
         "MXFP8 by torchao (torchtitan), line 1"),
        ("c = Float8Config(scaling_granularity_gemm=ScalingGranularity.TILEWISE)\n", "FP8 by XTuner, line 1"),
    ],
)  # fmt: skip
def test_a_line_that_asks_for_low_precision_is_told(
    tmp_path: Path, code: str, wanted: str
) -> None:
    said = _said(tmp_path, code)
    assert said.startswith(f"requests {wanted}, where these lines run; not checked")


@pytest.mark.parametrize(
    "code",
    [
        '"""convert_to_float8_training(model)"""\nfloat8 = 1\n',
        "# with te.fp8_autocast(enabled=True):\nfloat8 = 1\n",
        "print('call convert_to_float8_training(model)')\n",
        "def fp8_autocast(enabled): ...\n",
        "def swap_linear_with_float8_linear(model): ...\n",
        "with te.fp8_autocast(enabled=False): pass\n",
        "parser.add_argument('--mixed_precision', choices=['no', 'fp8'])\n",
    ],
)
def test_a_line_that_only_speaks_of_it_asks_for_nothing(
    tmp_path: Path, code: str
) -> None:
    assert "requests" not in _said(tmp_path, code)


def test_layers_of_transformer_engine_without_an_autocast_are_told(
    tmp_path: Path,
) -> None:
    said = _said(tmp_path, "import transformer_engine.pytorch as te\nte.Linear(8, 8)\n")
    assert "no line of it opens Transformer Engine's autocast" in said


def test_fp8_for_generation_alone_is_told_as_such(tmp_path: Path) -> None:
    said = _said(tmp_path, 'a = C(vllm_llm_kwargs={"quantization": "fp8"})\n')
    assert said.startswith("FP8 for generation only (line 1")
