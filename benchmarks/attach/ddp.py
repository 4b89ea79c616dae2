"""pytorch/examples distributed/ddp-tutorial-series/multigpu_torchrun.py at 77f55b912142.

Under BSD-3-Clause. The loop of that file on the CPU: DDP, a DistributedSampler, a snapshot that a
restart would load.
"""

import os

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model, train_data, optimizer, save_every, snapshot_path):
        self.rank = int(os.environ["LOCAL_RANK"])
        self.train_data, self.optimizer = train_data, optimizer
        self.save_every, self.snapshot_path = save_every, snapshot_path
        self.epochs_run = 0
        if os.path.exists(snapshot_path):
            snapshot = torch.load(snapshot_path)
            model.load_state_dict(snapshot["MODEL_STATE"])
            self.epochs_run = snapshot["EPOCHS_RUN"]
        self.model = DistributedDataParallel(model)

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = functional.mse_loss(self.model(source), targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def _run_epoch(self, epoch):
        size = len(next(iter(self.train_data))[0])
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            loss = self._run_batch(source, targets)
        if self.rank == 0:  # lines of two ranks come in no order
            steps = f"Batchsize: {size} | Steps: {len(self.train_data)}"
            print(
                f"[{self.rank}] Epoch {epoch} | {steps} | loss {loss:.6f}", flush=True
            )

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self._run_epoch(epoch)
            if self.rank == 0 and epoch % self.save_every == 0:
                state = {
                    "MODEL_STATE": self.model.module.state_dict(),
                    "EPOCHS_RUN": epoch,
                }
                torch.save(state, self.snapshot_path)
                print(
                    f"Epoch {epoch} | Snapshot saved at {self.snapshot_path}",
                    flush=True,
                )


if __name__ == "__main__":
    init_process_group(backend="gloo")
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(128, 20), torch.randn(128, 1))
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, shuffle=False, sampler=sampler)
    Trainer(model, loader, optimizer, 1, "snapshot.pt").train(2)
    destroy_process_group()
