"""What the strategy space offers single operators and tensors on a mesh: rows, options, prices of conversions."""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ...formulation.placement.placement import placements
from ...formulation.strategies.operator_options import OperatorOptions, operator_options
from ...formulation.strategies.row import Row
from ...formulation.strategies.strategy import rows
from ...formulation.strategies.transitions import Transitions, space
from ...model.graph.builder import Builder
from ...model.graph.layout import Layout
from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from ...model.machine.precision import precision
from ...model.machine.roofline import Roofline

DTYPE, ITEMSIZE = "float32", 4


class Form(NamedTuple):
    """An operator of a graph: attributes, the shapes of its operands and of its result."""

    op: str
    attributes: tuple[tuple[str, Any], ...]
    shapes: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]


@lru_cache(maxsize=1024)
def graph_of(form: Form) -> tuple[PCG, int]:
    """A graph that is one operator, whose operands have gradients, and the operator's index."""
    b = Builder()
    inputs = [b.parameter(f"x{i}", shape) for i, shape in enumerate(form.shapes)]
    node = b.add(form.op, *inputs, shape=form.shape, **dict(form.attributes))
    return b.build(b.add("projection", node, shape=())), node


def rows_of(form: Form) -> tuple[Row, ...]:
    """The rows of an operator."""
    return rows(*graph_of(form))


@lru_cache(maxsize=64)
def transitions(axes: tuple[int, ...]) -> Transitions:
    """The conversions on a machine that is one mesh."""
    return Transitions(Machine.adhoc(axes), placements(axes, mesh=axes)[0])


@lru_cache(maxsize=1024)
def _options(form: Form, axes: tuple[int, ...]) -> OperatorOptions:
    found = transitions(axes)
    return operator_options(*graph_of(form), found, Roofline(found.machine, DTYPE), precision(DTYPE))


def offers(form: Form, operands: tuple[Layout, ...], output: Layout, axes: tuple[int, ...]) -> bool:
    """True if the operator has an option on the mesh that reads and gives these layouts."""
    found = _options(form, axes)
    fits = found.output == found.output_space.code(output)
    for codes, tensor, layout in zip(found.inputs, found.input_spaces, operands, strict=True):
        fits = fits & (codes == tensor.code(layout))
    return bool(np.any(fits))


def conversion_ns(shape: tuple[int, ...], source: Layout, target: Layout, axes: tuple[int, ...]) -> int | None:
    """The price of the cheapest route between two layouts, there and back; None if one of them is not offered."""
    tensor = space(axes, tuple(n for n in shape if n > 1))
    table = transitions(axes).table(tensor, ITEMSIZE, gradient=True)
    places = {int(code): place for place, code in enumerate(table.codes)}
    a, b = (places.get(tensor.code(layout)) for layout in (source, target))
    return None if a is None or b is None else int(table.total[a, b])
