"""The whole problem on small instances, against looking at every plan that there is, priced as any plan is.

Every pipeline, inner mesh, cut, number of micro-batches, recomputation and layout: nothing of the search is used, nor
of the tables that it searches in. Prices are sums over nodes and over what they hand each other, so that prices of
plans that differ in two decisions at most tell those of all; drawn plans show that they do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, product
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from partita.codegen.plan.plan import Plan
from partita.codegen.planner.confirmed_plan import confirmed_plan, step_ns
from partita.codegen.planner.decode import choices
from partita.codegen.pricing.pipeline_runs import phase_ns
from partita.codegen.pricing.plan_price import plan_price
from partita.codegen.pricing.stage_price import stage_price
from partita.formulation.encoding.encode import encode
from partita.formulation.encoding.encoding import Encoding
from partita.formulation.encoding.encoding_options import EncodingOptions, StageContext
from partita.formulation.network.network import INFINITE
from partita.formulation.pipeline.configuration import Configuration, rows
from partita.formulation.pipeline.schedule import GPIPE, INTERLEAVED, ONE_F_ONE_B, Schedule
from partita.formulation.pipeline.stage_transfers import transfer_price
from partita.formulation.placement.placement import Placement, Row, distinct, placements
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.graph.batch import with_batch
from partita.model.graph.layout import Layout
from partita.model.graph.pcg import PCG
from partita.model.graph.segments import MODES
from partita.model.graph.stages import boundaries, stage
from partita.model.machine.machine import Machine, stage_machine
from partita.model.training import Training
from partita.solvers.protocol import Status, solver
from partita.solvers.search.planning_problem import PlanningProblem
from partita.solvers.search.result import ConfigurationSpace, SearchResult
from partita.solvers.search.search import search

from ..levels import some

Ints: TypeAlias = npt.NDArray[np.int64]
Slots: TypeAlias = dict[tuple[Layout | None, Layout | None], npt.NDArray[np.int64]]
"""For the layouts at the ends of a stage, its times (`in_slots`)."""
Front: TypeAlias = dict[tuple[Layout | None, Layout | None], list[tuple[int, int]]]
"""For the layouts at the ends of a stage, (ns, bytes): the least time for so many bytes, which grow."""


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down(torch.relu(self.up(x)))
        return found


class Tower(nn.Module):
    """Linear layers of these widths, or pairs of the first width."""

    def __init__(self, widths: Sequence[int], pairs: bool) -> None:
        super().__init__()
        width, count = widths[0], len(widths) - 1
        single = [nn.Linear(a, b, bias=False) for a, b in pairwise(widths)]
        self.layers = nn.ModuleList([Layer(width) for _ in range(count)] if pairs else single)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.mean()


FORMULA = replace(ONE_F_ONE_B, name="formula", formula_bounds=False, has_step_formula=True)
"""1F1B whose step is the formula, so that the least one is known exactly."""

PAIRS = (("up", "o"), ("relu", "i.2"), ("down", "i"))
"""Rows of a layer's nodes: columns, then rows."""


@dataclass(frozen=True)
class Instance:
    """A tower on a machine; `fixed` rows for nodes whose name ends so. Pipelines of so many stages a device."""

    layers: int
    levels: tuple[int, ...]
    micro_batches: tuple[int, ...]
    stages: tuple[int, ...]  # parts of the devices; 1: no pipeline
    modes: tuple[str, ...] = ("none",)
    fixed: tuple[tuple[str, str], ...] = (("mean", "d0"),)
    schedule: Schedule = FORMULA
    chunks: int = 1
    widths: tuple[int, ...] = (64, 128)  # of layers, in turn

    def problem(self) -> PlanningProblem:
        with torch.device("meta"):
            widths = [self.widths[i % len(self.widths)] for i in range(self.layers + 1)]
            module = Tower(widths, len(self.modes) > 1).train()
        batch = max(self.micro_batches) * 4
        graph = capture(module, (torch.zeros(4, 256, 64),), batch=batch)
        machine = Machine.adhoc(self.levels)
        slow = tuple(replace(level, bandwidth=level.bandwidth / 50, latency_ns=200.0) for level in machine.levels)
        machine = replace(machine, levels=slow, device=replace(machine.device, launch_ns=20.0))
        fix = tuple((n.name, row) for n in graph.nodes for end, row in self.fixed if n.name.endswith(end))
        every, modes = distinct(placements(self.levels)), self.modes
        return PlanningProblem(
            graph,
            machine,
            Training(batch, "float32", "adam"),
            every,
            self.micro_batches,
            SearchSpace(recompute="auto" if modes == MODES else "none", fix=fix),
        )

    def space(self, machine: Machine) -> ConfigurationSpace:
        """Meshes of one axis, so that all that they allow can be looked at."""
        none = (1,) * len(self.levels)
        every = [row for row in (none, *rows(self.levels)) if prod(row) in self.stages]
        inner = {row: distinct(placements(stage_machine(machine, row).hierarchy)) for row in every}
        flat = {row: tuple(p for p in places if len(p.sizes) == 1) for row, places in inner.items()}
        return ConfigurationSpace(flat, self.schedule, self.chunks)


Make: TypeAlias = Callable[[dict[int, int]], Plan]


Priced: TypeAlias = Callable[[Plan], list[int]]


def whole(plan: Plan) -> list[int]:
    """Time and memory of a stage."""
    cost = stage_price(plan)
    return [cost.objective_ns, cost.memory_bytes]


def in_slots(plan: Plan) -> list[int]:
    """Times of a stage: all forwards, all backwards, sums of gradients, the update, one message that it receives."""
    cost = stage_price(plan, delays_messages=True)
    message = sum(item.ns for item in cost.items if item.kind == "receive")
    sums = cost.completing_ns
    slots = phase_ns(cost, "forward") - message, phase_ns(cost, "backward")
    return [*slots, sums, phase_ns(cost, "update") - sums, message]


def all_of(found: Encoding, decided: dict[int, int], make: Make, rng: random.Random, priced: Priced = whole) -> Ints:
    """[..., n]: the price of every assignment of a stage that has the decided options, by prices of plans."""
    network, known = found.network, dict[tuple[tuple[int, int], ...], Ints]()
    sizes = [1 if v in decided else len(x.cost) for v, x in enumerate(network.variables)]
    tables = [v.cost for v in network.variables] + [e.cost for e in network.edges]
    assert all(int(table.max()) < INFINITE for table in tables), "all can be combined"

    def price(changed: dict[int, int]) -> Ints:
        key = tuple(sorted((v, o) for v, o in changed.items() if o))
        if key not in known:
            known[key] = np.array(priced(make(decided | dict(key))))
        return known[key]

    def placed(table: Any, *variables: int) -> Ints:
        return np.array(table).reshape(*(size if v in variables else 1 for v, size in enumerate(sizes)), len(none))

    none = price({})
    alone = [[price({v: o}) - none for o in range(size)] for v, size in enumerate(sizes)]
    total = np.zeros((*sizes, len(none)), dtype=np.int64) + none
    for v, table in enumerate(alone):
        total += placed(table, v)
    for u, v in {(min(e.u, e.v), max(e.u, e.v)) for e in network.edges}:
        if sizes[u] > 1 < sizes[v]:
            options = product(range(sizes[u]), range(sizes[v]))
            total += placed([price({u: a, v: b}) - none - alone[u][a] - alone[v][b] for a, b in options], u, v)
    for _ in range(20):
        drawn = tuple(rng.randrange(size) for size in sizes)
        assert (total[drawn] == price(dict(enumerate(drawn)))).all(), drawn
    return total


def assignments(
    q: PlanningProblem, graph: PCG, row: Row, place: Placement, k: int, flight: int, priced: Priced = whole
) -> Iterator[tuple[tuple[Layout | None, Layout | None], Ints]]:
    """The prices [n, ...] of all assignments of a stage, by the layouts of its ends and by what it computes again."""
    machine = stage_machine(q.machine, row)
    transfer = transfer_price(q.machine, row) if prod(row) > 1 else None
    found = encode(
        graph, machine, place, micro_batches=k, dtype=q.training.dtype, optimizer=q.training.optimizer,
        options=EncodingOptions(q.space, q.space.modes),
        stage=StageContext(flight, transfer),
    )  # fmt: skip
    assert len(found.recompute) < 2, "where several segments run again, memory is no sum"
    ends = [(n, found.operators[n][0]) for n, node in enumerate(found.pcg.nodes) if node.op in ("receive", "send")]

    def make(changed: dict[int, int]) -> Plan:
        taken = tuple(changed.get(v, 0) for v in range(len(found.network.variables)))
        again = found.recomputed(taken)
        return Plan(
            graph, machine, place, k, choices(found, taken), q.training.dtype, q.training.optimizer,
            recompute=again, in_flight=flight, transfer=transfer,
        )  # fmt: skip

    layouts = {
        v: [make({v: o}).choices[n].output for o in range(len(found.network.variables[v].cost))] for n, v in ends
    }
    for mode in range(len(q.space.modes) if found.recompute else 1):
        decided = dict.fromkeys(found.recompute.values(), mode)
        total = all_of(found, decided, make, random.Random(mode), priced)
        for options in product(*(range(len(layouts[v])) for _, v in ends)):
            at: list[Any] = [slice(None)] * total.ndim
            for (_, v), o in zip(ends, options, strict=True):
                at[v] = o
            taken = {found.pcg.nodes[n].op: layouts[v][o] for (n, v), o in zip(ends, options, strict=True)}
            yield (taken.get("receive"), taken.get("send")), total[tuple(at)].reshape(-1, total.shape[-1])


def front(q: PlanningProblem, graph: PCG, row: Row, place: Placement, k: int, flight: int) -> Front:
    """What a stage takes by what it needs, for every layout of its ends, whatever it computes again."""
    every: Front = {}
    for letters, found in assignments(q, graph, row, place, k, flight):
        every.setdefault(letters, []).extend(stairs(*found.T))
    return {letters: stairs(*np.array(steps).T) for letters, steps in every.items()}


def stairs(times: Ints, needs: Ints) -> list[tuple[int, int]]:
    """The (time, need) that no other one is below in both, by growing need."""
    order = np.lexsort((times, needs))
    times, needs = times[order], needs[order]
    best = np.minimum.accumulate(times)
    first = np.concatenate([[True], best[1:] < best[:-1]])
    return list(zip(times[first].tolist(), needs[first].tolist(), strict=True))


def fronts(instance: Instance, q: PlanningProblem) -> Iterator[tuple[Configuration, list[Front]]]:
    """The stages of every configuration and every cut."""
    space, last = instance.space(q.machine), len(boundaries(q.pcg)) - 1
    known: dict[Hashable, Front] = {}
    for row, places in space.placements.items():
        pipe = prod(row) > 1
        counts = [k for k in q.micro_batches if instance.chunks == 1 or not pipe or k % prod(row) == 0]
        for place, k in product(places, counts):
            made = Configuration(row, place.matrix, k, *((space.schedule, space.chunks) if pipe else ()))
            graph = with_batch(q.pcg, q.batch // k)
            for inner in combinations(range(1, last), made.stages - 1):
                stages = []
                for s, (a, b) in enumerate(pairwise((0, *inner, last))):
                    flight = made.in_flight(s)
                    key = row, place.matrix, k, a, b, flight
                    if key not in known:
                        known[key] = front(q, stage(graph, a, b).graph, row, place, k, flight)
                    stages.append(known[key])
                yield made, stages


def least(configuration: Configuration, stages: list[Front], capacity: int) -> int | None:
    """The least step with so many bytes a device, of which its stages have equal shares."""
    chains: list[tuple[Layout | None, list[int]]] = [(None, [])]
    for own in stages:
        times = {
            ends: min((ns for ns, need in steps if need <= capacity // configuration.chunks), default=None)
            for ends, steps in own.items()
        }
        chains = [
            (right, [*before, ns])
            for letters, before in chains
            for (left, right), ns in times.items()
            if left == letters and ns is not None
        ]
    return min((configuration.step_ns(busy) for _, busy in chains), default=None)


INSTANCES = {
    "two devices": Instance(2, (2,), (2,), (1, 2)),
    "two levels": Instance(2, (2, 2), (1, 2), (1, 2)),
    "four devices": Instance(3, (4,), (4,), (2,)),
    "eight devices": Instance(4, (2, 4), (4, 8), (4,)),
    "computed again": Instance(2, (2, 2), (2, 4), (2,), MODES, (("mean", "d0"), *PAIRS)),
    "gpipe": Instance(2, (4,), (4,), (1, 2), schedule=GPIPE),
}


@pytest.mark.parametrize("name", some(INSTANCES, 4))
def test_the_best_of_all_plans(name: str) -> None:
    """Whatever memory a device has: too little for any plan, so much that no plan needs more, and all between."""
    instance = INSTANCES[name]
    problem = instance.problem()
    every = list(fronts(instance, problem))
    needs = {
        made.chunks * need for made, stages in every for own in stages for steps in own.values() for _, need in steps
    }
    bests: dict[int | None, int] = {}  # with so many bytes at the least
    for capacity in sorted({min(needs) - 1, *needs}):
        steps = [ns for made, stages in every if (ns := least(made, stages, capacity)) is not None]
        bests.setdefault(min(steps, default=None), capacity)
    assert None in bests and len(bests) > 2
    again: set[str] = set()
    for best, capacity in bests.items():
        machine, reserved = problem.machine, problem.machine.device.reserved_bytes
        limited = replace(machine, device=replace(machine.device, memory_bytes=capacity + reserved))
        asked = replace(problem, machine=limited)
        found = search(asked, solver("auto"), space=instance.space(limited))
        assert found.objective == best
        if best is None:
            assert found.status is Status.INFEASIBLE
            continue
        assert (found.status, found.bound) == (Status.OPTIMAL, best)
        assert found.configuration is not None
        if found.configuration.devices > 1:
            plan = confirmed_plan(asked, found, {})
            cost, again = plan_price(plan), again | {*plan.recompute.values()}
            assert cost.objective_ns == best and cost.memory_bytes <= capacity
    assert again == ({"full"} if len(instance.modes) > 1 else set())


def least_of_slots(q: PlanningProblem, configuration: Configuration) -> int:
    """The least step of all cuts and assignments, each run slot by slot; there is memory for all."""
    k, row = configuration.micro_batches, configuration.row
    graph = with_batch(q.pcg, q.batch // k)
    last, found, known = len(boundaries(q.pcg)) - 1, list[int](), dict[tuple[int, int], Slots]()

    def slots(ends: tuple[int, int]) -> Slots:
        if ends not in known:
            part = stage(graph, *ends).graph
            every = assignments(q, part, row, configuration.placement, k, min(k, 2), in_slots)
            known[ends] = {letters: undominated(ns) for letters, ns in every}
        return known[ends]

    for inner in combinations(range(1, last), configuration.stages - 1):
        for chain in product(*(slots(ends).items() for ends in pairwise((0, *inner, last)))):
            if all(a[1] == b[0] for (a, _), (b, _) in pairwise(chain)):
                found.append(int(steps([times for _, times in chain], configuration).min()))
    return min(found)


def steps(stages: Sequence[Ints], configuration: Configuration) -> Ints:
    """The steps of all assignments of these stages, in the order of the schedule."""
    k, devices, count = configuration.micro_batches, configuration.devices, len(stages)
    shape = [[-1 if axis == number else 1 for axis in range(count)] for number in range(count)]
    times = [[column.reshape(shape[s]) for column in own.T] for s, own in enumerate(stages)]
    messages = [*(own[4] for own in times), 0]
    lasts = dict[tuple[str, int, int], Any]()  # the ends of slots
    orders = [list(own) for own in configuration.schedule.orders(devices, configuration.chunks, k)]
    free: list[Any] = [0] * devices

    def lasting(kind: str, s: int) -> Any:  # a link sends one message after the other
        forward = kind == "F"
        return np.maximum(np.maximum(1, -(-times[s][not forward] // k)), messages[s + forward] * (k > 1))

    while any(orders):
        for device, own in enumerate(orders):
            while own:
                kind, s, m = own[0]
                ready = s == 0 if kind == "F" else s == count - 1
                before = (kind, s + (-1 if kind == "F" else 1), m)
                if not (ready or before in lasts):
                    break
                sent = 0 if ready else lasts[before] + messages[s + (kind == "B")]
                lasts[own.pop(0)] = free[device] = np.maximum(free[device], sent) + lasting(kind, s)
    summed = [free[device] + sum(own[2] for own in times[device::devices]) for device in range(devices)]
    updates = [sum(own[3] for own in times[device::devices]) for device in range(devices)]
    found: Ints = np.maximum.reduce(np.broadcast_arrays(*summed)) + np.maximum.reduce(np.broadcast_arrays(*updates))
    return found


def undominated(times: Ints) -> Ints:
    """The rows that no other is below in everything."""
    rows = np.unique(times, axis=0)
    return np.array([row for row in rows if not ((rows <= row).all(axis=1) & (rows < row).any(axis=1)).any()])


@pytest.mark.parametrize("devices", [2, 4])
def test_no_plan_of_interleaved_stages_is_below_its_bound(devices: int) -> None:
    """Two unequal stages on each half of the devices, on slow links."""
    instance = Instance(4, (devices,), (2,), (2,), schedule=INTERLEAVED, chunks=2)
    found, best = slots_of(instance, speed=1)
    assert found.objective is not None and found.bound <= best <= found.objective
    assert found.objective <= 1.02 * best and found.bound >= 0.99 * best, (found.objective, best, found.bound)


@pytest.mark.parametrize("speed", [2, 1000])
def test_the_bound_of_one_micro_batch_is_the_best_step(speed: float) -> None:
    """Two unequal stages of two devices, where no update ends later than the first stage's; messages longer than slots,
    and short ones."""
    found, best = slots_of(Instance(2, (4,), (1,), (2,), schedule=GPIPE), speed)
    assert found.objective == found.bound == best, (found.objective, best, found.bound)


@pytest.mark.parametrize(("micros", "widths", "slower"), [(4, (64, 128), 1), (2, (64, 128, 1024), 200)])
def test_no_plan_of_1f1b_is_below_its_bound(micros: int, widths: tuple[int, ...], slower: int) -> None:
    """Two unequal stages of two devices; the plan found is within a hundredth of the best of all.

    Where memory is so much slower, the step ends with the update of the wide second stage, which the bound counts
    without the sums of gradients before it.
    """
    instance = Instance(2, (4,), (micros,), (2,), schedule=ONE_F_ONE_B, widths=widths)
    found, best = slots_of(instance, 1000 if slower == 1 else 8, slower)
    assert found.objective is not None and found.bound <= best <= found.objective
    assert found.objective <= 1.01 * best, (found.objective, best)
    assert found.bound >= (0.99 if slower == 1 else 0.97) * best, (found.bound, best)


def slots_of(instance: Instance, speed: float, slower: int = 1) -> tuple[SearchResult, int]:
    """What is found on links so much faster, with memory so much slower, and the least step of all."""
    slow = instance.problem()
    fast = tuple(replace(level, bandwidth=speed * level.bandwidth, latency_ns=1.0) for level in slow.machine.levels)
    device = replace(slow.machine.device, memory_bandwidth=slow.machine.device.memory_bandwidth / slower)
    problem = replace(slow, machine=replace(slow.machine, levels=fast, device=device))
    space = replace(instance.space(problem.machine), step_ns=step_ns)
    found = search(problem, solver("auto"), space=space)
    best = min(
        least_of_slots(
            problem, Configuration(row, place.matrix, *instance.micro_batches, instance.schedule, instance.chunks)
        )
        for row, places in space.placements.items()
        for place in places
    )
    return found, best


def test_a_plan_within_the_limit_is_no_bound_for_more_micro_batches() -> None:
    """Two micro-batches fit only where they take longer; four, which take less memory, are then faster."""
    instance = Instance(2, (4,), (2, 4), (1,))
    problem, reserved = instance.problem(), Machine.adhoc((4,)).device.reserved_bytes
    machine = replace(problem.machine, device=replace(problem.machine.device, memory_bytes=606_208 + reserved))
    limited = replace(problem, machine=machine)
    two, four, both = (
        search(replace(limited, micro_batches=counts), solver("auto"), space=instance.space(machine))
        for counts in ((2,), (4,), (2, 4))
    )
    assert two.objective is not None and four.objective is not None and two.objective > four.objective
    assert (both.status, both.objective, both.bound) == (Status.OPTIMAL, four.objective, four.objective)
