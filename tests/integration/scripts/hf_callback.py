"""transformers.Trainer with our callback, a training for each of OPTIONS, in JSON."""

import json
import sys

import torch
from transformers import Trainer, TrainingArguments

from fp8verify.integrations.transformers import Fp8VerifyCallback


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        return {"loss": self.linear(x).square().mean()}


arguments = TrainingArguments(
    output_dir="checkpoints",
    max_steps=12,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    use_cpu=True,
    disable_tqdm=True,
    report_to=[],
    save_strategy="no",
)
rows = [{"x": torch.full((16,), index / 100)} for index in range(100)]
for options in map(json.loads, sys.argv[1:]):
    callback = Fp8VerifyCallback(**options)
    trainer = Trainer(model=Model(), args=arguments, train_dataset=rows, callbacks=[callback])
    trainer.train()
    if "trace_dir" in options:
        trainer.train()  # again: what is recorded stays as it is
    print("LOGGED", json.dumps([row for row in trainer.state.log_history if "fp8/step" in row]))
