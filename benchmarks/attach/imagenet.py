"""pytorch/examples imagenet/main.py at 77f55b912142 (BSD-3-Clause): meters, a best checkpoint.

The loop of that file on a network of two convolutions.
"""

import shutil
import time

import torch
from torch import nn


class AverageMeter:
    def __init__(self, name):
        self.name, self.val, self.sum, self.count = name, 0, 0, 0

    def update(self, val, n=1):
        self.val, self.sum, self.count = val, self.sum + val * n, self.count + n

    def __str__(self):
        return f"{self.name} {float(self.val):.4f} ({float(self.sum) / self.count:.4f})"


def accuracy(output, target, topk):
    with torch.no_grad():
        _, found = output.topk(max(topk), 1, True, True)
        correct = found.t().eq(target.view(1, -1).expand_as(found.t()))
        right = [correct[:k].reshape(-1).float().sum(0, keepdim=True) for k in topk]
        return [count.mul_(100.0 / len(target)) for count in right]


def train(loader, model, criterion, optimizer, epoch):
    losses, top1, top5 = (
        AverageMeter("Loss"),
        AverageMeter("Acc@1"),
        AverageMeter("Acc@5"),
    )
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(loader):
        output = model(images)
        loss = criterion(output, target)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        losses.update(loss.item(), images.size(0))
        top1.update(acc1[0], images.size(0))
        top5.update(acc5[0], images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        took, end = time.time() - end, time.time()
        meters = f"{losses}\t{top1}\t{top5}"
        print(
            f"Epoch: [{epoch}][{i + 1}/{len(loader)}]\tTime {took:.3f} seconds\t{meters}"
        )


def validate(loader, model, criterion):
    top1 = AverageMeter("Acc@1")
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            output = model(images)
            criterion(output, target)
            top1.update(accuracy(output, target, topk=(1, 5))[0][0], images.size(0))
    print(f" *   {top1}")
    return top1.sum / top1.count


def main():
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(
        torch.randn(64, 3, 8, 8), torch.arange(64) % 10
    )
    train_loader = torch.utils.data.DataLoader(data, 16, shuffle=True)
    val_loader = torch.utils.data.DataLoader(data, 16)
    layers = (
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(288, 10),
    )
    model = torch.nn.DataParallel(nn.Sequential(*layers))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(
        model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    best_acc1 = 0
    for epoch in range(2):
        train(train_loader, model, criterion, optimizer, epoch)
        acc1 = validate(val_loader, model, criterion)
        scheduler.step()
        state = {
            "epoch": epoch + 1,
            "state_dict": model.state_dict(),
            "best_acc1": best_acc1,
        }
        torch.save({**state, "optimizer": optimizer.state_dict()}, "checkpoint.pt")
        if acc1 > best_acc1:
            best_acc1 = acc1
            shutil.copyfile("checkpoint.pt", "model_best.pt")


if __name__ == "__main__":
    main()
