"""lightning's Trainer with our callback, a training for each of OPTIONS, in JSON."""

import csv
import json
import sys
from pathlib import Path

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger

from fp8verify.integrations.lightning import Fp8VerifyCallback


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def training_step(self, batch, _):
        return self.linear(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


for number, options in enumerate(map(json.loads, sys.argv[1:])):
    trainer = lightning.Trainer(
        max_steps=12,
        accelerator="cpu",
        logger=CSVLogger("logs", version=number),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Fp8VerifyCallback(**options)],
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(40, 16), batch_size=2))
    rows = [row for row in trainer.logger.experiment.metrics if "fp8/step" in row]
    trainer.logger.save()
    if not rows:
        found = [*Path("logs").rglob(f"version_{number}/metrics.csv")]
        rows = [row for path in found for row in csv.DictReader(path.open()) if row.get("fp8/step")]
    print("LOGGED", json.dumps([{**row, "fp8/step": float(row["fp8/step"])} for row in rows]))
