"""Forward and backward pass in a CUDA graph that is replayed by hand; the optimizer steps outside."""

import torch

torch.manual_seed(0)
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
given = torch.randn(16, 64, device="cuda")


def backward():
    """Make gradients, which stay where they are, as graphs need it."""
    optimizer.zero_grad(set_to_none=False)
    loss = model(given).square().mean()
    loss.backward()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        backward()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = backward()
for _ in range(9):
    given.copy_(torch.randn(16, 64))
    graph.replay()
    optimizer.step()
print(f"loss {loss.item():.6f}")
