"""Parallel branches as program text: a method per coordinate, and the line that joins their results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....formulation.bundles.bundles import Bundle
from ....formulation.strategies.tensor_classes import classes
from ....model.graph.atoms import atoms
from ....model.graph.layout import R, atom_of, is_split
from ...plan.plan import Plan
from ..common.conversions import Used, local_part
from ..common.names import identifier
from ..common.operator_calls import dtype_text
from ..common.text import shape_text


@dataclass(frozen=True, slots=True)
class CoordinateBranches:
    """The branches at one coordinate: the inputs of the `cat` that they compute, and their nodes."""

    coordinate: int
    ends: tuple[int, ...]
    nodes: frozenset[int]
    method: str


@dataclass(frozen=True, slots=True)
class ParallelBranches:
    """A bundle of parallel branches: its axis, and its sides by coordinate (without ends if no branch is there)."""

    bundle: Bundle
    axis: int
    sides: tuple[CoordinateBranches, ...]

    def reads(self, plan: Plan, side: CoordinateBranches) -> tuple[int, ...]:
        """The values that a side reads: the fork, or inputs of the graph."""
        graph, constant = plan.graph, classes(plan.graph).constant
        read = {i for n in side.nodes for i in graph.nodes[n].inputs} - side.nodes
        read |= set(side.ends) - side.nodes
        found = {i for i in read if i == self.bundle.fork or graph.nodes[i].op == "input"}
        if not side.ends and self.bundle.fork >= 0:
            found = {self.bundle.fork}
        return tuple(sorted(i for i in found if not constant[i]))


def side_by_side(plan: Plan) -> dict[int, ParallelBranches]:
    """The bundles of a plan, by their `cat`."""
    taken = {identifier(name.replace(".", "_")) for i in plan.graph.of("parameter") for name in _ends_of(plan, i)}
    found = {}
    for join, bundle in plan.bundles.items():
        stem = identifier(plan.graph.nodes[join].name.replace(".", "_"))
        while any(f"{stem}_at_{c}" in taken for c in range(plan.ranks)):
            stem += "_"
        found[join] = _sides(plan, join, bundle, stem)
        taken |= {side.method for side in found[join].sides}
    return found


def _ends_of(plan: Plan, parameter: int) -> list[str]:
    """The ends of a weight's name; its attribute in the program is one of these."""
    parts = plan.graph.nodes[parameter].name.split(".")
    return [".".join(parts[k:]) for k in range(len(parts))]


def _sides(plan: Plan, join: int, bundle: Bundle, stem: str) -> ParallelBranches:
    node, (axis, *places) = plan.graph.nodes[join], plan.choices[join].joins
    sides = []
    for coordinate in range(plan.placement.sizes[axis]):
        mine = [number for number, place in enumerate(places) if place == coordinate]
        nodes = frozenset(i for number in mine for i in bundle.branches[number].nodes)
        sides.append(
            CoordinateBranches(coordinate, tuple(node.inputs[n] for n in mine), nodes, f"{stem}_at_{coordinate}")
        )
    return ParallelBranches(bundle, axis, tuple(sides))


def render(plan: Plan, found: ParallelBranches, used: Used) -> Callable[[Sequence[str]], str]:
    """The line that runs this rank's branches and exchanges their results; its operands are those of all sides."""
    join = found.bundle.join
    node, choice, known = plan.graph.nodes[join], plan.choices[join], atoms(plan.graph)[join]
    whole = tuple(R if a == found.axis else x for a, x in enumerate(choice.output))
    local = local_part(plan, join, whole)
    dim = node["dim"]
    order = [i for side in found.sides for i in side.ends]
    widths = [sum(plan.graph.nodes[i].shape[dim] for i in side.ends) for side in found.sides]
    operands = operands_of(plan, found)
    shape = shape_text(local.shape())
    used.helpers.add("side_by_side")
    used.placed = used.uneven = True
    samples = "None"
    if is_split(choice.output[found.axis]):
        samples = str(known.dim_of(atom_of(choice.output[found.axis]))[0])
    else:
        used.helpers.add("joined_whole")
        used.primitives |= {"gather"}
    back = [order.index(i) for i in node.inputs]
    parts = [plan.graph.nodes[i].shape[dim] for i in order]
    untied = {side.coordinate for side in found.sides if node.gradient and not _reaches(plan, found.bundle, side)}
    used.helpers |= {"tied"} if untied else set()
    nothing = f"torch.empty(0, dtype={dtype_text(node.dtype)}, device=mesh.device)"

    def line(texts: Sequence[str]) -> str:
        of = dict(zip(operands, texts, strict=True))
        calls = []
        for side in found.sides:
            reads = [of[i] for i in found.reads(plan, side)]
            text = f"self.{side.method}({', '.join(reads)})" if side.ends else nothing
            if side.coordinate in untied:
                fork = found.bundle.fork
                tie = [of[fork]] if fork >= 0 and plan.graph.nodes[fork].gradient else []
                text = f"tied({', '.join([text, *tie])})"
            calls.append(f"lambda: {text}")
        text = f"side_by_side([{', '.join(calls)}], {dim}, {samples}, {plan.axes[found.axis]}, {widths}, {shape})"
        if back == sorted(back):
            return text
        return f"reordered({text}, {dim}, {parts}, {back})"

    return line


def _reaches(plan: Plan, bundle: Bundle, side: CoordinateBranches) -> bool:
    """True if gradients flow from a side's results to the fork, or, if the fork has none, to anything."""
    graph, fork = plan.graph, bundle.fork
    if fork < 0 or not graph.nodes[fork].gradient:
        return any(graph.nodes[i].gradient for i in side.ends)
    reached = {fork}
    for i in sorted(side.nodes):
        if graph.nodes[i].gradient and reached & {*graph.nodes[i].inputs}:
            reached.add(i)
    return bool(reached & {*side.ends})


def operands_of(plan: Plan, found: ParallelBranches) -> tuple[int, ...]:
    """The operands of the line: the values that any side reads."""
    return tuple(sorted({i for side in found.sides for i in found.reads(plan, side)}))


def comment(plan: Plan, found: ParallelBranches) -> str:
    """A comment on which inputs of the `cat` are at which coordinate."""
    numbers = {end: n for n, end in enumerate(plan.graph.nodes[found.bundle.join].inputs)}
    at = [f"{', '.join(str(numbers[i]) for i in side.ends)} @{side.coordinate}" for side in found.sides if side.ends]
    return f"parallel branches over {plan.axes[found.axis]}: {'; '.join(at)}"
