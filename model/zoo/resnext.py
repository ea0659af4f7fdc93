"""ResNeXt-50 32x4d (Xie et al., CVPR'17): residual blocks whose middle convolution works in groups."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import IMAGES, unity


class Block(nn.Module):
    """Down to `width` channels, a grouped convolution, and up to `expansion` times as many, added to what came in."""

    def __init__(self, inputs: int, width: int, groups: int, stride: int, expansion: int) -> None:
        super().__init__()
        outputs = expansion * width
        self.reduce = nn.Conv2d(inputs, width, 1, bias=False)
        self.reduce_norm = nn.BatchNorm2d(width)
        self.grouped = nn.Conv2d(width, width, 3, stride, padding=1, groups=groups, bias=False)
        self.grouped_norm = nn.BatchNorm2d(width)
        self.expand = nn.Conv2d(width, outputs, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs or stride != 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.reduce_norm(self.reduce(x)))
        y = torch.relu(self.grouped_norm(self.grouped(y)))
        return torch.relu(self.expand_norm(self.expand(y)) + self.shortcut(x))


class ResNeXt(nn.Module):
    """Stages of blocks; each stage but the first halves the image, and each doubles the width of the last.

    With a width of 64, one group and an expansion of 4 it is ResNet-50 (He et al., CVPR'16), strides as torchvision's.
    """

    def __init__(
        self,
        stem: int = 64,
        blocks: tuple[int, ...] = (3, 4, 6, 3),
        width: int = 128,
        groups: int = 32,
        classes: int = 1000,
        expansion: int = 2,
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, stem, 7, stride=2, padding=3, bias=False)
        self.stem_norm = nn.BatchNorm2d(stem)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.blocks = nn.ModuleList()
        channels = stem
        for stage, count in enumerate(blocks):
            for number in range(count):
                stride = 2 if stage and not number else 1
                self.blocks.append(Block(channels, width << stage, groups, stride, expansion))
                channels = expansion * (width << stage)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.scores = nn.Linear(channels, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Images [batch, 3, height, width], labels [batch]. Mean cross entropy."""
        x = self.pool(torch.relu(self.stem_norm(self.stem(images))))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.scores(self.average(x).flatten(1)), labels)


ENTRIES = {
    "resnext-50": unity(
        ResNeXt,
        {"resolution": 224},
        {"stem": 12, "blocks": (1, 2), "width": 12, "groups": 6, "classes": 12, "resolution": 16},
        IMAGES,
        batch=64,
    ),
}
