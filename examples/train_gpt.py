"""Train a small GPT on the project's documentation by a plan, and beside it the module alone: the losses agree.

    partita plan examples/train_gpt.py:gpt --machine cpu --nodes 4 --batch 32 --dtype float32 -o plan
    torchrun --nproc-per-node 4 examples/train_gpt.py plan

The second command needs only torch. Every rank reads its own samples from a DataLoader; rank 0 then trains the module
alone, on the same samples from the same weights, and prints both losses.
"""

import importlib.util
import sys
from collections.abc import Sequence
from itertools import chain, repeat
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

LENGTH, WIDTH, HEADS, LAYERS = 64, 64, 4, 2
BYTES = 256  # the vocabulary
STEPS = 200


class Block(nn.Module):
    """Attention to what came before, then a perceptron, each with a norm in front."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm(x))))


class GPT(nn.Module):
    """Predicts the next byte. Returns the scores and the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(BYTES, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.scores = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, BYTES, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tokens(ids) + self.positions(torch.arange(LENGTH, device=ids.device))
        for block in self.blocks:
            x = block(x)
        scores = self.scores(self.norm(x))
        return scores, F.cross_entropy(scores.flatten(0, 1), labels.flatten())


def gpt() -> tuple[nn.Module, dict[str, Tensor]]:
    """The factory for the command line."""
    ids = torch.zeros(2, LENGTH, dtype=torch.int64)
    return GPT(), {"ids": ids, "labels": ids}


def samples() -> list[dict[str, Tensor]]:
    """The documentation in pieces of LENGTH bytes, each with the bytes that follow."""
    pages = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
    text = torch.tensor(list(b"".join(page.read_bytes() for page in pages)))
    count = (len(text) - 1) // LENGTH
    ids, labels = text[: count * LENGTH].view(count, LENGTH), text[1:][: count * LENGTH].view(count, LENGTH)
    return [{"ids": x, "labels": y} for x, y in zip(ids, labels, strict=True)]


def by_plan(program: ModuleType, built: tuple[Any, ...], data: Sequence[Any], steps: int) -> list[float]:
    """The losses of training what the plan's program built; every rank calls this."""
    mesh, model, optimizer = built
    loader = DataLoader(data, batch_sampler=program.Samples(mesh, len(data)))  # type: ignore[arg-type]
    numbered = zip(range(steps), chain.from_iterable(repeat(loader)), strict=False)  # epoch after epoch
    return [float(program.train_step(model, optimizer, batch, mesh, step, local=True)) for step, batch in numbered]


def alone(program: ModuleType, mesh: Any, module: nn.Module, data: Sequence[Any], steps: int) -> list[float]:
    """The losses of training the module in one process, with the program's order of samples and learning rates."""
    order = program.Samples(mesh, len(data))
    order.own = torch.arange(program.BATCH)  # this process reads all samples
    matrices = [p for p in module.parameters() if p.dim() > 1]
    others = [p for p in module.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, 1e-3, betas=(0.9, 0.95), eps=1e-8)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: program.learning_rate(step, 10, 1000))
    losses = []
    loader = DataLoader(data, batch_sampler=order)  # type: ignore[arg-type]
    for _, batch in zip(range(steps), chain.from_iterable(repeat(loader)), strict=False):
        optimizer.zero_grad()
        _, loss = module(**batch)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def program_in(folder: str) -> ModuleType:
    """The module `program.py` of a folder."""
    spec = importlib.util.spec_from_file_location("program", Path(folder) / "program.py")
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


if __name__ == "__main__":
    program = program_in(sys.argv[1])
    torch.manual_seed(0)
    module, data = GPT(), samples()
    built = program.build(module.state_dict())
    found = by_plan(program, built, data, STEPS)
    if dist.get_rank() == 0:
        print("step  by the plan  alone")
        for step, losses in enumerate(zip(found, alone(program, built[0], module, data, STEPS), strict=True)):
            if step % 20 == 0 or step == STEPS - 1:
                print(f"{step:4}  {losses[0]:11.4f}  {losses[1]:.4f}")
    dist.barrier()
    dist.destroy_process_group()
