"""Runs a rule's counterexample in PyTorch: both sides on real tensors, every operator shard by shard.

Parallel operators act on tensors [replicas, *shape] with their digits; compute operators are PyTorch's own, called once
per shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch

from partita.formulation.substitution.arithmetic import Real
from partita.formulation.substitution.evaluate import by_shards, prepared
from partita.formulation.substitution.moves import ALONG_REPLICAS, MOVES
from partita.formulation.substitution.rule import REPLICA, RULE_OPERATORS, Apply, Rule
from partita.formulation.substitution.text import parse_rule
from partita.formulation.substitution.values import ParallelValue
from partita.model.errors import PartitaError
from partita.model.graph.interpreter import computed
from partita.model.graph.pcg import Node
from partita.model.operators.operator import operator
from partita.solvers.proof.verdict import Verdict

Tensor = torch.Tensor
Given: TypeAlias = Mapping[str, Any]


def to_torch(rule: Rule, verdict: Verdict) -> float:
    """The difference of both sides in PyTorch on a verdict's counterexample; infinite if shapes differ, or only
    the source is finite.

    Raises PartitaError if the verdict has none.
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
    difference = 0.0
    for s, t in shown.outputs:
        a, b = source[s], target[t]
        if a.state != b.state:
            return float("inf")
        if (np.isfinite(a.array) & ~np.isfinite(b.array)).any():
            return float("inf")
        difference = max(difference, float(np.nanmax(np.abs(a.array - b.array), initial=0.0)))
    return difference


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
    if apply.op not in RULE_OPERATORS:
        operator(apply.op)  # raises if it is unknown
    _, tasks, cuts, joins = by_shards(apply.op, given, values, arithmetic)
    shards = [np.array(cut(value.array)) for cut, value in zip(cuts, values, strict=True)]
    call = _SPECIAL.get(apply.op, partial(_computed, apply.op))
    results: list[Sequence[Tensor]] = []
    for task in range(int(np.prod(tasks.sizes))):
        part = {letter: int(tasks.position(letter)[task]) for letter in ("s", "v")}
        made = call([torch.from_numpy(s)[task] for s in shards], given, values[0].shape, part)
        name = given.get("activation", "none")
        results.append(made if name in ("none", None) else _computed(str(name), made, {}, (), {}))
    return [join(torch.stack(parts).numpy()) for join, parts in zip(joins, zip(*results, strict=True), strict=True)]


Shape: TypeAlias = tuple[int, ...]
Part: TypeAlias = Mapping[str, int]
"""The number of a shard's part of the letters of its operator."""

# Attributes that nodes have and rules may leave out.
_DEFAULTS: Given = {
    "approximate": "none",
    "keepdim": False,
    "normalized": 1,
    "eps": 1e-5,
    "mode": "constant",
    "value": 0,
}


def _computed(op: str, x: Sequence[Tensor], given: Given, whole: Shape, part: Part, **more: Any) -> list[Tensor]:
    """An operator of a shard, as the registry computes it on whole tensors."""
    attributes: dict[str, Any] = {**_DEFAULTS, **given, **more}
    if "dims" in attributes and not isinstance(attributes["dims"], tuple):
        attributes["dims"] = (attributes["dims"],)
    shape = attributes.pop("shape", tuple(x[0].shape))
    for name in ("stride", "padding", "dilation"):  # per spatial dim
        if isinstance(attributes.get(name), int):
            attributes[name] = (attributes[name],) * (x[0].dim() - 2)
    node = Node(op, "y", tuple(range(len(x))), shape, "float64", tuple(sorted(attributes.items())))
    return [computed(node, x)]


def _softmax(op: str) -> Call:
    return lambda x, given, whole, part: _computed(op, x, {"dim": -1, **given}, whole, part)


def _mean(x: Sequence[Tensor], given: Given, whole: Shape, part: Part) -> list[Tensor]:
    """Divided by the whole count, also of a shard."""
    dims = given["dims"] if isinstance(given["dims"], tuple) else (given["dims"],)
    return _computed("mean", x, given, whole, part, count=prod(whole[d] for d in dims))


def _conv(x: Sequence[Tensor], given: Given, whole: Shape, part: Part) -> list[Tensor]:
    """A shard has its share of the groups."""
    groups = x[0].shape[1] // x[1].shape[1] if given.get("groups", 1) != 1 else 1
    return _computed("conv", x, given, whole, part, groups=groups)


def _split(x: Sequence[Tensor], given: Given, whole: Shape, part: Part) -> Sequence[Tensor]:
    """A shard has its share of every part."""
    dim = given["dim"]
    share = whole[dim] // x[0].shape[dim]
    sizes = given.get("sizes") or (whole[dim] // given["parts"],) * given["parts"]
    return torch.split(x[0], [size // share for size in sizes], dim)


def _view(x: Sequence[Tensor], given: Given, whole: Shape, part: Part) -> list[Tensor]:
    """A shard keeps its share of the one dim that is cut."""
    shape = list(given["shape"])
    share = prod(whole) // x[0].numel()
    if share > 1:
        cut = next(d for d, (n, m) in enumerate(zip(whole, x[0].shape, strict=True)) if n != m)
        before = prod(whole[:cut])
        place = next(k for k in range(len(shape)) if prod(shape[:k]) == before and shape[k] > 1)
        shape[place] //= share
    return _computed("view", x, {}, whole, part, shape=tuple(shape))


def _slice(x: Sequence[Tensor], given: Given, whole: Shape, part: Part) -> list[Tensor]:
    return _computed("slice", x, {"start": 0, "stop": x[0].shape[given["dim"]], "step": 1, **given}, whole, part)


def _attention(x: Sequence[Tensor], given: Given, whole: Shape, part: Part) -> list[Tensor]:
    """A shard of queries sees the keys up to its own places."""
    operands, scale = list(x), given.get("scale")
    if given.get("causal"):
        rows, columns = x[0].shape[-2], x[1].shape[-2]
        seen = torch.ones(rows, columns, dtype=torch.bool).tril(part["s"] * rows)
        operands[3:] = [operands[3].masked_fill(~seen, float("-inf")) if len(x) > 3 else seen]
    return _computed("attention", operands, {"causal": False, "scale": scale}, whole, part)


def _embedding(x: Sequence[Tensor], given: Given, whole: Shape, part: Part) -> list[Tensor]:
    """A shard of rows gives zeros for the ids of others."""
    ids = x[1].long() - part["v"] * x[0].shape[0]
    inside = (ids >= 0) & (ids < x[0].shape[0])
    (rows,) = _computed("embedding", (x[0], torch.where(inside, ids, 0)), {}, whole, part)
    return [rows * inside[..., None]]


Call: TypeAlias = Callable[[Sequence[Tensor], Given, Shape, Part], Sequence[Tensor]]
"""(operands of a shard, attributes, shape of the whole first operand, part of the shard) -> results."""

# Operators that only rules have, and those that compute something else on a shard than on the whole.
_SPECIAL: Mapping[str, Call] = {
    "softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
    "mean": _mean,
    "conv": _conv,
    "split": _split,
    "transpose": lambda x, given, whole, part: [x[0].mT],
    "view": _view,
    "slice": _slice,
    "attention": _attention,
    "embedding": _embedding,
}
