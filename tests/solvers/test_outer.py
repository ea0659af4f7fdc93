"""The outer search against looking at every pipeline, placement and cut, all ends of stages solved by themselves.

The same with every plan looked at: `tests/codegen/test_pipeline_exhaustive.py`, where layers are single products.
"""

from __future__ import annotations

import pickle
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations, pairwise, product
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import partita
from partita.formulation.encoding.encode import encode
from partita.formulation.encoding.encoding_options import EncodingOptions, StageContext
from partita.formulation.network.network import INFINITE, Network, evaluate
from partita.formulation.pipeline.configuration import (
    Configuration,
    rows,
    step_ns,
)
from partita.formulation.pipeline.schedule import ONE_F_ONE_B, schedule_named
from partita.formulation.pipeline.stage_transfers import transfer_price
from partita.formulation.placement.placement import distinct, placements
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.graph.batch import with_batch
from partita.model.graph.pcg import PCG
from partita.model.graph.segments import MODES
from partita.model.graph.stages import boundaries, stage
from partita.model.machine.machine import Machine, stage_machine
from partita.model.training import Training
from partita.solvers.elimination.transient_memory import without_windows
from partita.solvers.executors import Processes, Serial
from partita.solvers.protocol import NO_LIMITS, PRICED, Limits, Progress, Solution, Status, solver
from partita.solvers.search.cut_search import search_cuts
from partita.solvers.search.memory_limits import least_use
from partita.solvers.search.merged_device_bound import MergedDeviceBound
from partita.solvers.search.part_bounds import ANY, Query
from partita.solvers.search.part_networks import PartNetworks
from partita.solvers.search.pipeline_problem import PipelineProblem
from partita.solvers.search.planning_problem import PlanningProblem
from partita.solvers.search.result import ConfigurationSpace, SearchResult
from partita.solvers.search.search import search
from partita.solvers.search.state import Effort, Level, Proved

from ..levels import some


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(torch.relu(self.up(x)))
        return x + y


class Tower(nn.Module):
    """Layers, of which a pipeline may be cut."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


class Tied(nn.Module):
    """A table that is looked up in first and multiplied by last."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2048, 256)
        self.layers = nn.ModuleList([Layer(256)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.layers[0](self.table(ids))
        scores: torch.Tensor = x @ self.table.weight.t()
        return scores.logsumexp(-1).mean()


MODELS: dict[str, tuple[Any, torch.Tensor]] = {
    "short": (lambda: Tower(512, 2), torch.zeros(4, 256, 512)),
    "long": (lambda: Tower(512, 3), torch.zeros(4, 256, 512)),
    "tied": (Tied, torch.zeros(4, 64, dtype=torch.int64)),
}


def asked(
    name: str, levels: tuple[int, ...], memory: float, batch: int, modes: tuple[str, ...], overlap: bool = True
) -> PlanningProblem:
    """A problem on a machine whose devices have so many bytes for a plan."""
    made, x = MODELS[name]
    with torch.device("meta"):
        module = made().train()
    machine = Machine.adhoc(levels)
    device = replace(machine.device, memory_bytes=int(memory) + machine.device.reserved_bytes, launch_ns=100.0)
    slow = tuple(replace(level, bandwidth=level.bandwidth / 100, latency_ns=2000.0) for level in machine.levels)
    graph = capture(module, (x,), batch=batch)
    counts = tuple(k for k in range(1, batch + 1) if batch % k == 0)
    places = distinct(placements(levels))
    return PlanningProblem(
        graph,
        replace(machine, device=device, levels=slow),
        Training(batch, "float32", "adam"),
        places,
        counts,
        SearchSpace(recompute="auto" if modes == MODES else "none", overlap=overlap),
    )


def everything(problem: PlanningProblem) -> ConfigurationSpace:
    none = (1,) * len(problem.machine.levels)
    found = {row: distinct(placements(stage_machine(problem.machine, row).hierarchy)) for row in rows_of(problem)}
    return ConfigurationSpace({none: problem.placements} | found)


def rows_of(problem: PlanningProblem) -> list[tuple[int, ...]]:
    return list(rows(problem.machine.hierarchy))


def best_of_all(problem: PlanningProblem, space: ConfigurationSpace) -> int | None:
    """The least step, stage by stage, for all layouts of what crosses and of weights that stages have in common."""
    q, least = problem, None
    last = len(boundaries(q.pcg)) - 1
    for row, places in space.placements.items():
        p = prod(row)
        schedule = space.schedule if p > 1 else ONE_F_ONE_B
        counts = [n for n in q.micro_batches if schedule.runs(p, n)]
        for place, k, inner in product(places, counts, combinations(range(1, last), p - 1)):
            bounds, graph = (0, *inner, last), with_batch(q.pcg, q.batch // k)
            made = Configuration(row, place.matrix, k, schedule)
            waits = PipelineProblem(q).finish_bound(made)
            fronts = [front(q, stage(graph, *ends).graph, made, s) for s, ends in enumerate(pairwise(bounds))]
            for taken in product(*fronts):
                agree = all(a[1] == b[0] for a, b in pairwise(taken)) and len({t[2] for t in taken if t[2]}) < 2
                if agree:
                    busy = [times[ends] for times, ends in zip(fronts, taken, strict=True)]
                    if waits is not None:
                        busy = [int(waits.finish_time(s, *bounds[s : s + 2], ns)) for s, ns in enumerate(busy)]
                    step = step_ns(p, schedule.rounds(1, k), busy)
                    least = step if least is None else min(least, step)
    return least


def front(q: PlanningProblem, graph: PCG, made: Configuration, number: int) -> dict[Any, int]:
    """The least time of a stage for every layout of its ends and of the weight that other stages have."""
    row, k, p, schedule = made.row, made.micro_batches, made.devices, made.schedule
    found = encode(
        graph, stage_machine(q.machine, row), made.placement, micro_batches=k,
        dtype=q.training.dtype, optimizer=q.training.optimizer,
        options=EncodingOptions(q.space, recompute=("none",) if schedule.splits_backward else q.space.modes),
        stage=StageContext(
            schedule.in_flight(p, 1, k, number), transfer_price(q.machine, row) if p > 1 else None,
            weight_versions=schedule.weight_versions(p - 1),
            deferred_weight_gradients=schedule.deferred_weight_gradients(p, 1, k, p - 1),
            delays_messages=schedule.delays_messages,
        ),
    )  # fmt: skip
    sides: list[list[tuple[int, list[Any]]]] = [[], [], []]
    for n, node in enumerate(graph.nodes):
        if node.op in ("receive", "send"):
            variable, domain = found.operators[n]
            layouts = [domain.output_space.layout(int(code)) for code in domain.output]
            sides[node.op == "send"].append((variable, layouts))
        elif node.op == "parameter" and node.get("stages", 1) > 1:
            variable, storage = found.weights[n]
            sides[2].append((variable, [storage.space.layout(int(code)) for code in storage.codes]))
    choices = [pair for side in sides for pair in side]
    times: dict[Any, int] = {}
    for letters in product(*(sorted(set(layouts)) for _, layouts in choices)):
        variables = list(found.network.variables)
        for (variable, layouts), letter in zip(choices, letters, strict=True):
            cost = np.where([x == letter for x in layouts], variables[variable].cost, INFINITE)
            variables[variable] = replace(variables[variable], cost=cost)
        network = replace(found.network, variables=tuple(variables))
        answer = solver("cpsat-plain" if choices else "auto").solve(network)
        if answer.status is Status.OPTIMAL and answer.objective is not None:
            cut = [len(side) for side in sides]
            ends = letters[: cut[0]], letters[cut[0] : cut[0] + cut[1]], letters[cut[0] + cut[1] :]
            times[ends] = answer.objective
        else:
            assert answer.status is Status.INFEASIBLE
    return times


MIB = 2**20
PLAIN = ("none",)


@pytest.mark.parametrize(
    ("name", "levels", "memory", "counts", "modes", "pipelines_only", "expected", "schedule"),
    some(
        [
            ("short", (2, 2), 24 * MIB, (8,), MODES, False, (0, 1, 2), "1f1b"),
            ("short", (2,), 16 * MIB, (8,), MODES, False, (), "1f1b"),
            ("tied", (4,), 14 * MIB, (8,), MODES, True, (0, 2, 3), "1f1b"),
            ("short", (4,), 20 * MIB, (1, 4), MODES, True, (0, 1, 2), "2bw"),
            ("short", (2, 2), 22 * MIB, (8,), MODES, True, (0, 1, 2), "zero-bubble"),
            ("tied", (4,), 16 * MIB, (8,), MODES, True, (0, 2, 3), "zero-bubble"),
        ]
    ),
)
def test_the_best_of_everything(
    name: str,
    levels: tuple[int, ...],
    memory: float,
    counts: tuple[int, ...],
    modes: tuple[str, ...],
    pipelines_only: bool,
    expected: tuple[int, ...],
    schedule: str,
) -> None:
    # With traffic hidden the whole network is not proved to the last ns where memory binds.
    problem = replace(asked(name, levels, memory, counts[-1], modes, pipelines_only), micro_batches=counts)
    space = replace(everything(problem), schedule=schedule_named(schedule))
    if pipelines_only:
        space = replace(space, placements={row: x for row, x in space.placements.items() if prod(row) > 1})
    found = search(problem, solver("auto"), space=space)
    best = best_of_all(problem, space)
    assert (found.objective, found.bounds) == (best, expected)
    assert found.status is (Status.INFEASIBLE if best is None else Status.OPTIMAL)


class Backwards(Executor):
    """Begins what it is given last first, when a result is asked for."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = Late(self)
        self.waiting.append((future, lambda: fn(*args, **kwargs)))
        return future


class Late(Future[Any]):
    def __init__(self, executor: Backwards) -> None:
        super().__init__()
        self.executor = executor

    def result(self, timeout: float | None = None) -> Any:
        while not self.done():
            future, call = self.executor.waiting.pop()
            future.set_result(call())
        return super().result()


def told(found: SearchResult) -> tuple[Any, ...]:
    assignments = [assignment for _, assignment in found.stages]
    return found.status, found.objective, found.bound, found.configuration, found.bounds, assignments, found.solved


def test_any_executor_gives_the_same() -> None:
    problem = replace(asked("short", (4,), 14 * MIB, 8, MODES), micro_batches=(4, 8))
    space, limits = everything(problem), Limits(gap=0.05)
    alone = told(search(problem, solver("auto"), limits, space))
    with ThreadPoolExecutor(3) as threads, Processes(2) as processes:
        for executor in (Backwards(), threads, processes):
            assert told(search(problem, solver("auto"), limits, space, executor)) == alone


class Lazy(Backwards):
    """Begins what it is given first, when that is asked for."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        self.waiting.insert(0, self.waiting.pop())
        return future


def test_what_is_under_way_is_not_waited_for_once_nothing_is_open() -> None:
    problem = asked("short", (4,), 20 * MIB, 16, MODES, overlap=False)
    space, limits, executor = everything(problem), Limits(gap=0.05), Lazy()
    alone = told(search(problem, solver("auto"), limits, space))
    assert told(search(problem, solver("auto"), limits, space, executor)) == alone
    assert executor.waiting


class Copies(Executor):
    """Computes at once, with copies, as processes do."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(pickle.loads(pickle.dumps(fn(*pickle.loads(pickle.dumps(args)), **kwargs))))
        return future


@pytest.mark.parametrize(("levels", "memory", "batch"), [((4,), 40, 16), ((2, 2), 24, 8)])
def test_nothing_is_known_before_it_is_heard(levels: tuple[int, ...], memory: int, batch: int) -> None:
    problem = asked("short", levels, memory * MIB, batch, MODES, overlap=False)
    space, limits = everything(problem), Limits(gap=0.05)
    alone, copies = (search(problem, solver("auto"), limits, space, e) for e in (Serial(), Copies()))
    assert told(alone) == told(copies)


def test_another_goes_on_where_processes_break_down() -> None:
    problem = replace(asked("short", (4,), 14 * MIB, 8, MODES, overlap=False), micro_batches=(4, 8))
    space, asked_of = everything(problem), list[int]()

    class Breaks(Serial):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            asked_of.append(len(asked_of))
            if len(asked_of) < 6:
                return super().submit(fn, *args, **kwargs)
            future: Future[Any] = Future()
            future.set_exception(BrokenExecutor("a process was killed"))
            return future

    found, best = (search(problem, solver("auto"), space=space, executor=e) for e in (Breaks(), Serial()))
    assert len(asked_of) > 5
    assert (found.status, found.objective, found.bound) == (best.status, best.objective, best.bound)


class Weary:
    """Proves little of each network, and says so."""

    name = "weary"

    def __init__(self) -> None:
        self.capacities: list[int] = []  # of the networks that it was asked, but for a first plan

    def accepts(self, network: Network) -> bool:
        return True

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        answer = solver("auto").solve(network, limits)
        self.capacities += network.capacities if limits.cutoff is not None else ()
        words = PRICED if limits.quick else "too many assignments of one copy"
        return replace(answer, bound=1, status=Status.FEASIBLE, words=words)


@pytest.mark.parametrize(
    ("memory", "modes", "networks"),
    [(26, MODES, 3), (400, MODES, 3), (400, PLAIN, 1)],  # without recomputation, and with room, it is the same network
)
def test_a_network_that_the_solver_gives_up_is_not_asked_again(
    memory: int, modes: tuple[str, ...], networks: int
) -> None:
    problem = replace(asked("short", (2,), memory * MIB, 8, modes), micro_batches=(8,))
    weary = Weary()
    found = search(problem, weary, Limits(gap=0.01), ConfigurationSpace({(1,): problem.placements}))
    assert found.objective is not None and found.bound < found.objective
    assert len(weary.capacities) == networks


class Slack(Weary):
    """Finds a poor plan of the first network twice, then the best one."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []  # sums of costs: the same with a limit of memory and without

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        self.asked.append(sum(int(v.cost[v.cost < INFINITE].sum()) for v in network.variables))
        answer = super().solve(network, replace(limits, cutoff=None))
        if self.asked[-1] != self.asked[0] or self.asked.count(self.asked[0]) > 2:
            return answer
        poor, variables = answer, list(network.variables)
        while poor.objective is not None and answer.objective is not None and poor.objective < 1.1 * answer.objective:
            assert poor.assignment is not None
            for v, taken in enumerate(poor.assignment):
                if len(variables[v].cost) > 8:
                    cost = np.where(np.arange(len(variables[v].cost)) == taken, INFINITE, variables[v].cost)
                    variables[v] = replace(variables[v], cost=cost)
            poor = solver("auto").solve(replace(network, variables=tuple(variables)))
        return replace(answer, assignment=poor.assignment, objective=poor.objective)


def test_what_a_solver_gave_up_is_asked_again_once_a_cheaper_plan_is_known() -> None:
    problem = replace(asked("short", (2,), 400 * MIB, 8, PLAIN, overlap=False), micro_batches=(4, 8))
    space, slack = ConfigurationSpace({(1,): problem.placements}), Slack()
    best = search(problem, solver("auto"), space=space)
    found = search(problem, slack, Limits(gap=0.01), space)
    assert slack.asked[:4] == [slack.asked[0], slack.asked[0], slack.asked[2], slack.asked[0]] != slack.asked[2:3] * 4
    assert found.objective == best.objective


@pytest.mark.parametrize(("name", "memory"), [("short", 14), ("tied", 24), ("short", 400)])
def test_no_placement_goes_below_merged_devices(name: str, memory: int) -> None:
    problem = asked(name, (2, 2), memory * MIB, 8, MODES, overlap=memory != 14)  # else it takes most of a minute
    whole, backend = PipelineProblem(problem), solver("auto")
    for row, places in everything(problem).placements.items():
        for place, k in product(places, problem.micro_batches):
            own = Configuration(row, place.matrix, k)
            bounds, plans = Proved(), Proved()
            for level in (Level.RELAXED, Level.BOUNDED):
                search_cuts(MergedDeviceBound(whole, own, backend), own, bounds, INFINITE, Effort(level))
            found = search_cuts(PartNetworks(whole, own, backend), own, plans, INFINITE, Effort(Level.CLOSED))
            assert 0 < bounds.bound <= (INFINITE if found is None else found.objective), (own, bounds.bound)


@pytest.mark.parametrize("host_ns", [0, 50_000])
def test_what_parts_cost_inside_adds_up_to_no_more_than_the_whole(host_ns: int) -> None:
    """Wherever a layer is cut: alone a first layer hides no traffic, and a divided one less than the whole.

    The host is not priced in a first layer, whatever it needs.
    """
    graph = capture(*load_module("gpt2", small=True), batch=8)
    machine = Machine.adhoc((2, 4))
    machine = replace(machine, device=replace(machine.device, host_ns=host_ns))
    training = Training(8, "float32", "sgd")
    own = Configuration((1, 4), ((2, 1),), 2)
    space = SearchSpace(recompute="none", bundles=False)
    places = tuple(placements(machine.hierarchy))
    pipeline = PipelineProblem(PlanningProblem(graph, machine, training, places, (2,), space))
    parts = PartNetworks(pipeline, own, solver("auto"))
    count, shared = pipeline.count, (ANY,) * len(pipeline.weights)
    inside = [parts.solve(i, i + 1, Query(0), Effort(Level.RELAXED)).inside for i in range(count - 1)]
    for i, j in combinations(range(count), 2):
        if (i, j) != (0, count - 1):
            whole = parts.solve(i, j, Query(1, shared=shared), Effort(Level.CLOSED))
            assert whole.objective is not None and sum(inside[i:j]) <= whole.objective
    alone, hiding = (parts.encoding(1, 2, 1, inside=hides).network for hides in (False, True))
    assert not alone.windows and hiding.windows  # where the first layer of a part hides traffic, it costs less
    rng, less = np.random.default_rng(0), 0
    for _ in range(200):
        some = [int(rng.choice(np.flatnonzero(v.cost < INFINITE))) for v in alone.variables]
        costs = [evaluate(network, some).cost for network in (without_windows(hiding), hiding, alone)]
        assert costs == sorted(costs)
        less += costs[1] < costs[2] < INFINITE
    assert less


@pytest.mark.parametrize("memory", [400, 28])
def test_layers_inside_count_with_their_traffic_and_transient_memory(memory: int) -> None:
    """And add up to no more than the least time of a stage whose messages take none."""
    pipeline, backend = PipelineProblem(asked("long", (2, 2), memory * MIB, 8, MODES)), solver("auto")
    configuration = Configuration((2, 1), ((1, 2),), 4, schedule_named("2bw"))  # whose bounds count updates
    parts = PartNetworks(pipeline, configuration, backend)
    pairs = [ends for ends in combinations(range(pipeline.count), 2) if ends != (0, pipeline.count - 1)]
    hidden = {ends: parts.solve(*ends, Query(0), Effort(Level.RELAXED)).inside for ends in pairs}
    counted = {ends: parts.solve(*ends, Query(2), Effort(Level.BOUNDED)).inside for ends in pairs}
    assert counted[1, 3] > 1.1 * hidden[1, 3]  # the layer that ends inside of it takes longer to gather than to compute
    for a, b in ((0, 1), (0, 2), (1, 2), (1, 3), (2, 3)):
        found = parts.encoding(a, b, 2)
        variables = list(found.network.variables)
        for n in (*found.pcg.of("receive"), *found.pcg.of("send")):
            v = found.operators[n][0]
            free = np.where(variables[v].cost < INFINITE, 0, INFINITE)
            variables[v] = replace(variables[v], cost=free)
        whole = backend.solve(replace(found.network, variables=tuple(variables)), Limits(gap=0.01)).objective
        assert whole is not None
        for (i, j), inside in counted.items():
            if a <= i < j <= b:
                assert inside + sum(hidden[n, n + 1] for n in (*range(a, i), *range(j, b))) <= whole, (a, b, i, j)


def block(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))


class Nested(nn.Module):
    """Layers of smaller layers, between which a pipeline may be cut too."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({"inner": nn.ModuleList(block(width) for _ in range(3)), "last": nn.Linear(width, width)})
            for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleDict)
            for inner in layer["inner"]:
                x = x + inner(x)
            x = torch.relu(layer["last"](x))
        return x.square().mean()


def test_parts_of_a_layer_need_no_more_memory_than_the_layer_recomputed() -> None:
    with torch.device("meta"):
        graph = capture(Nested(64).train(), (torch.zeros(8, 64),), batch=8192)
    problem = replace(asked("short", (2,), 400 * MIB, 8, MODES), pcg=graph, training=Training(8192, "float32", "sgd"))
    parts = PartNetworks(PipelineProblem(problem), Configuration((2,), ((1,),), 4), solver("auto"))
    count = parts.pipeline.count
    pairs = [ends for ends in combinations(range(count), 2) if ends != (0, count - 1)]
    needs = {ends: parts.memory_need(*ends, in_flight=2).bytes for ends in pairs}
    least = {ends: least_use(parts.encoding(*ends, 2).network) for ends in pairs}
    inside = [(a, b) for a, b in product(pairs, pairs) if b[0] <= a[0] < a[1] <= b[1]]
    assert all(needs[a] <= least[b] for a, b in inside)
    assert sum(needs[a] > 0.5 * least[b] for a, b in inside) > count  # and not much less


class Gated(nn.Module):
    """Three products of one tensor, which may be joined."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(width, width, bias=False) for name in ("a", "b", "c", "out")})
            for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleDict)
            x = x + layer["out"](torch.relu(layer["a"](x)) * torch.tanh(layer["b"](x)) * torch.sigmoid(layer["c"](x)))
        return x.square().mean()


def test_floors_are_those_of_the_quickest_ways() -> None:
    """A graph whose products may be joined takes less than each of them by itself."""
    model, x = Gated(64, 4), torch.zeros(4, 64)
    settings = {"batch": 4, "stages": 2, "micro_batches": 2, "cache": "none", "workers": 1}
    plain, joined = (
        partita.optimize(model, (x,), Machine.adhoc((2,)), rewrite=rewrite, **settings).report
        for rewrite in (False, True)
    )
    assert joined["objective_ns"] < plain["objective_ns"]
    assert joined["bound_ns"] <= joined["objective_ns"]


def test_an_interrupt_keeps_the_best() -> None:
    problem = replace(asked("short", (2, 2), 24 * MIB, 8, PLAIN), micro_batches=(4, 8))
    space = everything(problem)

    def interrupt(news: Progress) -> None:
        if news.incumbent is not None:
            raise KeyboardInterrupt

    found = search(problem, solver("auto"), Limits(progress=interrupt), space)
    best = search(problem, solver("auto"), space=space)
    assert found.interrupted and found.status is Status.FEASIBLE
    assert found.objective is not None and best.objective is not None
    assert found.bound <= best.objective <= found.objective
    assert (best.status, best.bound) == (Status.OPTIMAL, best.objective)
