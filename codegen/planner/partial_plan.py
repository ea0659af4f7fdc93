"""What a plan decides, by the names of operators, weights and layers: all of it, or a part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import prod

from ...formulation.decisions import StoredAs
from ...formulation.placement.placement import Placement, Row
from ...formulation.spacetime.site import Site
from ...formulation.strategies.strategy import ANY, row_names, rows, rows_taken
from ...formulation.strategies.tensor_classes import classes
from ...model.errors import PartitaError
from ...model.graph.pcg import PCG, SOURCES, TRANSFERS
from ...model.graph.segments import segments
from ...model.wording import did_you_mean
from ..plan.plan import Plan


@dataclass(frozen=True, slots=True)
class PartialPlan:
    """Decisions of a plan; None and what is missing are open.

    `mesh`: the sizes of the axes of a stage's mesh. `row`, `placement`: see `Decisions`. `rows`: by operator its row
    on every axis, as `--fix` names them. `stage_of`: by operator its stage in the order of the model, of `stages`
    places with `chunks` each. `weights` and `layers`: how weights are stored, how layers are recomputed. `sites`: by
    operator the call that assigned it, if it is known.
    """

    mesh: tuple[int, ...] | None = None
    row: Row | None = None
    placement: Placement | None = None
    stages: int | None = None
    chunks: int = 1
    schedule: str | None = None
    micro_batches: int | None = None
    rows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stage_of: Mapping[str, int] = field(default_factory=dict)
    weights: Mapping[str, StoredAs] = field(default_factory=dict)
    layers: Mapping[str, str] = field(default_factory=dict)
    sites: Mapping[str, Site | None] = field(default_factory=dict)


class Openness:
    """What of a graph a plan may decide: what is not loosened.

    A weight is open with any of its readers, a layer with any of its operators. PartitaError: a name of `loosen` that
    is none of an operator or a module.
    """

    def __init__(self, pcg: PCG, loosen: Iterable[str] = ()) -> None:
        names = [node.name for node in pcg.nodes]
        self.loosened: set[str] = set()
        for pattern in loosen:
            found = {name for name in names if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")}
            if not found:
                raise PartitaError(
                    f"--loosen {pattern}: no operator or module has this name{did_you_mean(pattern, names)}"
                )
            self.loosened |= found

    def operators(self, pcg: PCG) -> list[int]:
        """The nodes that have a strategy of their own, and are not loosened: no views, repetitions or constants."""
        known = classes(pcg)
        return [
            index
            for index, node in enumerate(pcg.nodes)
            if node.op not in (*SOURCES, *TRANSFERS)
            and known.base[index] == index
            and index not in known.twin
            and not known.constant[index]
            and node.name not in self.loosened
        ]

    def weights(self, pcg: PCG) -> list[int]:
        """The weights that a plan may decide, with their readers."""
        return [
            i
            for i in pcg.of("parameter")
            if pcg.consumers[i] and self.loosened.isdisjoint(pcg.nodes[j].name for j in (i, *pcg.consumers[i]))
        ]

    def layers(self, pcg: PCG) -> dict[str, tuple[int, ...]]:
        """The nodes of the layers whose recomputation a plan may decide."""
        found = ((segment.name, segment.nodes) for segment in segments(pcg))
        return {name: at for name, at in found if self.loosened.isdisjoint(pcg.nodes[i].name for i in at)}

    def open_layers(self, pcg: PCG) -> set[int]:
        """The nodes of the layers of which an operator is loosened."""
        return {i for segment in segments(pcg) for i in segment.nodes} - {
            i for at in self.layers(pcg).values() for i in at
        }


def decisions_of(plan: Plan, openness: Openness) -> PartialPlan:
    """The decisions of a planner's plan. PartitaError: branches that run side by side, unless they are loosened."""
    if plan.schedule.by_operators:
        what = "unequal stages" if plan.schedule.unequal else f"schedule {plan.schedule}"
        raise PartitaError(f"--start: the decisions of a plan with {what} cannot be taken as fixed")
    stages, inner = plan.stages, plan.stages[0].placement
    rows_of, weights, layers = dict[str, tuple[str, ...]](), dict[str, StoredAs](), dict[str, str]()
    stage_of: dict[str, set[int]] = {}
    for number, part in enumerate(stages):
        for index in openness.operators(part.graph):
            name = part.graph.nodes[index].name
            if prod(inner.sizes) > 1:
                rows_of[name] = _rows(part, index)
            stage_of.setdefault(name, set()).add(number)
        again = {name: part.recompute.get(name, "none") for name in openness.layers(part.graph)}
        layers |= again
        for index in openness.weights(part.graph):
            weights[part.graph.nodes[index].name] = _stored(part, index)
    return PartialPlan(
        mesh=inner.sizes,
        row=plan.placement.matrix[0] if plan.size > 1 else (1,) * len(plan.machine.hierarchy),
        placement=inner,
        stages=plan.size,
        chunks=plan.chunks,
        schedule=plan.schedule.name if plan.size > 1 else None,
        micro_batches=plan.micro_batches,
        rows=rows_of,
        stage_of={name: min(numbers) for name, numbers in stage_of.items() if len(numbers) == 1},
        weights=weights,
        layers=layers,
    )


def _rows(part: Plan, index: int) -> tuple[str, ...]:
    """The names of the rows of an operator; `ANY` for what is no row, as of an alternative that is not taken."""
    choice, node = part.choices[index], part.graph.nodes[index]
    if choice.beside or choice.joins:
        raise PartitaError(
            f"{node.name!r} belongs to branches that run side by side, which the planner does not take as fixed: "
            f"--loosen {node.name} and the other operators of the branches"
        )
    names = dict(zip(rows(part.graph, index), row_names(part.graph, index), strict=True))
    return tuple(
        ANY if row is None else names[row] for row in rows_taken(part.graph, index, choice.inputs, choice.output)
    )


def _stored(part: Plan, index: int) -> StoredAs:
    choice = part.choices[index]
    again = {i for segment in segments(part.graph) if segment.name in part.recompute for i in segment.nodes}
    gathered = None if again.intersection(part.graph.consumers[index]) else choice.regather
    return StoredAs(choice.output, choice.sharded_states, choice.sharded_gradients, choice.offloaded, gathered)
