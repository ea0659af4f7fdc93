"""Layers of recurrent networks: LSTM, GRU and RNN over all steps of a sequence, in one direction or in both.

Samples are free; steps and hidden units need each other. A step waits for the one before it, so the kernels of the
steps are launched one after another, which their price counts.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from ..graph.pcg import Node
from .operator import Operator, operator

WEIGHTS = ("w_ih", "w_hh", "b_ih", "b_hh", "w_hr")
"""Of one direction in PyTorch's order; `w_hr` projects the outputs of an LSTM."""
REVERSE = tuple(f"{name}_reverse" for name in WEIGHTS)
KERNELS = {"lstm": "lstm", "gru": "gru", "rnn": "rnn_tanh"}

_A_STEP = 2
"""Kernels that a step launches: the product with the hidden state, and all that is elementwise."""


def _notation(node: Node, inputs: tuple[Node, ...]) -> str:
    first = node["batch_first"]
    arguments = []
    for name, source in zip(operator(node.op).named(node), inputs, strict=True):
        dims = {"x": "b, :, :" if first else ":, b, :", "h": ":, b, :", "c": ":, b, :"}
        arguments.append(f"{name}[{dims.get(name) or ', '.join(':' for _ in source.shape)}]")
    return f"y[{'b, t, o' if first else 't, b, o'}] = f({', '.join(arguments)})[t, o]"


def steps_of(node: Node, inputs: tuple[Node, ...]) -> int:
    """The steps of the sequence."""
    return inputs[0].shape[1 if node["batch_first"] else 0]


def _work(node: Node, inputs: tuple[Node, ...]) -> int:
    """A product with every matrix, for every sample and step."""
    matrices = sum(source.numel for source in inputs[1:] if len(source.shape) == 2)
    return 2 * prod(inputs[0].shape[:2]) * matrices


def _launches(node: Node, inputs: tuple[Node, ...]) -> int:
    """Both directions run at the same time."""
    return _A_STEP * steps_of(node, inputs)


def operands_of(node: Node, names: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """The input, the weights and the initial states of a node, given the texts of its operands."""
    given = dict(zip(operator(node.op).named(node), names, strict=True))
    return given.pop("x"), [w for n, w in given.items() if n not in "hc"], [given[n] for n in "hc" if n in given]


def is_both(node: Node) -> bool:
    """True if the layer runs in both directions."""
    return "w_ih_reverse" in operator(node.op).named(node)


def kernel_of(node: Node) -> str:
    """The name of PyTorch's function for all layers."""
    return "rnn_relu" if node.get("relu") else KERNELS[node.op]


def _reference(node: Node, x: Sequence[Tensor]) -> Tensor:
    """PyTorch's function; states are zeros unless given, the last states of cells follow the outputs as a step."""
    names, both, first = operator(node.op).named(node), is_both(node), node["batch_first"]
    weights = [w for n, w in zip(names, x, strict=True) if n not in ("x", "h", "c")]
    states = [w for n, w in zip(names, x, strict=True) if n in ("h", "c")]
    if not states:
        sizes = [weights[1].shape[1], weights[1].shape[0] // 4][: 1 + (node.op == "lstm")]
        states = [x[0].new_zeros(1 + both, x[0].shape[0 if first else 1], size) for size in sizes]
    made = getattr(torch, kernel_of(node))(
        *(x[0], states if node.op == "lstm" else states[0], weights, "b_ih" in names, 1, 0.0, True, both, first)
    )
    y: Tensor = made[0]
    if not node.get("memory"):
        return y
    cells = made[2].transpose(0, 1).flatten(1).unsqueeze(1 if first else 0)
    return torch.cat((y, cells), 1 if first else 0)


def _saved(gates: int) -> tuple[str, ...]:
    """Inputs, outputs, and `gates` more tensors of the outputs' size."""
    return ("x", *WEIGHTS[:2], *REVERSE[:2], "w_hr", "w_hr_reverse", "h", "c", "y", *("gate",) * gates)


OPERATORS = tuple(
    Operator(
        name,
        ("x", *WEIGHTS, *REVERSE, "h", *(["c"] if name == "lstm" else [])),
        _notation,
        saved=_saved(gates),
        flops=_work,
        launches=_launches,
        matmul=True,
        reference=_reference,
    )
    for name, gates in (("lstm", 5), ("gru", 4), ("rnn", 0))
)
