"""This rank's part of the inputs, as lines of the program."""

from __future__ import annotations

from ....model.graph.atoms import atoms
from ...plan.plan import Plan
from ..common.conversions import Local, Used
from ..common.names import identifier
from ..common.statements import reserved
from ..common.text import one_free, shape_text, wrap


def argument_name(plan: Plan, index: int) -> str:
    """What an input of the graph is called in the program."""
    name = identifier(plan.graph.nodes[index].name)
    return f"{name}_" if name in reserved() or name in plan.axes else name


def share_lines(plan: Plan, used: Used) -> list[str]:
    """One line per input: its micro-batch, then this rank's part of it."""
    lines = []
    for index in plan.graph.of("input"):
        node, choice = plan.graph.nodes[index], plan.choices[index]
        known = atoms(plan.graph)[index]
        text = f'inputs["{node.name}"]'
        local = Local(known, choice.output, plan.placement.sizes, tuple(f"mesh.{axis}" for axis in plan.axes))
        split = {a: [local.axes[i] for i in local.splits(a)] for a in range(len(known.sizes))}
        if plan.micro_batches > 1:
            for a in known.batch:
                split[a].insert(0, "mesh.micro")
        if any(split.values()):
            used.primitives.add("cut")
        inner = any(axes and known.dim_of(a)[1] > 0 for a, axes in split.items())
        uneven = any(isinstance(local.atom(a), str) for a in split)
        if (inner or uneven) and any(len(dim) > 1 for dim in known.dims):
            scale = {a: plan.micro_batches if a in known.batch else 1 for a in split}
            text += f".reshape{shape_text(known.sizes[a] * scale[a] for a in split)}"
            for a, axes in split.items():
                for axis in axes:
                    text = f"cut({text}, {a}, {axis})"
            text += f".reshape{shape_text(one_free(local.shape()))}"
        else:
            for a, axes in split.items():
                for axis in axes:
                    text = f"cut({text}, {known.dim_of(a)[0]}, {axis})"
        lines += wrap(f'"{argument_name(plan, index)}": {text}.to(mesh.device),', 8)
    return [line.removeprefix(" " * 8) for line in lines]
