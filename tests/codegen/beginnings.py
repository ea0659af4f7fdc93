"""Initial values for plans of graphs that no module's constructor made, and checkpoints of their programs."""

from dataclasses import replace
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from partita.codegen.plan.plan import Plan
from partita.codegen.verification.threads import run_threads
from partita.codegen.verification.worker import load_program
from partita.model.graph.dtypes import FLOATS
from partita.model.graph.pcg import PCG
from partita.model.initial_values import InitialValues, Write


def initial(graph: PCG) -> InitialValues:
    """Random values for every weight, in the order of names; statistics and integers are constants."""
    nodes = [graph.nodes[i] for op in ("parameter", "buffer") for i in graph.of(op)]
    shapes = sorted((name, shape, node) for node in nodes for name, shape in node.originals.items())
    writes = []
    for name, shape, node in shapes:
        if node.op == "buffer" or node.dtype not in FLOATS:
            writes.append(Write(name, shape, "constant", (float(name.endswith("var")),)))
        else:
            writes.append(Write(name, shape, "normal", (0.0, prod(shape[1:]) ** -0.5)))
    return InitialValues(tuple(writes))


def begun(plan: Plan) -> Plan:
    """The plan with these values."""
    return replace(plan, initial=initial(plan.graph))


def saved(path: Path, source: Path | None, target: Path) -> dict[str, Tensor]:
    """What a program writes that loads `source`, or that starts from random values."""
    program = load_program(path)

    def work(_: int) -> None:
        mesh = program.Mesh()
        model = program.Model(mesh, dtype=torch.float64)
        if source is None:
            program.initialize(model)
        else:
            program.load(model, str(source), mesh)
        program.save(model, target, mesh)

    run_threads(work, program.RANKS)
    found: dict[str, Tensor] = torch.load(target, weights_only=True)
    return found
