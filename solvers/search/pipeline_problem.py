"""A planning problem as a pipeline: the parts of its graph between boundaries where it can be cut."""

import pickle
from collections import Counter
from collections.abc import Hashable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ...formulation.network.network import INFINITE
from ...formulation.pipeline.configuration import Configuration
from ...formulation.pipeline.stage_transfers import together_ns, transfer_price
from ...formulation.strategies.fusion import fused_operands
from ...formulation.strategies.node_floors import floors_ns, update_floor_ns
from ...formulation.strategies.tensor_classes import classes
from ...model.graph.batch import with_batch
from ...model.graph.folded import pass_of
from ...model.graph.pcg import PCG
from ...model.graph.segments import segments
from ...model.graph.stages import boundaries, boundaries_at, stage, stage_kind
from ...model.machine.precision import precision
from ...model.operators.operator import operator
from .one_f_one_b_bound import OneFOneBBound
from .planning_problem import PlanningProblem
from .repeated_bound import BothWaysBound, FinishBound, RepeatedBound
from .shared_operators import Least
from .shortest_cut import Times
from .slots_bound import SlotsBound
from .zero_bubble_bound import ZeroBubbleBound

_FEW_STAGES = 4
"""The most stages of 1F1B that `OneFOneBBound` bounds: of more there are too many cuts to compare."""


@dataclass(frozen=True, eq=False)
class PipelineProblem:
    """A problem and the parts between the boundaries of its graph; boundary 0 is its start, the last one its end.

    `least_shared`: what shared operators take at least in a configuration, once it is known.
    """

    problem: PlanningProblem
    least_shared: dict[Configuration, Least] = field(default_factory=dict, init=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process unpickles a problem once, however often it is sent, so that its caches last."""
        return _read, (self._written,)

    @cached_property
    def _written(self) -> bytes:
        return pickle.dumps(self.problem)

    @cached_property
    def count(self) -> int:
        """Number of boundaries, both ends included."""
        return len(boundaries(self.problem.pcg))

    @cached_property
    def cuts(self) -> tuple[range, ...]:
        """The boundaries at which each stage may begin, and the last may end, where that is fixed; else none."""
        space = self.problem.space
        at = [range(b, b + 1) for b in boundaries_at(self.problem.pcg, space.stages_at)]
        at = at or [range(first, last + 1) for first, last in space.decided.cuts]
        return (range(1), *at, range(self.count - 1, self.count)) if at else ()

    @cached_property
    def _segments(self) -> tuple[PCG, ...]:
        """The graphs between every boundary and the next."""
        return tuple(stage(self.problem.pcg, i, i + 1).graph for i in range(self.count - 1))

    def kind(self, i: int, j: int) -> Hashable:
        """Equal for parts with equal computation and cost."""
        return self._kinds[i, j]

    @cached_property
    def _kinds(self) -> dict[tuple[int, int], int]:
        """A number for the kind of every part."""
        numbers: dict[Hashable, int] = {}
        parts = ((i, j) for i in range(self.count) for j in range(i + 1, self.count))
        kinds = {(i, j): (stage_kind(self.problem.pcg, i, j), self._fused[i:j], self._decided[i:j]) for i, j in parts}
        return {part: numbers.setdefault(kind, len(numbers)) for part, kind in kinds.items()}

    @cached_property
    def _decided(self) -> tuple[Hashable, ...]:
        """What is fixed or decided between every boundary and the next, by places that equal parts share."""
        fixed, decided = self.problem.space.fixed, self.problem.space.decided
        found = []
        for graph in self._segments:
            names = [(place, node.name) for place, node in enumerate(graph.nodes)]
            again = [(s.nodes[0], decided.recomputed.get(s.name)) for s in segments(graph) if decided.recomputed]
            found.append(
                (
                    tuple((place, fixed[name]) for place, name in names if name in fixed),
                    tuple((place, decided.stored[name]) for place, name in names if name in decided.stored),
                    tuple(again),
                )
            )
        return tuple(found)

    @cached_property
    def _fused(self) -> tuple[int, ...]:
        """A number for what a compiled program fuses between every boundary and the next."""
        if not self.problem.space.compile:
            return (0,) * len(self._segments)
        numbers: dict[Hashable, int] = {}
        fused = (tuple(sorted(fused_operands(graph).items())) for graph in self._segments)
        return tuple(numbers.setdefault(each, len(numbers)) for each in fused)

    @cached_property
    def weights(self) -> dict[str, frozenset[int]]:
        """Weights shared by several segments, with the numbers of these segments."""
        found: dict[str, set[int]] = {}
        for number, graph in enumerate(self._segments):
            for node in graph.nodes:
                if node.op == "parameter" and node.get("stages", 1) > 1:
                    found.setdefault(node.name, set()).add(number)
        return {name: frozenset(found[name]) for name in sorted(found)}

    def group(self, boundary: int) -> Hashable:
        """Equal for boundaries that tensors of the same form cross."""
        return tuple(
            (node.shape, node.dtype, node["atoms"]) for node in self._segments[boundary].nodes if node.op == "receive"
        )

    def shared(self, i: int, j: int) -> tuple[bool, ...]:
        """For every shared weight: True if both part (i, j) and another one have it."""
        inside = frozenset(range(i, j))
        return tuple(bool(own & inside) and not own <= inside for own in self.weights.values())

    def floors(self, configuration: Configuration) -> Times:
        """[n, n]: lower bounds on the times of parts (i, j) at any placement; INFINITE where i >= j."""
        return _floors(self, configuration.micro_batches, configuration.groups)

    def finish_bound(self, configuration: Configuration) -> FinishBound | None:
        """Bound on finish times if the schedule is priced by slots; None if busy times give the step, or its bound."""
        slots = configuration.schedule.priced_by_slots and not configuration.formula_bounds
        if not slots or configuration.chunks > 1:  # busy times of a device add up
            return None
        p, k = configuration.groups, configuration.micro_batches
        if configuration.directions > 1:
            _, forward, backward, _ = _sums(self, k, p)
            return BothWaysBound(forward + backward, forward + backward, k)
        if configuration.schedule.passes > 1:
            _, first, backward, _ = _sums(self, k, p, first=True)
            return RepeatedBound(first + backward, _sums(self, k, p)[1] + backward, k)
        _, forward, backward, inward = _sums(self, k, p)
        ahead = tuple(map(configuration.forwards_ahead, range(configuration.stages)))
        return ZeroBubbleBound(forward, backward, inward, ahead, k)

    def slots(self, configuration: Configuration, messages: Times | None = None) -> OneFOneBBound | SlotsBound | None:
        """Bound on the step, slot by slot, with these messages, or their floors; None where there is no such bound."""
        p, k = configuration.devices, configuration.micro_batches
        by_paths = configuration.bounded_by_paths or (configuration.is_one_f_one_b and p > _FEW_STAGES)
        if not (configuration.formula_bounds and (by_paths or configuration.is_one_f_one_b)):
            return None
        _, forward, backward, _ = _sums(self, k, p)
        least = self.message_floors(configuration) if messages is None else messages
        if by_paths:
            return SlotsBound(configuration, forward, backward, least, self._update_floors(p))
        return OneFOneBBound(p, k, forward, backward, least, self._update_floors(p))

    def _update_floors(self, stages: int) -> Times:
        """[n]: lower bounds on the updates of all weights before each boundary, evenly spread over a stage's devices.

        Without those that several stages have.
        """
        q = self.problem
        training, count = q.training, q.machine.devices // stages
        each = (update_floor_ns(g, q.machine, count, training, bundles=q.space.bundles) for g in self._segments)
        return np.cumsum([0, *each])

    def backward_floor(self, configuration: Configuration, i: int, j: int, without: AbstractSet[int]) -> int:
        """Lower bound on the backwards of a part in a step, but for some of its nodes."""
        floors = _node_floors(self, configuration.micro_batches, configuration.devices)[2]
        found, skipped = stage(self.problem.pcg, i, j), self.repeated(i, j) | without
        own = (
            old
            for n, (node, old) in enumerate(zip(found.graph.nodes, found.nodes, strict=True))
            if n not in skipped and node.op not in ("receive", "send")
        )
        return configuration.micro_batches * sum(int(floors[old]) for old in own)

    def transfer_floors(self, configuration: Configuration) -> Times:
        """[2, n]: lower bounds on a stage's time to receive, and to send, what crosses each boundary (`Operators`)."""
        k, (ahead, back) = configuration.micro_batches, self._crossing_ns(configuration)
        if not self.problem.space.hides_messages(self.problem.machine):
            return np.stack([k * (ahead + back)] * 2)
        if configuration.waits_for_messages:
            return np.stack([back, ahead])
        if configuration.bounded_by_slots:
            return np.stack([0 * ahead] * 2)
        return np.stack([ahead, 0 * ahead] if configuration.schedule.delays_messages else [k * back, k * ahead])

    def message_floors(self, configuration: Configuration) -> Times:
        """[2, n]: lower bounds on the messages across each boundary, ahead and back, that pass between slots.

        They are 0 where stages count the messages that they send.
        """
        found = np.stack(self._crossing_ns(configuration))
        between = self.problem.space.hides_messages(self.problem.machine) and not configuration.waits_for_messages
        return found if between else 0 * found

    def _crossing_ns(self, configuration: Configuration) -> tuple[Times, Times]:
        """[n] each: lower bounds on sending what crosses each boundary, of a micro-batch, and the gradients back."""
        q, item = self.problem, precision(self.problem.training.dtype).itemsize
        price, devices = transfer_price(q.machine, configuration.row), q.machine.devices // configuration.groups
        nodes = with_batch(q.pcg, q.batch // configuration.micro_batches).nodes
        crossing = [[nodes[i] for i in boundary.crossing] for boundary in boundaries(q.pcg)]

        def once(gradient: bool) -> Times:
            own = [[n for n in each if n.gradient or not gradient] for each in crossing]
            return np.array([together_ns(price, [n.numel * item(n.dtype) // devices for n in each]) for each in own])

        return once(gradient=False), once(gradient=True)

    def graph(self, i: int, j: int, micro_batches: int) -> PCG:
        """The graph of part (i, j) for one micro-batch; it may receive partial sums, as inside a larger part."""
        graph = stage(with_batch(self.problem.pcg, self.problem.batch // micro_batches), i, j).graph
        return graph if i == 0 else _loose(graph)

    def repeated(self, i: int, j: int) -> frozenset[int]:
        """Nodes of part (i, j) that other segments compute too."""
        return frozenset(n for n, old in enumerate(stage(self.problem.pcg, i, j).nodes) if self._times[old] > 1)

    def held_elsewhere(self, i: int, j: int) -> frozenset[int]:
        """The `receive` nodes of part (i, j) whose tensors other parts may also keep for backward."""
        pcg, known, bounds = self.problem.pcg, classes(self.problem.pcg), boundaries(self.problem.pcg)
        found = stage(pcg, i, j)

        def elsewhere(tensor: int) -> bool:
            saved = operator(pcg.nodes[tensor].op).saved
            before = any(use.node < bounds[i].position for use in known.reads.get(tensor, ()))
            return before or tensor in bounds[j].crossing or not {"y", "noise"}.isdisjoint(saved)

        pairs = zip(found.graph.nodes, found.nodes, strict=True)
        return frozenset(n for n, (node, old) in enumerate(pairs) if node.op == "receive" and elsewhere(old))

    @cached_property
    def _times(self) -> Counter[int]:
        """Number of segments that compute each node."""
        return Counter(
            old
            for i in range(self.count - 1)
            for node, old in zip(self._segments[i].nodes, stage(self.problem.pcg, i, i + 1).nodes, strict=True)
            if node.op not in ("receive", "send")
        )


@lru_cache(maxsize=64)
def _node_floors(pipeline: PipelineProblem, micro_batches: int, stages: int) -> Times:
    """[4, nodes]: lower bounds on the time of each node, for one micro-batch (see `Floor`)."""
    q = pipeline.problem
    small, count = with_batch(q.pcg, q.batch // micro_batches), q.machine.devices // stages
    return floors_ns(small, q.machine, count, precision(q.training.dtype), q.space.compile)


@lru_cache(maxsize=4)
def _read(written: bytes) -> PipelineProblem:
    return PipelineProblem(pickle.loads(written))


@lru_cache(maxsize=64)
def _loose(graph: PCG) -> PCG:
    """The graph with `receive` nodes that accept partial sums."""
    nodes = (
        replace(n, attributes=tuple(sorted((*n.attributes, ("loose", True))))) if n.op == "receive" else n
        for n in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes), origin=None if graph.origin is None else _loose(graph.origin))


@lru_cache(maxsize=512)
def _floors(pipeline: PipelineProblem, micro_batches: int, stages: int) -> Times:
    """[n, n]: lower bounds on the times of parts, summed over their nodes."""
    at = micro_batches * _sums(pipeline, micro_batches, stages)[0]
    times = at[None, :] - at[:, None]
    return np.where(np.triu(np.ones_like(times), 1) > 0, times, INFINITE)


@lru_cache(maxsize=512)
def _sums(pipeline: PipelineProblem, micro_batches: int, stages: int, first: bool = False) -> Times:
    """[4, n]: lower bounds on the times of everything before each boundary, for one micro-batch (see `Floor`).

    `first`: of forwards, those of the first pass alone.
    """
    q, floors = pipeline.problem, _node_floors(pipeline, micro_batches, stages)
    if first:
        floors = floors.copy()
        floors[1] *= np.array(pass_of(q.pcg)) == 0
    before = np.cumsum(floors, axis=1)
    before = np.concatenate([np.zeros((len(before), 1), dtype=np.int64), before], axis=1)
    return before[:, [b.position for b in boundaries(q.pcg)]]
