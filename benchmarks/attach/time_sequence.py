"""pytorch/examples time_sequence_prediction/train.py at 77f55b912142 (BSD-3-Clause): LBFGS.

The loop of that file, without its drawing: one step of the optimizer calls the closure up to 20
times.
"""

import numpy as np
import torch
from torch import nn


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1, self.lstm2 = nn.LSTMCell(1, 8), nn.LSTMCell(8, 8)
        self.linear = nn.Linear(8, 1)

    def forward(self, values, future=0):
        outputs = []
        zeros = torch.zeros(len(values), 8, dtype=torch.double)
        first = second = (zeros, zeros)
        for value in values.split(1, dim=1):
            first = self.lstm1(value, first)
            second = self.lstm2(first[0], second)
            outputs.append(self.linear(second[0]))
        for _ in range(future):
            first = self.lstm1(outputs[-1], first)
            second = self.lstm2(first[0], second)
            outputs.append(self.linear(second[0]))
        return torch.cat(outputs, dim=1)


if __name__ == "__main__":
    np.random.seed(0)
    torch.manual_seed(0)
    waves = np.sin((np.arange(20) + np.random.randint(-80, 80, 9).reshape(9, 1)) / 5.0)
    data = torch.from_numpy(waves.astype("float64"))
    values, target = data[3:, :-1], data[3:, 1:]
    test_values, test_target = data[:3, :-1], data[:3, 1:]
    seq = Sequence()
    seq.double()
    criterion = nn.MSELoss()
    optimizer = torch.optim.LBFGS(seq.parameters(), lr=0.8)
    for i in range(6):
        print("STEP: ", i)

        def closure():
            optimizer.zero_grad()
            loss = criterion(seq(values), target)
            print("loss:", loss.item())
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            pred = seq(test_values, future=5)
            print("test loss:", criterion(pred[:, :-5], test_target).item())
