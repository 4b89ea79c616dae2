"""Trainings of a tiny model by a framework's Trainer: transformers | lightning.

It accumulates gradients over two batches. `--resume` goes on from the checkpoint that a run without
it leaves. A training with a callback is made for each of its OPTIONS, in JSON.
"""

import argparse
import csv
import json
import sys
from pathlib import Path

import torch

parser = argparse.ArgumentParser()
parser.add_argument("framework", choices=["transformers", "lightning"])
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--resume", action="store_true")
parser.add_argument(
    "--twice", action="store_true", help="a second training, in the same process"
)
parser.add_argument("--callbacks", nargs="*", metavar="OPTIONS")
given = parser.parse_args()


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        return {"loss": self.linear(x).square().mean()}


class Transformers:
    def __init__(self, callbacks, _):
        from transformers import Trainer, TrainingArguments

        class Own(Trainer):
            def __init__(self, **options):
                super().__init__(**options)

        arguments = TrainingArguments(
            output_dir="checkpoints", max_steps=given.steps, save_steps=2, logging_steps=1,
            per_device_train_batch_size=2, gradient_accumulation_steps=2, use_cpu=True,
            disable_tqdm=True, report_to=[], save_strategy="no" if callbacks else "steps",
        )  # fmt: skip
        rows = [{"x": torch.full((16,), index / 100)} for index in range(100)]
        self.trainer = Own(
            model=Layer(), args=arguments, train_dataset=rows, callbacks=list(callbacks)
        )

    def train(self):
        self.trainer.train(resume_from_checkpoint=given.resume)
        losses = [
            f"{row['loss']:.8f}"
            for row in self.trainer.state.log_history
            if "loss" in row
        ]
        print(losses, file=sys.stderr)
        return self.trainer.state.global_step

    def logged(self):
        return [row for row in self.trainer.state.log_history if "fp8/step" in row]


class Lightning:
    def __init__(self, callbacks, number):
        import lightning
        from lightning.pytorch.loggers import CSVLogger

        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = Layer()

            def training_step(self, batch, _):
                return self.layer(batch)["loss"]

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        self.model, self.number = Model(), number
        self.trainer = lightning.Trainer(
            max_steps=given.steps, accumulate_grad_batches=2, accelerator="cpu",
            logger=CSVLogger("logs", version=number) if callbacks else False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            callbacks=list(callbacks),
        )  # fmt: skip

    def train(self):
        data = torch.utils.data.DataLoader(torch.ones(40, 16), batch_size=2)
        self.trainer.fit(
            self.model, data, ckpt_path="last.ckpt" if given.resume else None
        )
        if not given.resume:
            self.trainer.save_checkpoint("last.ckpt")
        return self.trainer.global_step

    def logged(self):
        rows = [
            row for row in self.trainer.logger.experiment.metrics if "fp8/step" in row
        ]
        self.trainer.logger.save()
        written = Path("logs").rglob(f"version_{self.number}/metrics.csv")
        rows = rows or [row for path in written for row in csv.DictReader(path.open())]
        return [
            {**r, "fp8/step": float(r["fp8/step"])} for r in rows if r.get("fp8/step")
        ]


torch.manual_seed(0)
start = Transformers if given.framework == "transformers" else Lightning
if given.callbacks is None:
    print(*(start((), number).train() for number in range(1 + given.twice)))
for number, options in enumerate(map(json.loads, given.callbacks or ())):
    if given.framework == "transformers":
        from fp8verify.integrations.transformers import Fp8VerifyCallback
    else:
        from fp8verify.integrations.lightning import Fp8VerifyCallback
    training = start((Fp8VerifyCallback(**options),), number)
    training.train()
    if "trace_dir" in options:
        training.train()  # again: what is recorded stays as it is
    print("LOGGED", json.dumps(training.logged()))
