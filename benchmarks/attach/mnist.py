"""pytorch/examples mnist/main.py at 77f55b912142 (BSD-3-Clause): Adadelta, a test pass, StepLR.

The loop of that file on images of 12 x 12; its loader's workers are those it has on a GPU.
"""

import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import StepLR


class Digits(torch.utils.data.Dataset):
    def __init__(self, size):
        self.images = torch.randn(
            size, 1, 12, 12, generator=torch.Generator().manual_seed(size)
        )

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], index % 10


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, 1), nn.Conv2d(4, 8, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(128, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = functional.relu(self.conv2(functional.relu(self.conv1(x))))
        x = torch.flatten(self.dropout1(functional.max_pool2d(x, 2)), 1)
        x = self.fc2(self.dropout2(functional.relu(self.fc1(x))))
        return functional.log_softmax(x, dim=1)


def train(model, loader, optimizer, epoch):
    model.train()
    for batch, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = functional.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        done = f"{batch * len(data)}/{len(loader.dataset)} ({100.0 * batch / len(loader):.0f}%)"
        print(f"Train Epoch: {epoch} [{done}]\tLoss: {loss.item():.6f}")


def test(model, loader):
    model.eval()
    test_loss, correct = 0, 0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            test_loss += functional.nll_loss(output, target, reduction="sum").item()
            correct += (
                output.argmax(dim=1, keepdim=True).eq(target.view(-1, 1)).sum().item()
            )
    size = len(loader.dataset)
    print(
        f"\nTest set: Average loss: {test_loss / size:.4f}, Accuracy: {correct}/{size}\n"
    )


def main():
    torch.manual_seed(1)
    workers = {"num_workers": 1, "persistent_workers": True, "shuffle": True}
    train_loader = torch.utils.data.DataLoader(Digits(96), 16, **workers)
    test_loader = torch.utils.data.DataLoader(Digits(32), 16, **workers)
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, 3):
        train(model, train_loader, optimizer, epoch)
        test(model, test_loader)
        scheduler.step()
    torch.save(model.state_dict(), "mnist_cnn.pt")


if __name__ == "__main__":
    main()
