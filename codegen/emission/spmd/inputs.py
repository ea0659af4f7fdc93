"""This rank's part of the inputs, as lines of the program."""

from __future__ import annotations

from ....model.graph.atoms import atoms
from ...plan.plan import Plan
from ..common.conversions import Local, Used
from ..common.data import part_text
from ..common.names import identifier
from ..common.statements import reserved
from ..common.text import wrap


def argument_name(plan: Plan, index: int) -> str:
    """What an input of the graph is called in the program."""
    name = identifier(plan.graph.nodes[index].name)
    return f"{name}_" if name in reserved() or name in plan.axes else name


def share_lines(plan: Plan, used: Used) -> list[str]:
    """One line per input: its micro-batch, then this rank's part of it."""
    lines = []
    for index in plan.graph.of("input"):
        node, choice = plan.graph.nodes[index], plan.choices[index]
        axes = tuple(f"mesh.{axis}" for axis in plan.axes)
        local = Local(atoms(plan.graph)[index], choice.output, plan.placement.sizes, axes)
        text = part_text(f'inputs["{node.name}"]', local, plan.micro_batches)
        if "cut(" in text:
            used.primitives.add("cut")
        lines += wrap(f'"{argument_name(plan, index)}": {text}.to(mesh.device),', 8)
    return [line.removeprefix(" " * 8) for line in lines]
