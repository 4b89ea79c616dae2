"""The command in a report: what may be secret is left out."""

from __future__ import annotations

import shlex

import pytest

from fp8verify.cli.shown_command import MOST_LETTERS, shown_command

SECRETS = (
    "--hf-token hf_AbCdEfGhIjKlMnOp",
    "--wandb-api-key=0123456789abcdef0123456789abcdef01234567",
    "--password hunter2",
    "--auth=user:hunter2",
    "HF_TOKEN=hunter2",
    "--store https://user:hunter2@host/bucket",
    "--url https://host/file?sig=hunter2",
    "sk-hunter2hunter2",
    "8f14e45fceea167a5a36dedd4bea2543",
    "'export TOKEN=hunter2; python train.py'",
    "--header 'X-Auth: hunter2'",
)


@pytest.mark.parametrize("secret", SECRETS)
def test_what_may_be_secret_is_not_shown(secret: str) -> None:
    shown = shown_command(["torchrun", *shlex.split(secret), "train.py"])
    assert shown.startswith("torchrun ")
    assert "***" in shown
    for part in ("hunter2", "hf_A", "0123456789abcdef", "8f14e45f"):
        assert part not in shown


def test_names_numbers_and_paths_are_shown() -> None:
    command = (
        "torchrun --nproc-per-node 8 examples/train_gpt.py --model llama3-8b --lr 3e-4 "
        "--precision=fp8 --config configs/7b.yaml --tokens 8192 --tokenizer gpt2"
    )
    assert shown_command(command.split()) == command


def test_a_long_command_is_cut() -> None:
    assert len(shown_command(["train.py", *["--name=value"] * 500])) <= MOST_LETTERS + 2
