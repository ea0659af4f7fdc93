"""Functions of a tensor that between them call what is captured as known operators, and a module around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita.model.graph.pcg import PCG, Node

X = torch.zeros(4, 3, 4)
LABELS = torch.zeros(4, 3, dtype=torch.int64)


class Lambda(nn.Module):
    """A linear layer, then any function of its output."""

    def __init__(self, function: Callable[..., Any], width: int = 6) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.function = function

    def forward(self, x: Tensor, *more: Tensor) -> Any:
        return self.function(self.first(x), *more)


def of(graph: PCG, op: str) -> Node:
    """The only node with an operator."""
    (index,) = graph.of(op)
    return graph.nodes[index]


def split_and_join(x: Tensor) -> Tensor:
    a, b, c = x.chunk(3, -1)
    d, e = x.split([2, 4], -1)
    return torch.cat((a * b, torch.stack((c, d)).sum(0), e[..., ::2]), -1)


def masked(x: Tensor) -> Tensor:
    keep = torch.ones(3, 6, dtype=torch.bool).tril(1)
    y = x.masked_fill(~keep, -1.0)
    z = torch.where(x > 0, x, x * 0.5) + torch.where(keep & (x < 1), y, 0.0)
    return z.triu().maximum(y).minimum(z + 1)


def shaped(x: Tensor) -> Tensor:
    y = x.unsqueeze(1).expand(-1, 2, -1, -1).transpose(1, 2).contiguous().flatten(2)
    z = x[:, None].repeat(1, 2, 1, 1).movedim(1, -1).mT.reshape(4, 3, 12)
    w = x.repeat_interleave(2, 0).narrow(0, 2, 4).unflatten(-1, (2, 3)).permute(0, 1, 3, 2)[:, :, 1, -1:]
    return y + z + w.squeeze().unsqueeze(-1) + x.select(1, 0).unbind(-1)[2][:, None, None]


def scalars(x: Tensor) -> Tensor:
    y = 1 - x + 2 * x / 3 - torch.rsub(x, 2, alpha=3) + torch.add(x, x * x, alpha=0.5)
    return (y.clamp(-1, 2) + x.abs().clamp_min(0.1).log()) ** 2 + 2.0 ** (-x) + x.square().add(1).sqrt().reciprocal()


def activations(x: Tensor) -> Tensor:
    y = F.gelu(x) + F.gelu(x, approximate="tanh") + F.silu(x) + F.elu(x, 0.7) + F.leaky_relu(x, 0.2) + F.softplus(x)
    return y * torch.tanh(x) + torch.sigmoid(x) * torch.erf(x) + x.exp().rsqrt() + x.sin() * x.cos() + (-x).relu()


def reduced(x: Tensor) -> tuple[Tensor, ...]:
    return (
        x.softmax(-1) + x.log_softmax(1),
        x.mean((0, -1), keepdim=True) + x.sum(1, keepdim=True),
        x.amax(-1),
        x.max(1).values,
        x.var(-1) + x.std(1, unbiased=False).mean(-1, keepdim=True),
        x.mean() * x.max(),
    )


def inplace(x: Tensor) -> Tensor:
    y = torch.zeros(4, 3, 6) + x
    y.mul_(2).add_(1)
    return F.relu(y, inplace=True)


def no_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().mean()
    return x / scale * x.detach()


def tables(x: Tensor) -> Tensor:
    weights = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    steps = torch.arange(0, 6, 2, dtype=torch.float64).repeat(2) / 3
    return x * weights + steps.to(x.dtype) + torch.full((6,), 0.25) + torch.zeros_like(x) + x.new_ones(6)


def products(x: Tensor) -> Tensor:
    y = torch.baddbmm(x @ x.mT, x, x.mT, beta=0.5, alpha=2)
    return torch.bmm(y, x) + x.matmul(torch.mm(x[0].t(), x[1])) @ torch.eye(6, dtype=x.dtype).mul(2)


def looked_up(x: Tensor) -> Tensor:
    ids = torch.tensor([2, 0, 1])
    y = x.sum(0)[ids] + x[0].index_select(0, ids)
    z = x.log_softmax(-1).gather(-1, torch.tensor([5, 0, 3]).view(1, 3, 1).expand(4, 3, 1))
    return y * F.one_hot(ids, 6) + z + x.cumsum(1)


def indexed(x: Tensor) -> tuple[Tensor, ...]:
    ids, back = torch.tensor([[2, 0], [1, 1]]), torch.tensor([-1, 0, -2])
    some = torch.tensor([[[1], [0], [2]], [[2], [1], [0]]])
    last = torch.tensor(-1)
    return (
        x[:, ids]
        + x[:, back][:, :1, None]
        + x.index_select(1, ids[0])[:, :, None] * x[:, last].unsqueeze(1).unsqueeze(1),
        x[:, ids, ids + 1] * x[:2, ids[0], ids[:, :1]].sum(),
        torch.take(x, ids)
        + torch.take_along_dim(x, some[:1], -1)[0, 0]
        + torch.take_along_dim(x, some.flatten(), None)[0],
        x.gather(2, some) * torch.where((x > 0).gather(2, some), 2.0, 0.5),
    )


def scattered(x: Tensor) -> tuple[Tensor, ...]:
    """Sums, means, extremes and replacements at ids, of entries and of whole rows."""
    zeros, at = torch.zeros(4, 5, 6, dtype=x.dtype), torch.tensor([4, 0, 4])
    places = at.view(1, 3, 1).expand_as(x)
    both = torch.tensor([0, 2]), torch.tensor([1, -1])
    sums = zeros.scatter_add(1, places, x) + zeros.index_add(1, at, x, alpha=2)
    means = zeros.scatter_reduce(1, places, x, "mean", include_self=False)
    means = means + sums.index_reduce(1, at, x, "mean") + sums.index_reduce(1, at, x, "mean", include_self=False)
    extremes = sums.scatter_reduce(1, places, x, "amax") * sums.index_reduce(1, at, x, "prod", include_self=False)
    written = sums.index_copy(1, at[:2], x[:, :2]).index_fill(2, at[1:], 0.5)
    written = written.scatter(2, at.view(1, 1, 3).expand(4, 5, 3), 3)
    y, z = sums.clone(), x.clone()
    y[:, both[0], both[1]] = x[:, 0, :2]
    y[both[0], :, both[1]] += x[0, 0, :5]
    z[x[..., 0] > 0] = 0.5
    written = written.index_fill(2, at, x[0, 0, 0])  # an id twice
    return sums, means + extremes, written, y, z.masked_scatter(x[..., :1] > 0, x.exp())


def ordered(x: Tensor) -> tuple[Tensor, ...]:
    """The largest and where they are; what is broadcast in a look-up stays as narrow as it is."""
    top, where = x.topk(2)
    least = x.topk(1, 1, largest=False).indices
    rows = x.exp().cumsum(-1)
    places = torch.searchsorted(rows, x[..., :2].abs())
    low, at = x.sort(1, descending=True)
    most, best = x.relu().max(1)  # of equal entries one has the gradient
    least_of, worst = x.min(-1, keepdim=True)
    running = x.cummax(2).values * x.relu().cummin(1).values + x.logcumsumexp(1) * x.kthvalue(2, 1, True).values
    middle = x.median(-1, keepdim=True).values * x.median() + x.relu().max() + x.relu().amin((0, 1)) + x.min()
    return (
        low * x.argsort(-1) + at * least_of + worst + (most * best * x[:, 0].argmin(0, True)).unsqueeze(1),
        running * middle * x.argmax() + torch.bucketize(x, x[0, 0].detach().sort().values, right=True),
        top * where + x.gather(-1, where[:, :1].expand(-1, 3, -1)) + rows.gather(-1, places.clamp(max=5)),
        x.take_along_dim(least, 1) + x[:1].take_along_dim(least.expand(-1, 3, -1), 1) * x[:, :, where[0, 0]].sum(),
    )


def moved(x: Tensor) -> tuple[Tensor, ...]:
    y = F.pad(x, (1, 2)) + F.pad(x, (0, 3), value=0.5) + F.pad(x, (2, 1), mode="reflect")
    z = F.pad(x, (1, 1), mode="circular") + F.pad(x, (2, 0), mode="replicate") + F.pad(x, (3, -1, 0, 0))
    return (
        y,
        z,
        x.roll((1, 2), (1, 2)) + x.roll(5) * x.flip(1, -1) + x.fliplr() + torch.stack((x, -x), 1).flipud()[:, 0],
    )


def accumulated(x: Tensor) -> tuple[Tensor, ...]:
    y = F.normalize(x, dim=1) * x.logsumexp(-1, keepdim=True) + x.norm(dim=(0, 2), keepdim=True) + x.norm(p=3)
    return y * torch.logsumexp(x, (0, 1)) + x.cumprod(1) + torch.linalg.vector_norm(x, 1, -1, True)


def contracted(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.einsum("bsi,bti->bst", x, x.exp())
    z = torch.einsum("...ij,...kj,kl", x, x[0], x[0])
    w = torch.einsum("i...,i...", x[0], x[1]) + torch.einsum("bsi,bti,btj,cj->cs", x, x, x, x[0]).mean()
    return torch.einsum("bst, bsi -> tbi", y, x) + torch.einsum("bsi->bi", x), z * torch.einsum("bsi->sbi", x).sum(), w


FUNCTIONS = [
    split_and_join,
    masked,
    shaped,
    scalars,
    activations,
    reduced,
    inplace,
    no_gradient,
    tables,
    products,
    looked_up,
    indexed,
    scattered,
    ordered,
    moved,
    accumulated,
    contracted,
]


class Checked(nn.Module):
    """Checks of values that only raise or warn; in this file because pytest rewrites those in its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        assert ids.min() >= 0 and x.isfinite().all(), f"ids from {ids.min().item()}"
        assert not (ids < 0).any().item()
        if ids is not None and (ids.max() >= 100 or x.isnan().any()):
            raise ValueError("too large")
        if (x == 0).all():
            print("only zeros")
        if (ids < 100).all():
            x = x + 0
        else:
            raise ValueError("too large")
        return self.linear(x)


class Chosen(Checked):
    """What is computed depends on values."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.linear(x)
        return self.linear(-x)


class Warned(Checked):
    """A branch only prints, but the other one computes."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        if x.sum() > 0:
            print("large")
        else:
            x = -x
        return self.linear(x)


class Caught(Checked):
    """What is raised is handled here, and so chooses what is computed."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        try:
            if x.sum() > 0:
                raise ValueError
        except ValueError:
            x = -x
        return self.linear(x)
