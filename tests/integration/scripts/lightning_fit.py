"""lightning's Trainer on a tiny model with gradient accumulation: [MAX_STEPS [resume]]."""

import sys

import lightning
import torch

max_steps, resume = (*sys.argv[1:], "6")[0], sys.argv[2:]


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def training_step(self, batch, _):
        return self.linear(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


torch.manual_seed(0)
trainer = lightning.Trainer(
    max_steps=int(max_steps),
    accumulate_grad_batches=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
data = torch.utils.data.DataLoader(torch.ones(40, 16), batch_size=2)
trainer.fit(Model(), data, ckpt_path="last.ckpt" if resume else None)
if len(sys.argv) == 2:
    trainer.save_checkpoint("last.ckpt")
print(trainer.global_step)
