"""U-Net (Ronneberger et al., MICCAI'15): down to few places with many channels and up again, with skips between equals.

Departs from the paper where later ones do: 3 x 3 convolutions are padded, so that every level is twice the next and
skips need no cropping, and each is followed by a batch norm. Trained as there with one large image a step, for which
1024 x 1024 stands: 572 does not halve four times.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import Entry, Input


class Double(nn.Module):
    """Two 3 x 3 convolutions, each with batch norm and ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(x)))


class UNet(nn.Module):
    """Levels of twice the channels and half the height and width each; classes of every pixel."""

    def __init__(self, inputs: int = 1, width: int = 64, levels: int = 5, classes: int = 2) -> None:
        super().__init__()
        channels = [width << level for level in range(levels)]
        pairs = list(pairwise(channels))
        self.top = Double(inputs, width)
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(Double(a, b) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in reversed(pairs))
        self.join = nn.ModuleList(Double(2 * a, a) for a, _ in reversed(pairs))
        self.scores = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Images [batch, inputs, height, width], labels [batch, height, width]. Mean cross entropy of all pixels."""
        x = self.top(images)
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(self.pool(x))
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat((skips.pop(), up(x)), 1))
        return F.cross_entropy(self.scores(x), labels)


ENTRIES = {
    "unet": Entry(
        UNet,
        {"resolution": 1024},
        {"width": 4, "levels": 3, "classes": 3, "resolution": 16},
        {
            "images": Input(("inputs", "resolution", "resolution")),
            "labels": Input(("resolution", "resolution"), integer=True),
        },
        batch=1,
        dtype="float32",
        optimizer="sgd",
        machine="dgx-a100",
    ),
}
