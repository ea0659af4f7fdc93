"""The parts of a model as cost networks, encoded on demand, with their ends and shared weights restricted."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import groupby, pairwise
from math import ceil
from time import monotonic
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ...formulation.encoding.encoding import Encoding
from ...formulation.network.network import INFINITE, Chain, Edge, Network, SwitchTables, Table, Window, evaluate
from ...formulation.pipeline.configuration import Configuration
from ...model.errors import PartitaError
from ...model.graph.layout import B, Layout, P
from ...model.graph.segments import divided_layers, segments
from ..elimination.transient_memory import without_windows
from ..protocol import INTERRUPTED, Limits, Solution, Solver, Status
from .memory_limits import least_use, without_limit
from .one_f_one_b_bound import OneFOneBBound
from .part_bounds import ANY, Ends, Layouts, LayoutSet, MemoryNeed, PartAnswer, PartBounds, Query
from .part_encoding import View, encoding
from .pipeline_problem import PipelineProblem
from .repeated_bound import FinishBound
from .shared_operators import NOTHING, Least, least
from .shortest_cut import Times
from .slots_bound import SlotsBound
from .state import Effort, Level

_T = TypeVar("_T")

Choices: TypeAlias = tuple[int, tuple[Layout | None, ...]]
"""A variable and the layout that each of its options stands for; None: unused, since an alternative does without."""


@dataclass
class PartNetworks:
    """The `Parts` of a model in one configuration, solved as cost networks.

    `options`: the options of the largest network so far; `solving`: seconds inside the solver. `refused`: networks for
    which it gave nothing though it had time, with its words. `in_full`: answers of networks with all that stages do,
    where bounds are of slots alone.
    """

    pipeline: PipelineProblem
    configuration: Configuration
    solver: Solver
    options: int = 0
    solving: float = 0.0
    refused: int = 0
    solver_words: str = ""
    in_full: PartBounds = field(default_factory=PartBounds)

    @property
    def merged(self) -> int:
        """Number of devices merged into the one of a network."""
        return 1

    @property
    def beside(self) -> Least:
        """What operators that all devices share take, at least, beside the stages."""
        problem, known, own = self.pipeline.problem, self.pipeline.least_shared, self.configuration
        if problem.interlaced is None or own.devices == 1:
            return NOTHING
        if own != own.whole:
            return Least(*own.beside)
        if own not in known:
            known[own] = self.timed(lambda: least(problem, own, self.solver))
        return known[own]

    @property
    def floors(self) -> Times:
        return self.pipeline.floors(self.configuration)

    @property
    def transfer_floors(self) -> Times:
        return self.pipeline.transfer_floors(self.configuration)

    @property
    def finish_bound(self) -> FinishBound | None:
        return self.pipeline.finish_bound(self.configuration)

    @property
    def messages(self) -> Times | None:
        return self.pipeline.message_floors(self.configuration) if self.configuration.formula_bounds else None

    @property
    def slots(self) -> OneFOneBBound | SlotsBound | None:
        return self.pipeline.slots(self.configuration, self.messages)

    @property
    def stages(self) -> npt.NDArray[np.bool_]:
        """[n, n]: every proper part, or the whole alone if there is one stage; only those between fixed cuts."""
        count, cuts = self.pipeline.count, self.pipeline.cuts
        if cuts:
            found = np.zeros((count, count), dtype=np.bool_)
            for starts, ends in pairwise(cuts):
                found[np.ix_(starts, ends)] = True
            return found
        found = np.triu(np.ones((count, count), dtype=np.bool_), 1)
        found[0, -1] = False
        return found if self.configuration.devices > 1 else np.triu(~found, count - 1)

    def kind(self, i: int, j: int) -> Hashable:
        return self.pipeline.kind(i, j)

    def group(self, boundary: int) -> Hashable:
        return self.pipeline.group(boundary)

    def shared(self, i: int, j: int) -> tuple[bool, ...]:
        return self.pipeline.shared(i, j)

    def encoding(self, i: int, j: int, in_flight: int, inside: bool = False, view: View = View.BOUND) -> Encoding:
        return encoding(self.pipeline, self.configuration.whole, (i, j), in_flight, inside=inside, view=view)

    def solve(self, i: int, j: int, query: Query, effort: Effort) -> PartAnswer:
        """Solve a part; if memory is ignored, only for a bound on every part that contains it."""
        whole, bounded = (i, j) == (0, self.pipeline.count - 1), effort.level is Level.BOUNDED
        try:
            found = self.encoding(i, j, query.in_flight, inside=not whole and (bounded or not query.in_flight))
        except PartitaError as refusal:  # a tensor cannot be split so finely
            return PartAnswer(INFINITE, refusal=str(refusal))
        variables = _Variables(found, tuple(self.pipeline.weights))
        within = found.network if whole else self._inside(found, variables, i, j, memory=query.in_flight > 0)
        if query.in_flight == 0:
            bound = self._solved(without_limit(within), effort).bound
            return PartAnswer(bound, inside=bound)
        network = self._in_share(within if bounded else variables.restricted(query))
        solution = self._solved(network, effort)
        prices = tuple(p * self.merged for p in solution.prices if any(solution.prices))
        if solution.status is Status.INFEASIBLE:
            missing = (least_use(network) - network.capacities[0]) // self.merged  # transient memory not counted
            return PartAnswer(INFINITE, inside=INFINITE if bounded else 0, missing=max(0, missing))
        inside = solution.bound if bounded else 0
        if solution.assignment is None or (bounded and not whole):
            return PartAnswer(solution.bound, inside=inside, prices=prices)
        ends = variables.ends(solution.assignment)
        return PartAnswer(
            solution.bound, solution.objective, query.in_flight, ends, solution.assignment, inside, prices=prices
        )

    def as_planned(self, i: int, j: int, query: Query, answer: PartAnswer, effort: Effort) -> PartAnswer:
        """A solution that is good with updates and messages, too, where the bound counts slots alone.

        In the layouts of an answer at the ends, which neighbours agree on; that answer if no better one is found.
        """
        if not self.configuration.bounded_by_slots or (i, j) == (0, self.pipeline.count - 1):
            return answer
        assert answer.assignment is not None
        if self.configuration.waits_for_messages:
            updated = self.encoding(i, j, query.in_flight, view=View.UPDATED).network
            return replace(answer, planned=evaluate(updated, answer.assignment).cost)
        kind, known = self.kind(i, j), self.in_full
        best = known.best(kind, query)
        if best is None or (best.objective or 0) * (1 - Fraction(effort.gap)) > known.bound(kind, query):
            best = self._solved_in_full(i, j, query, effort)
        if best is None or best.assignment is None:
            full = self.encoding(i, j, query.in_flight, view=View.PLAN).network
            return replace(answer, planned=evaluate(full, answer.assignment).cost)
        cost = evaluate(self.encoding(i, j, query.in_flight).network, best.assignment).cost
        return replace(answer, objective=cost, ends=best.ends, assignment=best.assignment, planned=best.objective or 0)

    def _solved_in_full(self, i: int, j: int, query: Query, effort: Effort) -> PartAnswer | None:
        found = self.encoding(i, j, query.in_flight, view=View.PLAN)
        variables = _Variables(found, tuple(self.pipeline.weights))
        solution = self._solved(self._in_share(variables.restricted(query)), effort)
        if solution.assignment is None:
            return None
        taken = solution.assignment
        answer = PartAnswer(solution.bound, solution.objective, query.in_flight, variables.ends(taken), taken)
        self.in_full.add(self.kind(i, j), query, answer)
        return answer

    def solve_without_long_updates(self, i: int, j: int, query: Query, effort: Effort, most: int) -> PartAnswer | None:
        """Solve a part without options of weights that make its update longer than `most` ns; None: there are none.

        Only where nothing hides beside kernels, so that updates are times of weights alone.
        """
        found, updated = (self.encoding(i, j, query.in_flight, view=view) for view in (View.BOUND, View.UPDATED))
        if updated.network.windows:
            return None
        variables, network = _Variables(found, tuple(self.pipeline.weights)), found.network
        weights = [v for v, _ in found.weights.values()]
        update = {v: updated.network.variables[v].cost - network.variables[v].cost for v in weights}
        least = {v: int(ns[network.variables[v].cost < INFINITE].min(initial=INFINITE)) for v, ns in update.items()}
        room = most - sum(least.values())
        long = {v: ns - least[v] > room for v, ns in update.items()}
        if not any(own.any() for own in long.values()):
            return None
        network = variables.restricted(query)
        for v in weights:
            network = _forbid(network, v, long[v].tolist())
        solution = self._solved(self._in_share(replace(network, chains=())), effort)
        if solution.status is Status.INFEASIBLE or solution.assignment is None:
            return PartAnswer(INFINITE if solution.status is Status.INFEASIBLE else solution.bound)
        taken = solution.assignment
        cost, planned = (evaluate(x.network, taken).cost for x in (found, updated))
        return PartAnswer(solution.bound, cost, query.in_flight, variables.ends(taken), taken, planned=planned)

    def in_slots(self, i: int, j: int, answer: PartAnswer) -> PartAnswer:
        """A solution that was sought with all that a stage does, by its slots, of which nothing is proved by it."""
        assert answer.assignment is not None and answer.objective is not None
        verdict = evaluate(self.encoding(i, j, answer.in_flight).network, answer.assignment)
        return replace(answer, bound=0, inside=0, objective=verdict.cost, planned=answer.objective)

    def decoded(
        self, i: int, j: int, in_flight: int, answer: PartAnswer, view: View = View.PRICED
    ) -> tuple[Encoding, tuple[int, ...]]:
        """The network of a stage, and its assignment from the answer of any part of its kind."""
        found = self.encoding(i, j, in_flight, view=view)
        assert answer.assignment is not None and answer.objective is not None
        verdict, own = evaluate(found.network, answer.assignment), self.configuration
        counted = verdict.cost == answer.objective or (
            own.bounded_by_slots and (own.waits_for_messages or verdict.cost >= answer.objective)
        )
        assert verdict.feasible and counted, (verdict, answer.objective)
        return found, answer.assignment

    def count_options(self, network: Network) -> None:
        """Record the size of the largest network."""
        self.options = max(self.options, sum(len(v.cost) for v in network.variables))

    def add_work(self, other: PartNetworks) -> None:
        """Count the work on other networks too."""
        self.options, self.solving = max(self.options, other.options), self.solving + other.solving
        self.refused, self.solver_words = self.refused + other.refused, self.solver_words or other.solver_words

    def answered(self, network: Network, limits: Limits) -> Solution:
        """The solver's answer; its time and its refusals are counted."""
        solution = self.timed(lambda: self.solver.solve(network, limits))
        if solution.refusal:
            self.refused, self.solver_words = self.refused + 1, solution.refusal
        return solution

    def timed(self, solve: Callable[[], _T]) -> _T:
        """Call `solve` and add its time to `solving`."""
        began = monotonic()
        result = solve()
        self.solving += monotonic() - began
        return result

    def _inside(self, found: Encoding, variables: _Variables, i: int, j: int, memory: bool) -> Network:
        """The network of a part inside a larger one: ends in any layout, free transfers.

        Leaves out what other parts may have too: shared weights, and nodes that every stage computes for itself. A
        layer that a cut divides, or that computes what crosses the end, counts its kernels only, without traffic and
        transient memory, so that the bounds of parts add up; one that is divided keeps nothing, as the whole layer may
        recompute it. If `memory` is ignored all layers count so.
        """
        shared, sent = _of_nodes(found, self.pipeline.repeated(i, j)), {variable for variable, _ in variables.right}
        ends = sent | {variable for variable, _ in variables.left}
        network, open_ = found.network, _of_nodes(found, _open_layers(found)) if memory else set()
        switches = {s.variable for s in network.switches if memory and open_.isdisjoint(s.scope(network.edges))}
        windows = {w for w, x in enumerate(network.windows) if memory and open_.isdisjoint(x.variables)}
        divided = _of_nodes(found, divided_layers(found.pcg)) if memory else set()
        within = _without(network, cost=shared | sent, own=ends, use=divided, transient=switches)
        within = replace(within, constant=0, chains=tuple(_closed(network.chains, open_)))
        return without_windows(within, kernels_only=True, keep=windows)

    def least_backward(self, i: int, j: int, in_flight: int, effort: Effort) -> int:
        """Lower bound on the backwards of a part in a step.

        Those of layers are windows of their own, whose sum is least; elsewhere a network does not tell forward from
        backward, and floors count. What hides in the last backward, but reduces gradients, is no part of it.
        """
        found = self.encoding(i, j, in_flight, inside=True, view=View.SLOTS)
        layers = (s.nodes for s in segments(found.pcg) if s.name in found.together)
        rest = self.pipeline.backward_floor(self.configuration, i, j, {n for own in layers for n in own})
        backward = found.backward_windows
        if not backward:
            return rest
        query = Query(in_flight, ANY, ANY, (ANY,) * len(self.pipeline.weights))
        network = _Variables(found, tuple(self.pipeline.weights)).restricted(query)
        within = replace(_allowed(network), windows=tuple(network.windows[w] for w in backward))
        return rest + min(self._solved(self._in_share(within), effort).bound, INFINITE)

    def least_updated(self, i: int, j: int, in_flight: int, effort: Effort) -> int:
        """Lower bound on all that a part does in a step, its updates included, but for messages."""
        found = self.encoding(i, j, in_flight, view=View.UPDATED)
        query = Query(in_flight, ANY, ANY, (ANY,) * len(self.pipeline.weights))
        network = self._in_share(_Variables(found, tuple(self.pipeline.weights)).restricted(query))
        return min(self._solved(network, effort).bound, INFINITE)

    def least_ending(self, i: int, j: int, in_flight: int, effort: Effort) -> int:
        """Lower bound on the slots of a step and K updates of a part: of one micro-batch and the update, K times.

        Of an update what nothing hides: what kernels hide of gradients' sums is part of windows, which count once.
        """
        slots, updated = (self.encoding(i, j, in_flight, view=view) for view in (View.SLOTS, View.UPDATED))
        query = Query(in_flight, ANY, ANY, (ANY,) * len(self.pipeline.weights))
        weights = {v for v, _ in slots.weights.values()}
        network = _with_updates(slots.network, updated.network, weights, self.configuration.micro_batches)
        found = replace(slots, network=network)
        restricted = _Variables(found, tuple(self.pipeline.weights)).restricted(query)
        return min(self._solved(self._in_share(restricted), effort).bound, INFINITE)

    def memory_need(self, i: int, j: int, in_flight: int) -> MemoryNeed:
        """Lower bound on the memory that a part adds to any part that contains it; 0 if it cannot be encoded."""
        try:
            found = self.encoding(i, j, in_flight)
        except PartitaError:
            return MemoryNeed(0, INFINITE)
        variables = _Variables(found, tuple(self.pipeline.weights))
        shared = self.pipeline.repeated(i, j) | self.pipeline.held_elsewhere(i, j) | divided_layers(found.pcg)
        ends = {variable for variable, _ in (*variables.left, *variables.right)}  # no messages inside a part
        within = self._in_share(_without(found.network, use=_of_nodes(found, shared), lone=ends))
        stored = [None if own is None else found.network.variables[own[0]].use for own in variables.stored]
        least = tuple(0 if use is None else int(use.min()) for use in stored)
        return MemoryNeed(least_use(within), within.capacities[0], least)

    def _in_share(self, network: Network) -> Network:
        """The network with a stage's share of the memory of its device, less what shared operators take of it."""
        capacity = self.pipeline.problem.machine.device.capacity_bytes
        others = self.merged * (capacity - capacity // self.configuration.stages_held) + self.beside.bytes
        return replace(network, capacities=(network.capacities[0] - others,)) if others else network

    def _solved(self, network: Network, effort: Effort) -> Solution:
        cutoff, level = None, effort.level
        if effort.cutoff is not None and effort.cutoff < INFINITE:  # so that a bound within the gap still reaches it
            cutoff = ceil(effort.cutoff / (1 - Fraction(effort.gap)))
        prices = tuple(p / self.merged for p in effort.prices)
        rough = effort.rough or level is Level.BOUNDED
        quick = rough or level is Level.PRICED
        seconds = max(effort.seconds, 0.01)
        limits = Limits(seconds, cutoff, gap=effort.gap, quick=quick, rough=rough, prices=prices)
        self.count_options(network)
        solution = self.answered(network, limits)
        if solution.words == INTERRUPTED:
            raise KeyboardInterrupt
        return solution


class _Variables:
    """The variables of a part on whose layouts stages must agree."""

    def __init__(self, found: Encoding, weights: tuple[str, ...]) -> None:
        nodes = found.pcg.nodes
        self.found = found
        decided = [(i, n.op) for i, n in enumerate(nodes) if i in found.operators]  # not what repeats another pass
        self.left = [self._operator(i) for i, op in decided if op == "receive"]
        self.right = [self._operator(i) for i, op in decided if op == "send"]
        stored = {
            nodes[base].name: self._choices(variable, [storage.space.layout(int(c)) for c in storage.codes])
            for base, (variable, storage) in found.weights.items()
            if nodes[base].get("stages", 1) > 1
        }
        self.stored = [stored.get(name) for name in weights]

    def _operator(self, node: int) -> Choices:
        variable, domain = self.found.operators[node]
        return self._choices(variable, [domain.output_space.layout(int(code)) for code in domain.output])

    def _choices(self, variable: int, ordinary: Sequence[Layout]) -> Choices:
        """The layouts of all options of a variable, from those of the ordinary ones (see `Encoding`)."""
        unused = (None,) if variable in self.found.optional else ()
        further = self.found.bundled.get(variable, ())
        return variable, (*ordinary, *unused, *(ordinary[placed.option] for placed in further))

    def ends(self, assignment: tuple[int, ...]) -> Ends:
        def taken(choices: list[Choices]) -> Layouts:
            layouts = [layouts[assignment[variable]] for variable, layouts in choices]
            return tuple(layout for layout in layouts if layout is not None)

        stored = tuple(None if own is None else own[1][assignment[own[0]]] for own in self.stored)
        return taken(self.left), taken(self.right), stored

    def restricted(self, query: Query) -> Network:
        """The network without the layouts that the query excludes.

        A stage receives whatever is sent to it, never partial sums; it may do without a weight that others have too.
        """
        network = self.found.network
        for variable, layouts in self.left:
            network = _forbid(network, variable, [layout is None or P in layout for layout in layouts])
        pairs = [(self.left, query.left), (self.right, query.right)]
        pairs += [([own], side) for own, side in zip(self.stored, query.shared, strict=True) if own is not None]
        for choices, side in pairs:
            if side != ANY:
                network = _only(network, choices, side)
        return network


def without_addends(found: Encoding) -> Network:
    """The network of a stage whose neighbours have other meshes: what crosses its ends is equal on ranks, or split.

    Gradients too: those of tensors that have any. It receives and sends no addends, which would be summed across.
    """
    variables, network, nodes = _Variables(found, ()), found.network, found.pcg.nodes
    crossing = [(i, found.operators[i][0]) for op in ("receive", "send") for i in found.pcg.of(op)]
    summed = {variable: (P, B) if nodes[i].gradient else (P,) for i, variable in crossing}
    for variable, layouts in (*variables.left, *variables.right):
        wrong = [layout is not None and not {*layout}.isdisjoint(summed[variable]) for layout in layouts]
        network = _forbid(network, variable, wrong)
    return network


def _allowed(network: Network) -> Network:
    """The network without costs but those of windows: what is forbidden stays so."""
    known: dict[int, Table] = {}

    def bare(table: Table) -> Table:
        return known.setdefault(id(table), np.where(table >= INFINITE, INFINITE, 0))

    switches = tuple(s.with_tables(lambda t: (bare(t[0]), *t[1:])) for s in network.switches)
    return replace(
        network,
        constant=0,
        variables=tuple(replace(v, cost=bare(v.cost)) for v in network.variables),
        edges=tuple(replace(e, cost=bare(e.cost)) for e in network.edges),
        switches=switches,
    )


def _with_updates(slots: Network, updated: Network, weights: AbstractSet[int], times: int) -> Network:
    """The network of slots with what the updates of weights add to the costs of their options, so many times."""
    known: dict[tuple[int, int], Table] = {}

    def raised(v: int, cost: Table) -> Table:
        more = updated.variables[v].cost
        allowed = cost < INFINITE
        return known.setdefault((id(cost), id(more)), np.where(allowed, cost + times * (more - cost) * allowed, cost))

    variables = (replace(x, cost=raised(v, x.cost)) if v in weights else x for v, x in enumerate(slots.variables))
    return replace(slots, variables=tuple(variables))


def _only(network: Network, choices: list[Choices], side: LayoutSet) -> Network:
    """The network in which the layouts of one or two variables are in a set, or the variables are unused."""

    def excluded(*layouts: Layout | None) -> bool:
        used = tuple(layout for layout in layouts if layout is not None)
        return len(used) == len(layouts) and used not in side

    if len(choices) == 1:
        variable, layouts = choices[0]
        return _forbid(network, variable, [excluded(layout) for layout in layouts])
    (u, before), (v, after) = choices
    cost = np.array([[INFINITE if excluded(a, b) else 0 for b in after] for a in before], dtype=np.int64)
    return replace(network, edges=(*network.edges, Edge(u, v, cost)))


def _forbid(network: Network, variable: int, forbidden: Sequence[bool]) -> Network:
    """The network without some options of a variable whose tables no switch changes."""
    old = network.variables[variable]
    new = replace(old, cost=np.where(forbidden, INFINITE, old.cost))
    return replace(network, variables=(*network.variables[:variable], new, *network.variables[variable + 1 :]))


def _of_nodes(found: Encoding, nodes: Iterable[int]) -> set[int]:
    """The variables of nodes: their operators, stored weights and hubs."""
    variables: set[int] = set()
    for n in nodes:
        base = found.classes.base[n]
        variables |= {found.operators[base][0]} if base in found.operators else set()
        variables |= {found.weights[base][0]} if base in found.weights else set()
        variables |= {found.hubs[base][0]} if base in found.hubs else set()
    return variables


def _open_layers(found: Encoding) -> set[int]:
    """The nodes of layers that a cut divides, and of those that compute what is sent."""
    nodes, base = found.pcg.nodes, found.classes.base
    sent = {n for node in nodes if node.op == "send" for i in node.inputs for n in (i, base[i])}
    ending = (s.nodes for s in segments(found.pcg) if not sent.isdisjoint(s.nodes))
    return {*divided_layers(found.pcg), *(n for own in ending for n in own)}


def _closed(chains: Iterable[Chain], variables: AbstractSet[int]) -> Iterator[Chain]:
    """The longest runs of copies without these variables; copies agree in all tables only there."""
    for chain in chains:
        free = [variables.isdisjoint(copy) for copy in chain.copies]
        runs = [[place for place, _ in run] for is_free, run in groupby(enumerate(free), lambda x: x[1]) if is_free]
        longest = max(runs, key=len, default=[])
        if len(longest) > 1:
            first, end = longest[0], longest[-1] + 1
            yield replace(chain, boundaries=chain.boundaries[first : end + 1], copies=chain.copies[first:end])


def _without(
    network: Network,
    cost: AbstractSet[int] = frozenset(),
    own: AbstractSet[int] = frozenset(),
    use: AbstractSet[int] = frozenset(),
    lone: AbstractSet[int] = frozenset(),
    transient: AbstractSet[int] = frozenset(),
) -> Network:
    """The network with some tables zeroed, and without transient memory but that of the switches `transient`.

    `cost`, `use`: variables whose own tables and edges cost, or use, nothing; `own`, `lone`: likewise, but only their
    own tables.
    """
    none: dict[tuple[int, ...], Table] = {}

    def nothing(table: Table) -> Table:
        return none.setdefault(table.shape, np.zeros_like(table))

    def tables(c: Table, u: Table | None, scope: AbstractSet[int], alone: bool = False) -> tuple[Table, Table | None]:
        free, empty = scope & (cost | own if alone else cost), scope & (use | lone if alone else use)
        return nothing(c) if free else c, nothing(u) if u is not None and empty else u

    def decided(
        each: Mapping[int, SwitchTables], scope: Callable[[int], set[int]], kept: bool, alone: bool = False
    ) -> dict[int, SwitchTables]:
        free = cost | own if alone else cost
        return {
            k: (*tables(c, u, scope(k), alone), extra if kept and free.isdisjoint(scope(k)) else None)
            for k, (c, u, extra) in each.items()
        }

    def counted(window: Window) -> Window:
        return Window(
            {v: nothing(t) if v in cost | own else t for v, t in window.variables.items()},
            {k: nothing(t) if {edges[k].u, edges[k].v} & cost else t for k, t in window.edges.items()},
        )

    edges = network.edges
    owned = ((x, tables(x.cost, x.use, {v}, alone=True)) for v, x in enumerate(network.variables))
    return replace(
        network,
        variables=tuple(replace(x, cost=c, use=x.use if u is None else u) for x, (c, u) in owned),
        edges=tuple(Edge(e.u, e.v, *tables(e.cost, e.use, {e.u, e.v})) for e in edges),
        switches=tuple(
            replace(
                s,
                variables=decided(s.variables, lambda v: {v}, s.variable in transient, alone=True),
                edges=decided(s.edges, lambda k: {edges[k].u, edges[k].v}, s.variable in transient),
            )
            for s in network.switches
        ),
        windows=tuple(map(counted, network.windows)),
    )
