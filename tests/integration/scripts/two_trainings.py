"""Two trainings of six steps, one after the other: transformers | lightning."""

import sys

import torch

framework = sys.argv[1]


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        return {"loss": self.linear(x).square().mean()}


def train_with_transformers():
    from transformers import Trainer, TrainingArguments

    class Own(Trainer):
        def __init__(self, **options):
            super().__init__(**options)

    arguments = TrainingArguments(
        output_dir="out", max_steps=6, use_cpu=True, report_to=[], save_strategy="no"
    )
    rows = [{"x": torch.full((16,), index / 100)} for index in range(100)]
    trainer = Own(model=Layer(), args=arguments, train_dataset=rows)
    trainer.train()
    return trainer.state.global_step


def train_with_lightning():
    import lightning.pytorch as pl

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = Layer()

        def training_step(self, batch, _):
            return self.layer(batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = pl.Trainer(max_steps=6, accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(40, 16), batch_size=2))
    return trainer.global_step


train = {"transformers": train_with_transformers, "lightning": train_with_lightning}[framework]
print(train(), train())
