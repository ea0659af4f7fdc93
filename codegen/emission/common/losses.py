"""Losses on local parts: local sums divided by counts of the whole batch."""

from collections.abc import Callable, Sequence
from math import prod

from ....model.graph.dtypes import FLOATS
from ....model.graph.pcg import PCG
from ....model.operators.keywords import literal
from ....model.operators.loss import CLASSIFIED, POINTWISE
from ....model.operators.operator import operator
from .operator_calls import OperatorCall, Rule, full_precision, registered
from .text import enclosed


def counted(graph: PCG) -> list[int]:
    """Mean losses whose divisor, the number of labels that count, depends on the data."""
    means = [i for op in CLASSIFIED for i in graph.of(op) if graph.nodes[i].get("reduction", "mean") == "mean"]
    return [i for i in means if graph.nodes[graph.nodes[i].inputs[1]].dtype not in FLOATS]


def label_count(call: OperatorCall, t: str, weight: str | None) -> str:
    """The number of this rank's labels that count, or the sum of their weights."""
    ignore = call.node.get("ignore_index", -100)
    if weight is None:
        return f"({enclosed(t)} != {ignore}).sum()"
    ignored = f"{enclosed(t)} == {ignore}"  # may be no class at all
    return f"{enclosed(weight)}[{enclosed(t)}.masked_fill({ignored}, 0)].masked_fill({ignored}, 0).sum()"


def _pointwise(call: OperatorCall, names: Sequence[str]) -> str:
    node = call.node
    given = dict(zip(operator(node.op).named(node), _precise(call, names), strict=True))
    options = [f"{k}={given[k]}" for k in ("weight", "pos_weight") if k in given]
    options += _options(call, {"beta": 1.0, "delta": 1.0, "log_target": False})
    dims = [0] if node.get("reduction") == "batchmean" else range(len(call.sources[0].shape))
    return _reduced(call, f"F.{node.op}({', '.join([given['x'], given['t'], *options])}", element_count(call, dims))


def _classified(call: OperatorCall, names: Sequence[str]) -> str:
    """`names` ends with the divisor where that is counted."""
    count: int | str = names[-1]
    if call.sources[1].dtype in FLOATS:  # probabilities: all samples count
        rank = len(call.sources[0].shape)
        count = element_count(call, [d for d in range(rank) if d != min(1, rank - 1)])
    operands = _precise(call, names[: len(call.sources)])
    options = _options(call, {"ignore_index": -100, "label_smoothing": 0.0})
    return _reduced(call, f"F.{call.node.op}({', '.join([*operands, *options])}", count)


def special(call: OperatorCall, names: Sequence[str], losses_of: Callable[[Sequence[str]], str]) -> str:
    """The loss of a special strategy. `losses_of` writes the samples' losses; `names` ends with a counted divisor."""
    losses, reduction = losses_of(_precise(call, names[: len(call.sources)])), call.node.get("reduction", "mean")
    if reduction == "none":
        return losses
    return f"{losses}.sum()" + ("" if reduction == "sum" else f" / {names[-1]}")


def _precise(call: OperatorCall, names: Sequence[str]) -> list[str]:
    return [full_precision(call, name, i) for i, name in enumerate(names)]


def _options(call: OperatorCall, defaults: dict[str, object]) -> list[str]:
    """Attributes that differ from PyTorch's defaults."""
    found = [(k, call.node.get(k, default), default) for k, default in defaults.items()]
    return [f"{k}={literal(k, value)}" for k, value, default in found if value != default]


def element_count(call: OperatorCall, dims: Sequence[int]) -> int:
    """Number of elements of some dims of the first operand in the whole batch."""
    known = call.source_atoms[0]
    batch = any(a in known.batch for d in dims for a in known.of_dim(d))
    return prod(call.sources[0].shape[d] for d in dims) * (call.micro_batches if batch else 1)


def _reduced(call: OperatorCall, text: str, count: int | str) -> str:
    reduction = call.node.get("reduction", "mean")
    if reduction == "none":
        return f'{text}, reduction="none")'
    return f'{text}, reduction="sum")' + ("" if reduction == "sum" else f" / {count}")


RULES: dict[str, Rule] = {
    **dict.fromkeys(POINTWISE, _pointwise),
    **dict.fromkeys(CLASSIFIED, _classified),
    "ctc_loss": lambda call, names: registered(call, _precise(call, names)),
}
