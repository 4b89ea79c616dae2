#!/bin/bash
CLI_OVERRIDES="\
    model.seq_length=4096 \
    train.train_iters=10 \
    mixed_precision=bf16_with_fp8_current_scaling_mixed \
    model.sequence_parallel=True "
uv run python scripts/training/run_recipe.py --recipe llama3_8b_pretrain_config $CLI_OVERRIDES
