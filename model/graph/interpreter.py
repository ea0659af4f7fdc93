"""The reference interpreter: computes every node on whole tensors in float64.

Tests and the verifier compare against it, gradients included: autograd differentiates it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import PartitaError
from ..operators.attention import written_out
from ..operators.operator import is_random, operator
from .dtypes import FLOATS
from .pcg import GIVEN, PCG, SOURCES, Node

Noise: TypeAlias = Callable[[int, tuple[int, ...]], Tensor]
"""(call site of the projection, shape) -> its weights."""

Mask: TypeAlias = Callable[[int, tuple[int, ...], float], Tensor]
"""(call site, shape, p) -> the factors of dropout: 0, or 1 / (1 - p)."""

Draw: TypeAlias = Callable[[Node], Tensor]
"""The random numbers of a node."""


def run(
    pcg: PCG,
    inputs: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    *,
    mask: Mask | None = None,
    draw: Draw | None = None,
    noise: Noise | None = None,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    """The tensor of every node (the loss is number `pcg.loss`), given inputs, parameters and buffers by name.

    Tensors that a stage receives are inputs too, under the names of their `receive` nodes. Floats are computed in
    `dtype`. Dropout raises ValueError without `mask`, other random operators without `draw`. `noise` gives the weights
    of projections (default: cosines of the element's index). Running statistics among `weights` that have `dtype` are
    updated in place.
    """
    values: list[Tensor] = []
    for node in pcg.nodes:
        if node.op in (*SOURCES, *GIVEN):
            given = inputs if node.op in ("input", *GIVEN) else weights
            parts = [given[name] for name in node.originals]
            value = torch.cat(parts) if len(parts) > 1 else parts[0]
            if tuple(value.shape) != node.shape:
                raise ValueError(f"{node.op} {node.name!r} has shape {tuple(value.shape)}, not {node.shape}")
            values.append(value.to(dtype) if value.is_floating_point() else value)
            continue
        value = _value(node, [values[i] for i in node.inputs], Numbers(noise or fixed_noise, mask, draw))
        value = value.to(dtype) if value.is_floating_point() else value
        value = value if node.gradient else value.detach()
        if tuple(value.shape) != node.shape:
            raise ValueError(f"{node.op} {node.name!r} computes shape {tuple(value.shape)}, not {node.shape}")
        values.append(value)
    return values


def check_shapes(pcg: PCG) -> None:
    """Compute every node on the meta device. Raises PartitaError naming the first node with another shape."""
    given_ones = (*SOURCES, *GIVEN)
    sources = {n.name: torch.empty(n.shape, dtype=_dtype(n), device="meta") for n in pcg.nodes if n.op in given_ones}
    values: list[Tensor] = []
    with torch.device("meta"), torch.no_grad():
        for node in pcg.nodes:
            try:
                given = [values[i] for i in node.inputs]
                value = (
                    sources[node.name]
                    if node.op in given_ones
                    else _value(node, given, Numbers(fixed_noise, _ones, lambda node: torch.ones(node.shape)))
                )
            except (RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
                raise PartitaError(f"{node.op} {node.name!r} cannot be computed: {error}") from error
            if tuple(value.shape) != node.shape:
                raise PartitaError(f"{node.op} {node.name!r} has shape {tuple(value.shape)}, not {node.shape}")
            values.append(value)


def _ones(site: int, shape: tuple[int, ...], kind: object) -> Tensor:
    return torch.ones(shape, dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Where random numbers come from."""

    noise: Noise
    mask: Mask | None
    draw: Draw | None


def _value(node: Node, given: Sequence[Tensor], numbers: Numbers) -> Tensor:
    if node.op == "attention" and is_random(node):
        shape = (*given[0].shape[:-1], given[1].shape[-2])
        return written_out(node, given, _mask(node, shape, numbers))
    if node.op == "dropout" or (node.op == "random" and node["kind"] == "bernoulli"):
        mask = _mask(node, node.shape, numbers)
        return given[0] * mask if node.op == "dropout" else (mask != 0).to(given[0].dtype)
    if node.op == "random":
        if numbers.draw is None:
            raise ValueError(f"{node.name!r} is random, but no numbers were given")
        return numbers.draw(node).to(_dtype(node))
    if node.op == "projection":
        return (given[0] * numbers.noise(node["site"], tuple(given[0].shape)).to(given[0].dtype)).sum()
    return computed(node, given)


def _mask(node: Node, shape: tuple[int, ...], numbers: Numbers) -> Tensor:
    if numbers.mask is None:
        raise ValueError(f"{node.name!r} has p = {node['p']}, but no mask was given")
    return numbers.mask(node["site"], shape, node["p"])


def computed(node: Node, given: Sequence[Tensor]) -> Tensor:
    """One node, by its operator's `reference`, otherwise by the expression that programs have."""
    entry = operator(node.op)
    if entry.reference is not None:
        return entry.reference(node, given)
    operands = dict(zip(entry.named(node), given, strict=True))
    text = entry.expression(node, list(operands), str(_dtype(node)))
    value: Tensor = eval(_compiled(text), {"torch": torch, "F": F}, operands)
    return value


@lru_cache(maxsize=4096)
def _compiled(text: str) -> CodeType:
    return compile(text, "<operator>", "eval")


def fixed_noise(site: int, shape: tuple[int, ...]) -> Tensor:
    """Weights of a projection: cosines of the element's index."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float64) * 1.7 + site).cos().reshape(shape)


def _dtype(node: Node) -> torch.dtype:
    """A node's dtype; float64 for floats."""
    if node.dtype in FLOATS:
        return torch.float64
    dtype: torch.dtype = getattr(torch, node.dtype)
    return dtype
