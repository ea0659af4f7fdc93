"""Recurrent networks: one node for every layer, with dropout between layers; cells are made of known operators."""

from collections.abc import Sequence
from functools import partial

from ...operators.recurrent import REVERSE, WEIGHTS
from ..translation import A, Index, Rule, T, Value
from . import data_dependent
from .elementwise import dropout


def _network(op: str, relu: bool, t: T, a: A) -> Value:
    """The outputs of the last layer, and the last states of all layers: (out, h_n), and c_n of an LSTM."""
    if "data" in a:
        return data_dependent.TABLE["_pack_padded_sequence"](t, a)
    x, first, both = a["input"], a["batch_first"], a["bidirectional"]
    states = a["hx"] if op == "lstm" else [a["hx"]]
    if len(t.shape(x)) != 3:
        return t.no("a sequence without samples")
    memory = op == "lstm" and t.reads(2)
    projected = op == "lstm" and t.shape(states[0])[2] != t.shape(states[1])[2]
    if memory and projected:
        return t.no("the last states of the cells of an LSTM with projections; without proj_size they are known")
    dropped = a["dropout"] if a["train"] and a["num_layers"] > 1 else 0.0
    turned = first and dropped > 0  # PyTorch numbers the elements of a mask with steps first
    if turned:
        x, first = t.transpose(x, 0, 1), False
    time, steps = (1, t.shape(x)[1]) if first else (0, t.shape(x)[0])
    names = [n for n in WEIGHTS if (a["has_biases"] or n[0] != "b") and (projected or n != "w_hr")]
    names += [n for n in REVERSE if n.removesuffix("_reverse") in names] if both else []
    width = t.shape(states[0])[2] * (1 + both)
    outputs, given = [], list(a["params"])
    for layer in range(a["num_layers"]):
        if layer and dropped:
            x = dropout(t, x, dropped)
        weights, given = given[: len(names)], given[len(names) :]
        known = [] if all(t.is_zero(s) for s in states) else _of_layer(t, states, layer, 1 + both)
        shape = list(t.shape(x))
        shape[time], shape[2] = steps + memory, width
        made = t.add(
            op, x, *weights, *known, shape=shape, dtype=t.at(x).dtype, batch_first=first,
            operands=("x", *names, *"hc"[: len(known)]), **({"memory": True} if memory else {}),
            **({"relu": True} if relu else {}),
        )  # fmt: skip
        outputs.append(made)
        x = t.slice(made, time, 0, steps)
    hidden = [state for y in outputs for state in _ends(t, y, time, steps - 1, 0, both)] if t.reads(1) else []
    cells = [state for y in outputs for state in _ends(t, y, time, steps, steps, both)] if memory else []
    x = t.transpose(x, 0, 1) if turned else x
    return [x, *(_stacked(t, found) for found in (hidden, cells)[: len(states)])]


def _of_layer(t: T, states: Sequence[Index], layer: int, directions: int) -> list[Index]:
    return [t.slice(s, 0, layer * directions, (layer + 1) * directions) for s in states]


def _ends(t: T, y: Index, time: int, forward: int, backward: int, both: bool) -> list[Index]:
    """The states of each direction at its last step, as (1, samples, units)."""
    units = t.shape(y)[2] // (1 + both)
    ends = []
    for number, step in enumerate((forward, backward)[: 1 + both]):
        end = t.slice(t.slice(y, time, step, step + 1), 2, number * units, (number + 1) * units)
        ends.append(t.view(end, (1, t.shape(y)[1 - time], units)))
    return ends


def _stacked(t: T, states: Sequence[Index]) -> Index | None:
    if len(states) < 2:
        return states[0] if states else None
    shape = (len(states), *t.shape(states[0])[1:])
    return t.add("cat", *states, shape=shape, dtype=t.at(states[0]).dtype, dim=0)


# Cells


def _product(t: T, x: Index, weight: Index, bias: Index | None) -> Index:
    given = [x, weight] if bias is None else [x, weight, bias]
    return t.add("linear", *given, shape=(*t.shape(x)[:-1], t.shape(weight)[0]))


def _gates(t: T, a: A, h: Index, count: int) -> list[tuple[Index, Index]]:
    """What the input and the hidden state add to each gate."""
    products = _product(t, a["input"], a["w_ih"], a["b_ih"]), _product(t, h, a["w_hh"], a["b_hh"])
    units = t.shape(a["w_hh"])[0] // count
    pieces = [t.pieces(y, len(t.shape(y)) - 1, [units] * count) for y in products]
    return list(zip(*pieces, strict=True))


def _binary(t: T, op: str, x: Index, y: Index) -> Index:
    return t.add(op, x, y, shape=t.shape(x))


def _activated(t: T, op: str, x: Index, y: Index) -> Index:
    return t.add(op, _binary(t, "add", x, y), shape=t.shape(x))


def _lstm_cell(t: T, a: A) -> Value:
    h, c = a["hx"]
    i, f, g, o = _gates(t, a, h, 4)
    kept = _binary(t, "mul", _activated(t, "sigmoid", *f), c)
    new = _binary(t, "mul", _activated(t, "sigmoid", *i), _activated(t, "tanh", *g))
    c = _binary(t, "add", kept, new)
    return [_binary(t, "mul", _activated(t, "sigmoid", *o), t.add("tanh", c, shape=t.shape(c))), c]


def _gru_cell(t: T, a: A) -> Value:
    h = a["hx"]
    r, z, (x_new, h_new) = _gates(t, a, h, 3)
    new = _activated(t, "tanh", x_new, _binary(t, "mul", _activated(t, "sigmoid", *r), h_new))
    change = _binary(t, "mul", _binary(t, "sub", h, new), _activated(t, "sigmoid", *z))
    return _binary(t, "add", change, new)


def _rnn_cell(op: str) -> Rule:
    return lambda t, a: _activated(t, op, *_gates(t, a, a["hx"], 1)[0])


TABLE: dict[str, Rule] = {
    "lstm": partial(_network, "lstm", False),
    "gru": partial(_network, "gru", False),
    "rnn_tanh": partial(_network, "rnn", False),
    "rnn_relu": partial(_network, "rnn", True),
    "lstm_cell": _lstm_cell,
    "gru_cell": _gru_cell,
    "rnn_tanh_cell": _rnn_cell("tanh"),
    "rnn_relu_cell": _rnn_cell("relu"),
}
