"""Plan the training of a module of one's own, from Python. Runs in seconds on a laptop; nothing is allocated."""

import torch
from torch import nn

import partita


class Perceptron(nn.Module):
    """Regression with two large matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8192, 32768, bias=False)
        self.down = nn.Linear(32768, 8192, bias=False)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.down(torch.relu(self.up(x))), target)


if __name__ == "__main__":
    with torch.device("meta"):  # shapes are enough
        model, x = Perceptron(), torch.zeros(2, 8192)
    machine = partita.Machine.load("dgx-a100", nodes=2)
    plan = partita.optimize(model, (x, x), machine, batch=256, dtype="mixed-bfloat16")
    print(plan)
    plan.save("plan")  # plan/plan.json, and plan/program.py, which needs only torch
