"""Parallel branches as program text: a method per coordinate, and the line that joins their results."""

from collections.abc import Callable, Mapping, Sequence
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
    """The branches at one coordinate, or a range: the ends of the bundle that they compute, and their nodes."""

    coordinate: int
    stop: int
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
        """The values that a side reads: the fork, ends that are computed outside, or inputs of the graph."""
        graph, constant = plan.graph, classes(plan.graph).constant
        read = {i for n in side.nodes for i in graph.nodes[n].inputs} - side.nodes
        read |= set(side.ends) - side.nodes
        found = {i for i in read if i == self.bundle.fork or graph.nodes[i].op == "input"}
        found |= {*side.ends} & {*self.bundle.outside}
        if not side.ends and self.bundle.fork >= 0:
            found = {self.bundle.fork}
        return tuple(sorted(i for i in found if not constant[i]))

    def readers(self, plan: Plan, end: int) -> list[tuple[int, int]]:
        """The nodes through which an end is joined, each with the operand: of a sum, those up the tree."""
        nodes, index, found = plan.graph.nodes, end, list[tuple[int, int]]()
        while index != self.bundle.join:
            reader = next(i for i in self.bundle.joining if index in nodes[i].inputs)
            found.append((reader, nodes[reader].inputs.index(index)))
            index = reader
        return found


def side_by_side(plan: Plan) -> dict[int, ParallelBranches]:
    """The bundles of a plan, by the node that joins them."""
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
    axis, *places = plan.choices[join].joins
    shares = plan.choices[join].shares or (1,) * len(places)
    stops = {start: start + share for start, share in zip(places, shares, strict=True)}
    sides, coordinate = [], 0
    while coordinate < plan.placement.sizes[axis]:
        mine = [number for number, place in enumerate(places) if place == coordinate]
        nodes = frozenset(i for number in mine for i in bundle.branches[number].nodes)
        ends, stop = tuple(bundle.ends[n] for n in mine), stops.get(coordinate, coordinate + 1)
        sides.append(CoordinateBranches(coordinate, stop, ends, nodes, f"{stem}_at_{coordinate}"))
        coordinate = stop
    return ParallelBranches(bundle, axis, tuple(sides))


def render(
    plan: Plan, found: ParallelBranches, used: Used, divisors: Mapping[int, str]
) -> Callable[[Sequence[str]], str]:
    """The line that runs this rank's branches and joins their results; its operands are those of all sides.

    `divisors`: names of the divisors of losses.
    """
    node, operands = plan.graph.nodes[found.bundle.join], operands_of(plan, found)
    ties = [_ties(plan, found.bundle, side) if node.gradient else None for side in found.sides]
    used.helpers |= {"tied"} if any(tie is not None for tie in ties) else set()
    used.placed = True
    joined, nothing = _added(plan, found, used) if found.bundle.adds else _concatenated(plan, found, used)
    nothing = f"torch.{nothing}, dtype={dtype_text(node.dtype)}, device=mesh.device)"

    def line(texts: Sequence[str]) -> str:
        of = dict(zip(operands, texts, strict=True))
        calls = []
        for side, tie in zip(found.sides, ties, strict=True):
            reads = [of[i] for i in found.reads(plan, side)] + [name for i, name in divisors.items() if i in side.nodes]
            text = f"self.{side.method}({', '.join(reads)})" if side.ends else nothing
            if tie is not None:
                text = f"tied({', '.join([text, *(of[i] for i in tie)])})"
            calls.append(f"lambda: {text}")
        return joined(f"[{', '.join(calls)}]")

    return line


def _local_shape(plan: Plan, found: ParallelBranches) -> str:
    """The shape of what is joined, whole on the axis of the branches."""
    join = found.bundle.join
    whole = tuple(R if a == found.axis else x for a, x in enumerate(plan.choices[join].output))
    return shape_text(local_part(plan, join, whole).shape())


def _added(plan: Plan, found: ParallelBranches, used: Used) -> tuple[Callable[[str], str], str]:
    """A sum of branches, and what a coordinate without any adds."""
    used.helpers.add("addend")
    starts = [side.coordinate for side in found.sides]
    where = plan.axes[found.axis]
    if any(side.stop > side.coordinate + 1 for side in found.sides):
        used.helpers.add("ranged")
        where += f", {starts}"
    return (lambda calls: f"addend({calls}, {where})"), f"zeros({_local_shape(plan, found)}"


def _concatenated(plan: Plan, found: ParallelBranches, used: Used) -> tuple[Callable[[str], str], str]:
    """A `cat` of branches, whose pieces are exchanged, and what a coordinate without any sends."""
    join = found.bundle.join
    node, choice, known = plan.graph.nodes[join], plan.choices[join], atoms(plan.graph)[join]
    dim, shape = node["dim"], _local_shape(plan, found)
    order = [i for side in found.sides for i in side.ends]
    widths = [sum(plan.graph.nodes[i].shape[dim] for i in side.ends) for side in found.sides]
    used.helpers.add("side_by_side")
    used.uneven = True
    samples = "None"
    if is_split(choice.output[found.axis]):
        samples = str(known.dim_of(atom_of(choice.output[found.axis]))[0])
    else:
        used.helpers.add("joined_whole")
        used.primitives |= {"gather"}
    back = [order.index(i) for i in node.inputs]
    parts = [plan.graph.nodes[i].shape[dim] for i in order]

    def joined(calls: str) -> str:
        text = f"side_by_side({calls}, {dim}, {samples}, {plan.axes[found.axis]}, {widths}, {shape})"
        return text if back == sorted(back) else f"reordered({text}, {dim}, {parts}, {back})"

    return joined, "empty(0"


def _ties(plan: Plan, bundle: Bundle, side: CoordinateBranches) -> tuple[int, ...] | None:
    """The tensors that need a gradient from all coordinates, but get none from a side; None if its backward runs alike.

    Without such tensors a side is tied to none if nothing that it computes has a gradient.
    """
    graph = plan.graph
    shared = [i for i in (bundle.fork, *bundle.outside) if i >= 0 and graph.nodes[i].gradient]
    missing = tuple(dict.fromkeys(i for i in shared if not _reaches(plan, i, side)))
    if shared:
        return missing or None
    return None if any(graph.nodes[i].gradient for i in side.ends) else ()


def _reaches(plan: Plan, source: int, side: CoordinateBranches) -> bool:
    """True if gradients flow from a side's results to a tensor."""
    graph, reached = plan.graph, {source}
    for i in sorted(side.nodes):
        if graph.nodes[i].gradient and reached & {*graph.nodes[i].inputs}:
            reached.add(i)
    return bool(reached & {*side.ends})


def operands_of(plan: Plan, found: ParallelBranches) -> tuple[int, ...]:
    """The operands of the line: the values that any side reads, or is tied to."""
    return tuple(sorted({i for side in found.sides for i in found.reads(plan, side)}))


def comment(plan: Plan, found: ParallelBranches) -> str:
    """A comment on which ends of the bundle are at which coordinate."""
    numbers = {end: n for n, end in enumerate(found.bundle.ends)}
    at = [f"{', '.join(str(numbers[i]) for i in side.ends)} {_place(side)}" for side in found.sides if side.ends]
    return f"parallel branches over {plan.axes[found.axis]}: {'; '.join(at)}"


def _place(side: CoordinateBranches) -> str:
    return f"@{side.coordinate}" + (f"..{side.stop - 1}" if side.stop > side.coordinate + 1 else "")
