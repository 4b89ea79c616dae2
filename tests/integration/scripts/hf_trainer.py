"""transformers.Trainer on a tiny model with gradient accumulation: MAX_STEPS [resume]."""

import sys

import torch
from transformers import Trainer, TrainingArguments

max_steps, *resume = sys.argv[1:]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        return {"loss": self.linear(x).square().mean()}


torch.manual_seed(0)
arguments = TrainingArguments(
    output_dir="checkpoints",
    max_steps=int(max_steps),
    save_steps=2,
    logging_steps=1,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    use_cpu=True,
    disable_tqdm=True,
    report_to=[],
)
rows = [{"x": torch.full((16,), index / 100)} for index in range(100)]
trainer = Trainer(model=Model(), args=arguments, train_dataset=rows)
trainer.train(resume_from_checkpoint=bool(resume))
losses = [f"{row['loss']:.8f}" for row in trainer.state.log_history if "loss" in row]
print(trainer.state.global_step, losses, file=sys.stderr)
