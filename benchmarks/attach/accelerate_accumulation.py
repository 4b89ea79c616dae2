"""huggingface/accelerate examples/by_feature/gradient_accumulation.py at 16cb6eb80dd9 (Apache-2.0).

The loop of `training_function` there on a model of three layers.
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
set_seed(42)
data = TensorDataset(torch.randn(64, 16), torch.arange(64) % 2)
train_dataloader, eval_dataloader = (
    DataLoader(data, 8, shuffle=True),
    DataLoader(data, 8),
)
model = torch.nn.Sequential(
    torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2)
)
model = model.to(accelerator.device)
optimizer = AdamW(params=model.parameters(), lr=2e-3)
lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=16)
model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
)
for epoch in range(2):
    model.train()
    for inputs, labels in train_dataloader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
    model.eval()
    correct = 0
    for inputs, labels in eval_dataloader:
        with torch.no_grad():
            predictions = model(inputs).argmax(dim=-1)
        predictions, references = accelerator.gather_for_metrics((predictions, labels))
        correct += (predictions == references).sum().item()
    accelerator.print(
        f"epoch {epoch}:", {"accuracy": correct / len(data), "loss": loss.item()}
    )
accelerator.end_training()
