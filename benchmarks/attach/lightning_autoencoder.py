"""Lightning-AI/pytorch-lightning examples/pytorch/basics/autoencoder.py at 7f0c3436cd3f.

Under Apache-2.0. The module, the data module and the callback of that file on vectors of 64, with
fit and test.
"""

import lightning
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split


class ImageSampler(lightning.Callback):
    def on_train_epoch_end(self, trainer, module):
        images, _ = next(iter(trainer.datamodule.val_dataloader()))
        with torch.no_grad():
            module.eval()
            generated = module(images)
            module.train()
        torch.save(generated, f"grid_generated_{trainer.current_epoch}.pt")


class LitAutoEncoder(lightning.LightningModule):
    def __init__(self, hidden_dim=32, learning_rate=10e-3):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(
            nn.Linear(64, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, 3)
        )
        self.decoder = nn.Sequential(
            nn.Linear(3, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, 64)
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def training_step(self, batch, _):
        return self._common_step(batch, "train")

    def validation_step(self, batch, _):
        self._common_step(batch, "val")

    def test_step(self, batch, _):
        self._common_step(batch, "test")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.learning_rate)

    def _common_step(self, batch, stage):
        x, _ = batch
        loss = functional.mse_loss(x, self(x))
        self.log(f"{stage}_loss", loss, on_step=True)
        return loss


class MyDataModule(lightning.LightningDataModule):
    def __init__(self):
        super().__init__()
        whole = TensorDataset(torch.randn(80, 64), torch.arange(80))
        generator = torch.Generator().manual_seed(42)
        self.train, self.val = random_split(whole, [64, 16], generator=generator)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=16)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=16)

    test_dataloader = val_dataloader


if __name__ == "__main__":
    lightning.seed_everything(1234)
    model, data = LitAutoEncoder(), MyDataModule()
    trainer = lightning.Trainer(
        callbacks=[ImageSampler()],
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        log_every_n_steps=1,
        enable_progress_bar=False,
    )
    trainer.fit(model, datamodule=data)
    trainer.test(model, datamodule=data)
    print(trainer.global_step)
