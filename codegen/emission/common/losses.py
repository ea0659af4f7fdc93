"""Losses on local parts: sums of what a rank has, divided by what the whole batch counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ....model.graph.dtypes import FLOATS
from ....model.graph.pcg import PCG
from ....model.operators.loss import CLASSIFIED, POINTWISE
from ....model.operators.operator import operator
from .call_sites import Rule, Site, full_precision, literal
from .text import enclosed


def counted(graph: PCG) -> list[int]:
    """Means that divide by how many labels count, which only the data say."""
    means = [i for op in CLASSIFIED for i in graph.of(op) if graph.nodes[i].get("reduction", "mean") == "mean"]
    return [i for i in means if graph.nodes[graph.nodes[i].inputs[1]].dtype not in FLOATS]


def label_count(site: Site, t: str, weight: str | None) -> str:
    """How many labels of this rank count, or their weights' sum."""
    ignore = site.node.get("ignore_index", -100)
    if weight is None:
        return f"({enclosed(t)} != {ignore}).sum()"
    ignored = f"{enclosed(t)} == {ignore}"  # may be no class at all
    return f"{enclosed(weight)}[{enclosed(t)}.masked_fill({ignored}, 0)].masked_fill({ignored}, 0).sum()"


def _pointwise(site: Site, names: Sequence[str]) -> str:
    node = site.node
    given = dict(zip(operator(node.op).named(node), _precise(site, names), strict=True))
    options = [f"{k}={given[k]}" for k in ("weight", "pos_weight") if k in given]
    options += _options(site, {"beta": 1.0, "delta": 1.0, "log_target": False})
    dims = [0] if node.get("reduction") == "batchmean" else range(len(site.sources[0].shape))
    return _reduced(site, f"F.{node.op}({', '.join([given['x'], given['t'], *options])}", _count(site, dims))


def _classified(site: Site, names: Sequence[str]) -> str:
    """`names` ends with the divisor where that is counted."""
    count: int | str = names[-1]
    if site.sources[1].dtype in FLOATS:  # probabilities: all samples count
        rank = len(site.sources[0].shape)
        count = _count(site, [d for d in range(rank) if d != min(1, rank - 1)])
    operands = _precise(site, names[: len(site.sources)])
    options = _options(site, {"ignore_index": -100, "label_smoothing": 0.0})
    return _reduced(site, f"F.{site.node.op}({', '.join([*operands, *options])}", count)


def special(site: Site, names: Sequence[str], call: Callable[[Sequence[str]], str]) -> str:
    """`call` writes the samples' losses, of the operands' texts; `names` ends with the divisor, if it is counted."""
    losses, reduction = call(_precise(site, names[: len(site.sources)])), site.node.get("reduction", "mean")
    if reduction == "none":
        return losses
    return f"{losses}.sum()" + ("" if reduction == "sum" else f" / {names[-1]}")


def _precise(site: Site, names: Sequence[str]) -> list[str]:
    return [full_precision(site, name, i) for i, name in enumerate(names)]


def _options(site: Site, defaults: dict[str, object]) -> list[str]:
    """Attributes that are not what PyTorch takes anyway."""
    found = [(k, site.node.get(k, default), default) for k, default in defaults.items()]
    return [f"{k}={literal(k, value)}" for k, value, default in found if value != default]


def _count(site: Site, dims: Sequence[int]) -> int:
    """Elements of some dims of the first operand in the whole batch."""
    known = site.source_atoms[0]
    batch = any(a in known.batch for d in dims for a in known.of_dim(d))
    return prod(site.sources[0].shape[d] for d in dims) * (site.micro if batch else 1)


def _reduced(site: Site, call: str, count: int | str) -> str:
    reduction = site.node.get("reduction", "mean")
    if reduction == "none":
        return f'{call}, reduction="none")'
    return f'{call}, reduction="sum")' + ("" if reduction == "sum" else f" / {count}")


RULES: dict[str, Rule] = {**dict.fromkeys(POINTWISE, _pointwise), **dict.fromkeys(CLASSIFIED, _classified)}
