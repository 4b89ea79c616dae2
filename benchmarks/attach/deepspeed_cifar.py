"""deepspeedai/DeepSpeedExamples training/cifar/cifar10_deepspeed.py at 45b4b7156c87 (Apache-2.0).

The loop of `main` there on the CPU, on images of 8 x 8: the engine owns optimizer, schedule and
loader.
"""

import deepspeed
import torch
from torch import nn
from torch.nn import functional

config = {
    "train_batch_size": 16,
    "steps_per_print": 2000,
    "optimizer": {"type": "Adam", "params": {"lr": 0.001, "torch_adam": True}},
    "scheduler": {
        "type": "WarmupLR",
        "params": {
            "warmup_min_lr": 0,
            "warmup_max_lr": 0.001,
            "warmup_num_steps": 1000,
        },
    },
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 0},
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.pool = nn.Conv2d(3, 6, 3), nn.MaxPool2d(2, 2)
        self.fc1, self.fc2 = nn.Linear(54, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = self.pool(functional.relu(self.conv1(x))).view(-1, 54)
        return self.fc2(functional.relu(self.fc1(x)))


torch.manual_seed(0)
deepspeed.init_distributed(dist_backend="gloo")
trainset = torch.utils.data.TensorDataset(
    torch.randn(64, 3, 8, 8), torch.arange(64) % 10
)
net = Net()
model_engine, optimizer, trainloader, _ = deepspeed.initialize(
    model=net,
    model_parameters=filter(lambda p: p.requires_grad, net.parameters()),
    training_data=trainset,
    config=config,
)
criterion = nn.CrossEntropyLoss()
for epoch in range(2):
    for i, (inputs, labels) in enumerate(trainloader):
        outputs = model_engine(inputs.to(torch.bfloat16))
        loss = criterion(outputs.float(), labels)
        model_engine.backward(loss)
        model_engine.step()
        print(f"[{epoch + 1}, {i + 1:5d}] loss: {loss.item():.3f}", flush=True)
print("Finished Training")
model_engine.eval()
with torch.no_grad():
    correct = sum(
        (model_engine(x.to(torch.bfloat16)).argmax(1) == y).sum().item()
        for x, y in trainloader
    )
print(f"Accuracy of the network on the 64 test images: {100 * correct / 64:.0f} %")
torch.distributed.destroy_process_group()
