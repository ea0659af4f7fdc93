"""A rule's counterexample run in PyTorch: both sides on real tensors, every operator shard by shard.

What the parallel operators do to lists of shards is done to tensors [replicas, *shape] with the digits that say where
they are cut; every compute operator is PyTorch's own, called once for every shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F

from ...formulation.substitution.arithmetic import Real
from ...formulation.substitution.evaluate import by_shards, prepared
from ...formulation.substitution.moves import ALONG_REPLICAS, MOVES
from ...formulation.substitution.rule import REPLICA, Apply, Rule
from ...formulation.substitution.text import parse_rule
from ...formulation.substitution.values import ParallelValue
from ...model.errors import PartitaError
from ...solvers.proof.verdict import Verdict

Tensor = torch.Tensor
Given = Mapping[str, Any]


def to_torch(rule: Rule, verdict: Verdict) -> float:
    """How far the two sides are apart in PyTorch on the counterexample of a verdict; infinite where shapes differ.

    Raises PartitaError where the verdict has none, or an operator has no call here.
    """
    if verdict.counterexample is None:
        raise PartitaError(f"rule {rule.name!r} is {verdict.verdict}: there is no counterexample to run")
    example = verdict.counterexample
    shown = parse_rule(example.rule)
    inputs = {
        t.name: ParallelValue.of(np.asarray(example.inputs[t.name]), tuple(int(d) for d in t.degrees))
        for t in shown.inputs
    }
    source, target = (_run(side, inputs) for side in (shown.source, shown.target))
    apart = 0.0
    for s, t in shown.outputs:
        a, b = source[s], target[t]
        if a.state != b.state:
            return float("inf")
        apart = max(apart, float(np.nanmax(np.abs(a.array - b.array), initial=0.0)))
    return apart


def _run(side: Sequence[Apply], inputs: Mapping[str, ParallelValue]) -> dict[str, ParallelValue]:
    values = dict(inputs)
    for apply in side:
        results = _applied(apply, [values[name] for name in apply.inputs])
        values |= dict(zip(apply.outputs, results, strict=True))
    return values


def _applied(apply: Apply, values: list[ParallelValue]) -> list[ParallelValue]:
    given, arithmetic = dict(apply.attributes), Real()
    if apply.op in MOVES or (apply.op in ALONG_REPLICAS and given.get("dim") == REPLICA):
        return prepared(apply.op, given, values, arithmetic)(values)
    if apply.op not in CALLS:
        raise PartitaError(f"no call of the operator {apply.op} in PyTorch; there is one of {', '.join(sorted(CALLS))}")
    _, tasks, cuts, joins = by_shards(apply.op, given, values, arithmetic)
    shards = [np.array(cut(value.array)) for cut, value in zip(cuts, values, strict=True)]
    whole: dict[str, Any] = {**given, "whole": values[0].shape}
    results: list[list[Tensor]] = []
    for task in range(int(np.prod(tasks.sizes))):
        whole["part"] = {letter: int(tasks.position(letter)[task]) for letter in ("s", "v")}
        made = CALLS[apply.op]([torch.from_numpy(s)[task] for s in shards], whole)
        name = given.get("activation", "none")
        made = made if name in ("none", None) else CALLS[str(name)]([cast(Tensor, made)], {})
        results.append([made] if isinstance(made, Tensor) else list(made))
    return [join(torch.stack(parts).numpy()) for join, parts in zip(joins, zip(*results, strict=True), strict=True)]


Call = Callable[[list[Tensor], Given], "Tensor | Sequence[Tensor]"]


def _dims(given: Given) -> tuple[int, ...]:
    dims = given["dims"]
    return tuple(dims) if isinstance(dims, tuple) else (dims,)


def _mean(x: list[Tensor], given: Given) -> Tensor:
    """Divided by the whole count, also of a shard."""
    count = int(np.prod([given["whole"][d] for d in _dims(given)]))
    return x[0].sum(_dims(given), keepdim=bool(given.get("keepdim"))) / count


def _conv(x: list[Tensor], given: Given) -> Tensor:
    calls: tuple[Callable[..., Tensor], ...] = (F.conv1d, F.conv2d, F.conv3d)
    options = {key: given[key] for key in ("stride", "padding", "dilation") if key in given}
    groups = x[0].shape[1] // x[1].shape[1] if given.get("groups", 1) != 1 else 1  # of a shard, its share
    return calls[x[0].ndim - 3](*x, groups=groups, **options)


def _split(x: list[Tensor], given: Given) -> Sequence[Tensor]:
    """In a shard every part has its share."""
    dim = given["dim"]
    share = given["whole"][dim] // x[0].shape[dim]
    sizes = given.get("sizes") or (given["whole"][dim] // given["parts"],) * given["parts"]
    return torch.split(x[0], [size // share for size in sizes], dim)


def _layer_norm(x: list[Tensor], given: Given) -> Tensor:
    shape = x[0].shape[x[0].ndim - given.get("normalized", 1) :]
    w, bias = (*x[1:], None, None)[:2]
    return F.layer_norm(x[0], shape, w, bias, given.get("eps", 1e-5))


def _view(x: list[Tensor], given: Given) -> Tensor:
    """A shard keeps its share of the one dim that is cut."""
    shape = list(given["shape"])
    share = int(np.prod(given["whole"])) // x[0].numel()
    if share > 1:
        cut = next(d for d, (n, m) in enumerate(zip(given["whole"], x[0].shape, strict=True)) if n != m)
        before = int(np.prod(given["whole"][:cut]))
        place = next(k for k in range(len(shape)) if int(np.prod(shape[:k])) == before and shape[k] > 1)
        shape[place] //= share
    return x[0].reshape(shape)


def _slice(x: list[Tensor], given: Given) -> Tensor:
    dim = given["dim"]
    stop = given.get("stop", x[0].shape[dim])
    places = torch.arange(given.get("start", 0), stop, given.get("step", 1))
    return x[0].index_select(dim, places)


def _attention(x: list[Tensor], given: Given) -> Tensor:
    """A shard of queries sees the keys up to its own places."""
    mask = x[3] if len(x) > 3 else None
    if given.get("causal"):
        rows, columns = x[0].shape[-2], x[1].shape[-2]
        seen = torch.ones(rows, columns, dtype=torch.bool).tril(given["part"]["s"] * rows)
        mask = seen if mask is None else mask.masked_fill(~seen, float("-inf"))
    return F.scaled_dot_product_attention(x[0], x[1], x[2], mask, scale=given.get("scale"))


def _embedding(x: list[Tensor], given: Given) -> Tensor:
    """A shard of rows gives zeros for the ids of others."""
    ids = x[1].long() - given["part"]["v"] * x[0].shape[0]
    inside = (ids >= 0) & (ids < x[0].shape[0])
    rows: Tensor = F.embedding(torch.where(inside, ids, 0), x[0])
    kept: Tensor = rows * inside[..., None]
    return kept


CALLS: Mapping[str, Call] = {
    "add": lambda x, _: x[0] + x[1],
    "sub": lambda x, _: x[0] - x[1],
    "mul": lambda x, _: x[0] * x[1],
    "div": lambda x, _: x[0] / x[1],
    "neg": lambda x, _: -x[0],
    "scale": lambda x, given: x[0] * given["value"],
    "shift": lambda x, given: x[0] + given["value"],
    "relu": lambda x, _: F.relu(x[0]),
    "gelu": lambda x, given: F.gelu(x[0], approximate=given.get("approximate", "none")),
    "silu": lambda x, _: F.silu(x[0]),
    "tanh": lambda x, _: torch.tanh(x[0]),
    "sigmoid": lambda x, _: torch.sigmoid(x[0]),
    "exp": lambda x, _: torch.exp(x[0]),
    "log": lambda x, _: torch.log(x[0]),
    "sqrt": lambda x, _: torch.sqrt(x[0]),
    "rsqrt": lambda x, _: torch.rsqrt(x[0]),
    "abs": lambda x, _: torch.abs(x[0]),
    "pow": lambda x, given: x[0] ** given["exponent"],
    "reciprocal": lambda x, _: torch.reciprocal(x[0]),
    "maximum": lambda x, _: torch.maximum(x[0], x[1]),
    "minimum": lambda x, _: torch.minimum(x[0], x[1]),
    "contiguous": lambda x, _: x[0].contiguous(),
    "matmul": lambda x, _: x[0] @ x[1],
    "linear": lambda x, _: F.linear(*x),
    "linear_relu": lambda x, _: F.relu(F.linear(*x)),
    "einsum": lambda x, given: torch.einsum(given["equation"], *x),
    "softmax": lambda x, given: torch.softmax(x[0], given.get("dim", -1)),
    "log_softmax": lambda x, given: torch.log_softmax(x[0], given.get("dim", -1)),
    "sum": lambda x, given: x[0].sum(_dims(given), keepdim=bool(given.get("keepdim"))),
    "mean": _mean,
    "amax": lambda x, given: x[0].amax(_dims(given), keepdim=bool(given.get("keepdim"))),
    "cumsum": lambda x, given: torch.cumsum(x[0], given["dim"]),
    "permute": lambda x, given: x[0].permute(_dims(given)),
    "transpose": lambda x, _: x[0].mT,
    "view": _view,
    "cat": lambda x, given: torch.cat(x, given["dim"]),
    "split": _split,
    "slice": _slice,
    "conv": _conv,
    "pad": lambda x, given: F.pad(x[0], given["pad"], given.get("mode", "constant"), given.get("value", 0)),
    "layer_norm": _layer_norm,
    "attention": _attention,
    "embedding": _embedding,
    "avg_pool": lambda x, given: F.avg_pool2d(x[0], given["kernel_size"]),
    "max_pool": lambda x, given: F.max_pool2d(x[0], given["kernel_size"]),
}
