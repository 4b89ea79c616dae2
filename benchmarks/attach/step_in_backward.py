"""pytorch/tutorials intermediate_source/optimizer_step_in_backward_tutorial.py at 2a488705e00c.

Under BSD-3-Clause. An optimizer for each parameter, which steps as soon as its gradient is there.
"""

import torch

torch.manual_seed(0)
layers = [torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16)]
model = torch.nn.Sequential(*layers)
optimizer_dict = {p: torch.optim.Adam([p], foreach=False) for p in model.parameters()}


def optimizer_hook(parameter):
    optimizer_dict[parameter].step()
    optimizer_dict[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(optimizer_hook)


def train(model):
    fake_image = torch.rand(1, 16)
    loss = model.forward(fake_image)
    loss.sum().backward()
    print(f"{loss.sum().item():.6f}")


for _ in range(6):
    train(model)
