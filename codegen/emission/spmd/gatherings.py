"""Fully sharded weights that are gathered together: those of a layer that are split over the same axes, in one message.

Where a plan overlaps, such a message leaves while the layer before computes (`templates/gathering.jinja`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ....formulation.weights.buckets import cut_into_buckets
from ....model.graph.builder import free_name
from ....model.graph.dtypes import FLOATS, ITEMSIZE
from ....model.graph.layout import Action, Layout, Step, steps
from ....model.graph.segments import places
from ....model.graph.sparse_tables import sparse_tables
from ....model.machine.precision import precision
from ...plan.memo import once_per_plan
from ...plan.plan import Plan
from ...plan.routes import route
from ..common.conversions import TakenApart, local_part, taken_apart
from ..common.text import shape_text, wrap


@dataclass(frozen=True, slots=True)
class Gathering:
    """Weights that travel in one message, how each is put together, and the layouts that result.

    They are gathered over one of the `axes` after the other: `apart` has what each axis joins of every weight. `place`:
    the segment that reads them, or another part of the graph. `kept`: whether each is kept for backward, which
    otherwise gathers it again.
    """

    place: str
    axes: tuple[str, ...]
    kept: tuple[bool, ...]
    weights: tuple[int, ...]
    apart: tuple[tuple[TakenApart, ...], ...]
    layouts: tuple[Layout, ...]


@dataclass
class ClassGatherings:
    """The gatherings of a class, under the names of its attributes; `taken` has those of others."""

    taken: set[str]
    names: dict[Gathering, str] = field(default_factory=dict)

    def name(self, gathering: Gathering, weights: Mapping[int, str]) -> str:
        """The attribute of a gathering; `weights`: those of the weights."""
        if gathering not in self.names:
            alone = len(gathering.weights) == 1
            wish = f"whole_{weights[gathering.weights[0]].removeprefix('self.')}" if alone else "gathering"
            self.names[gathering] = free_name(wish, self.taken)
            self.taken.add(self.names[gathering])
        return self.names[gathering]

    @property
    def several_layers(self) -> bool:
        """True if the class has those of several layers."""
        return len({each.place for each in self.names}) > 1

    def lines(self, weights: Mapping[int, str]) -> list[str]:
        """The lines of the constructor that make them."""
        lines: list[str] = []
        for gathering, name in self.names.items():
            at, sizes = [], []
            for index, apart in zip(gathering.weights, gathering.apart, strict=True):
                attribute = weights[index].removeprefix("self.")
                place = ", ".join(map(_place, apart))
                at.append(f'"{attribute}": {place if len(apart) == 1 else f"[{place}]"}')
                if apart[0].size is not None:
                    sizes.append(f'"{attribute}": {apart[0].size}')
            axes = ", ".join(gathering.axes)
            arguments = ["self", axes if len(gathering.axes) == 1 else f"[{axes}]", f"{{{', '.join(at)}}}"]
            arguments += [f"sizes={{{', '.join(sizes)}}}"] * bool(sizes) + _kept(gathering, weights)
            if layer := list(dict.fromkeys(each.place for each in self.names)).index(gathering.place):
                arguments.append(f"layer={layer}")
            lines += wrap(f"self.{name} = Gathering({', '.join(arguments)})", 8)
        return lines


def _kept(gathering: Gathering, weights: Mapping[int, str]) -> list[str]:
    """The argument that says which weights are kept, unless all are."""
    if all(gathering.kept):
        return []
    kept = (weights[i] for i, kept in zip(gathering.weights, gathering.kept, strict=True) if kept)
    names = ", ".join(f'"{name.removeprefix("self.")}"' for name in kept)
    return [f"kept=[{names}]"]


def _place(apart: TakenApart) -> str:
    """The dim that an axis joins: a number, or (dim, d, lengths) if dim d is unflattened before."""
    (dim,) = apart.dims
    return next((f"({dim}, {d}, {shape_text(lengths)})" for d, lengths in apart.unflattened), str(dim))


def gatherings(
    plan: Plan, own: frozenset[int], weights: Mapping[int, str], recomputed: bool
) -> dict[tuple[int, Layout], Gathering]:
    """The gatherings of a function that computes the nodes `own`: for each weight in the layout that readers need.

    `recomputed`: backward computes all of the function again.
    """
    if not travels_ahead(plan):
        return {}
    found: dict[tuple[str | int, tuple[int, ...], bool], dict[int, tuple[Layout, tuple[TakenApart, ...]]]] = {}
    kept: dict[int, bool] = {}
    for index in weights:
        wanted = _gathered(plan, index, own)
        if wanted is None:
            continue
        layout, axes, apart = wanted
        node, again = plan.graph.nodes[index], plan.choices[index].regather and not recomputed
        if again and not node.gradient:  # nothing says when backward needs them no longer
            continue
        read_at = {places(plan.graph)[c] for c in plan.graph.consumers[index] if c in own}
        place = read_at.pop() if len(read_at) == 1 else f"weight {index}"
        kept[index] = not again
        found.setdefault((place, axes, node.gradient), {})[index] = layout, apart
    result: dict[tuple[int, Layout], Gathering] = {}
    for (place, axes, _), together in found.items():
        names = tuple(plan.axes[axis] for axis in axes)
        in_buckets = isinstance(place, int)  # between layers: a layer's weights are one message
        cut = cut_into_buckets((i, _bytes(plan, i)) for i in together) if in_buckets else [[*together]]
        for number, indices in enumerate(cut):
            layouts, aparts = zip(*(together[i] for i in indices), strict=True)
            of_each = tuple(kept[index] for index in indices)
            gathering = Gathering(f"{place}, {number}", names, of_each, tuple(indices), aparts, layouts)
            result |= dict.fromkeys(zip(indices, layouts, strict=True), gathering)
    return result


@once_per_plan
def travels_ahead(plan: Plan) -> bool:
    """True if the program of a plan gathers some weights ahead of their use: its price counts the copies."""
    everything = frozenset(range(len(plan.graph.nodes)))
    return bool(plan.together) and any(_gathered(plan, index, everything) for index in plan.graph.of("parameter"))


def _gathered(
    plan: Plan, index: int, own: frozenset[int]
) -> tuple[Layout, tuple[int, ...], tuple[TakenApart, ...]] | None:
    """The layout in which all of `own` read a weight, if gatherings lead to it; their axes, and what each joins."""
    graph, choice, node = plan.graph, plan.choices[index], plan.graph.nodes[index]
    if (
        node.op != "parameter"
        or node.dtype not in FLOATS
        or index in sparse_tables(graph)
        or choice.at
        or choice.beside
    ):
        return None
    if not own.issuperset(graph.consumers[index]):
        return None
    read = {layout for layout, recorded in _reads(plan, index) if recorded}
    if len(read) != 1:
        return None
    (layout,) = read
    if choice.given not in (choice.output, layout):
        return None
    cheapest, straight = route(plan, index, choice.output, layout), steps(choice.output, layout)
    joined = _joined(plan, index, cheapest)
    # Of small weights it may be cheaper to copy them and to add up all of their gradients, in messages of their own.
    if joined is None and _gathered_over(cheapest) == _gathered_over(straight):
        joined = _joined(plan, index, straight)
    return None if joined is None else (layout, *joined)


def _gathered_over(moves: Sequence[Step]) -> list[int] | None:
    """The axes over which moves gather, one after the other; None if they move values otherwise."""
    acting = [step for step in moves if step.move.value is not Action.NOTHING]
    return [s.axis for s in acting] if all(s.move.value is Action.GATHER for s in acting) else None


def _joined(plan: Plan, index: int, moves: Sequence[Step]) -> tuple[tuple[int, ...], tuple[TakenApart, ...]] | None:
    """The axes over which moves gather a weight and scatter its gradient, and what each joins; None of other moves."""
    choice, node = plan.choices[index], plan.graph.nodes[index]
    sizes, before = plan.placement.sizes, local_part(plan, index, choice.output)
    axes, joined = [], []
    for step in moves:
        acts = step.move.value is not Action.NOTHING or (node.gradient and step.move.gradient is not Action.NOTHING)
        if sizes[step.axis] > 1 and acts:
            if step.move.value is not Action.GATHER:
                return None
            if node.gradient and step.move.gradient is not Action.SCATTER_SUM:
                return None
            axes.append(step.axis)
            joined.append(taken_apart(before, step))
        before = before.with_letter(step.axis, step.target)
    if not axes or (len(axes) > 1 and any(apart.uneven for apart in joined)):
        return None
    return tuple(axes), tuple(joined)


def _reads(plan: Plan, index: int) -> Iterator[tuple[Layout, bool]]:
    """The layouts in which a weight is read, and whether autograd records it."""
    nodes, choices = plan.graph.nodes, plan.choices
    for reader in plan.graph.consumers[index]:
        recorded = nodes[reader].gradient or not nodes[index].gradient
        for i, layout in zip(nodes[reader].inputs, choices[reader].inputs, strict=True):
            if i == index:
                yield layout, recorded


def _bytes(plan: Plan, index: int) -> int:
    """Bytes of a weight in the dtype in which the model computes, at most."""
    return plan.graph.nodes[index].numel * ITEMSIZE[precision(plan.dtype).compute]
