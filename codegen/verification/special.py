"""Verification of a special strategy: its examples split over some ranks, compared with the whole computation."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...formulation.search_space import SearchSpace
from ...formulation.special import special_strategy
from ...formulation.strategies.strategy import row_names, rows
from ...model.errors import PartitaError
from ...model.graph.builder import Builder
from ...model.graph.dtypes import FLOATS
from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from ...model.training import Training
from ..plan.plan import Plan
from ..planner.plan_graph import plan_graph
from .graph_module import trial_of
from .verify import run

BATCH = 6


def verify_strategy(name: str, ranks: Sequence[int] = (2, 3, 4, 8), steps: int = 2) -> list[dict[str, Any]]:
    """Run every row of a special strategy on each of its examples, on these numbers of ranks, forward and backward.

    Returns a verdict of `verify` for each, with `example` (its number), `row` and `ranks`: losses, gradients and
    weights after some steps in float64, compared with the graph on whole tensors. Sizes that do not divide are split
    unevenly; where a rank would be left empty there is no verdict. Raises PartitaError for an unknown strategy, and if
    no row applies to an example.
    """
    entry, verdicts = special_strategy(name), []
    for number, example in enumerate(entry.examples):
        graph, index = around(example)
        names = row_names(graph, index)
        mine = [label for label, row in zip(names, rows(graph, index), strict=True) if row.special == name]
        if not mine:
            raise PartitaError(f"strategy {name!r} has no row for its example {number}")
        for label, size in ((label, size) for label in mine for size in ranks):
            plan = _plan(graph, index, label, size)
            if plan is not None:
                with tempfile.TemporaryDirectory(prefix="partita-verify-") as folder:
                    verdict = run([trial_of(plan, Path(folder) / "program.py", steps)])[0]
                verdicts.append({"example": number, "row": label, "ranks": size} | verdict)
    if not verdicts:
        raise PartitaError(f"strategy {name!r} has no example that can be tried")
    return verdicts


def _plan(graph: PCG, index: int, row: str, size: int) -> Plan | None:
    """The best plan in which a row splits one node over one axis; None if a rank would be left empty."""
    training, fix = Training(graph.batch, "float64", "sgd"), ((graph.nodes[index].name, row),)
    space = SearchSpace(mesh=(size,), micro_batches=1, fix=fix, stages=1)
    try:
        return plan_graph(graph, Machine.adhoc((size,)), training, space)
    except PartitaError as error:
        if "leaves a rank empty" in str(error):
            return None
        raise


def around(example: Callable[[Builder], int]) -> tuple[PCG, int]:
    """A graph with a node in it, trained through it where it has a gradient, and the node."""
    b = Builder(BATCH)
    index = example(b)
    node = b.nodes[index]
    y, shape = index, node.shape
    if node.dtype == "bool":
        zero = b.add("full", shape=shape, dtype="float32", value=0.0)
        one = b.add("full", shape=shape, dtype="float32", value=1.0)
        y = b.add("where", y, one, zero, shape=shape)
    elif node.dtype not in FLOATS:
        y = b.add("to", y, shape=shape, dtype="float32")
    if node.shape:
        y = b.add("mul", y, b.parameter("after", shape), shape=shape)
        y = b.add("projection", y, shape=(), site=0)
    return b.build(y), index
