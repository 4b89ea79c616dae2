"""lightning's Trainer on a tiny model with gradient accumulation."""

import lightning
import torch


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
    max_steps=6,
    accumulate_grad_batches=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(40, 16), batch_size=2))
print(trainer.global_step)
