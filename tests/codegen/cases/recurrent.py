"""Layers of recurrent networks: one direction and both, states given, biases left out, outputs projected."""

from typing import Any

from partita.model.graph.builder import Builder
from partita.model.operators.recurrent import REVERSE, WEIGHTS

from .build import BATCH, Build, Cases, leaf, weight

GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def layer(
    op: str, both: bool, batch_first: bool, bias: bool = True, given: int = 0, projected: int = 0, **attributes: Any
) -> Build:
    def build(b: Builder) -> int:
        steps, width, units, gates = 5, 4, 3, GATES[op]
        rows, out = gates * units, projected or units
        shapes = {"w_ih": (rows, width), "w_hh": (rows, out), "b_ih": (rows,), "b_hh": (rows,), "w_hr": (out, units)}
        names = [n for n in WEIGHTS if (bias or n[0] != "b") and (projected or n != "w_hr")]
        weights = [weight(b, *shapes[name]) for name in names]
        if both:
            weights += [weight(b, *shapes[name]) for name in names]
            names += [n for n in REVERSE if n.removesuffix("_reverse") in names]
        x = leaf(b, BATCH, steps, width)
        states = []
        for size in (out, units)[:given]:
            state = b.add("view", leaf(b, BATCH, (1 + both) * size), shape=(BATCH, 1 + both, size))
            states.append(b.add("permute", state, shape=(1 + both, BATCH, size), dims=(1, 0, 2)))
        if not batch_first:
            x = b.add("permute", x, shape=(steps, BATCH, width), dims=(1, 0, 2))
        steps += bool(attributes.get("memory"))
        shape = (BATCH, steps, out * (1 + both)) if batch_first else (steps, BATCH, out * (1 + both))
        operands = ("x", *names, *"hc"[:given])
        return b.add(op, x, *weights, *states, shape=shape, batch_first=batch_first, operands=operands, **attributes)

    return build


CASES: Cases = {
    "lstm": (
        layer("lstm", both=False, batch_first=True),
        layer("lstm", both=True, batch_first=False, given=2, memory=True),
        layer("lstm", both=True, batch_first=True, bias=False, projected=2),
    ),
    "gru": (
        layer("gru", both=True, batch_first=True, given=1),
        layer("gru", both=False, batch_first=False, bias=False),
    ),
    "rnn": (layer("rnn", both=False, batch_first=True), layer("rnn", both=True, batch_first=False, relu=True)),
}
