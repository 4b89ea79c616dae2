"""pytorch/ao docs/source/eager_tutorials/pretraining.rst at 36027d82d1ad (BSD-3-Clause): float8.

The script of its section on the conversion API, emulated on a CPU.
"""

import torch
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

torch.manual_seed(0)
m = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 32), nn.Linear(32, 1)).bfloat16()
x = torch.randn(64, 64, dtype=torch.bfloat16)
optimizer = torch.optim.AdamW(m.parameters(), lr=1e-3)


def module_filter_fn(mod, fqn):
    if fqn == "1":
        return False
    return not (
        isinstance(mod, nn.Linear) and (mod.in_features % 16 or mod.out_features % 16)
    )


config = Float8LinearConfig.from_recipe_name("tensorwise")
object.__setattr__(config, "emulate", True)
convert_to_float8_training(m, config=config, module_filter_fn=module_filter_fn)
m = torch.compile(m, backend="eager")
for _ in range(10):
    optimizer.zero_grad()
    output = m(x)
    loss = nn.functional.mse_loss(output, torch.ones_like(output))
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
torch.save(
    {"model": m.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.pth"
)
