"""Bundles in a cost network: one more option of every variable inside, for each axis over which it can be placed.

A bundled option stands for an ordinary one: computed whole on the axis (x at B, weights at B), its samples split on all
others. It costs what that one does if its branch is at the slowest coordinate, else nothing, since it runs in parallel;
memory likewise, at the fullest coordinate. It is compatible only with options of the same bundle and axis. The `cat`
pays the exchange. A bundle inside a branch may lie on a second axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

import numpy as np

from ...model.graph.layout import Action, Layout, R, is_split
from ...model.graph.pcg import PCG
from ..network.network import INFINITE, Edge, Table, Variable
from ..strategies.operand_cost import OperandCosts
from ..strategies.operator_options import OperatorOptions
from ..strategies.tensor_classes import Classes, Use
from ..strategies.transitions import Table as Conversions
from ..weights.storage import Storage
from .branch_options import BundleCandidate, BundledOption, PlacedBundle
from .branch_selection import quickest, selections
from .bundles import Bundle, assignments, batch_row, computed, find_bundles, placeable, whole_row


@dataclass
class ParallelBranches:
    """Adds the bundles of a graph to the variables and edges of its network.

    Of tensors with several alternatives, a bundle takes the first of each, or those of least time.
    `optional` are the variables whose last option is "unused", `alternatives` those that choose an alternative.
    `keepers` maps hubs that choose whether they are kept for backward to the nodes that keep them.
    """

    pcg: PCG
    classes: Classes
    costs: OperandCosts
    operators: Mapping[int, tuple[int, OperatorOptions]]
    weights: Mapping[int, tuple[int, Storage]]
    hubs: Mapping[int, tuple[int, Conversions]]
    variables: list[Variable]
    edges: list[Edge]
    optional: frozenset[int] = frozenset()
    alternatives: frozenset[int] = frozenset()
    keepers: Mapping[int, frozenset[int]] = field(default_factory=dict)

    def add(self) -> Mapping[int, tuple[BundledOption, ...]]:
        """Lengthen variables and edges; return what the further options of each variable stand for."""
        candidates = list(self._candidates())
        if not candidates:
            return {}
        placed: dict[int, list[BundledOption]] = {}
        extra: dict[int, list[tuple[int, int]]] = {}  # variable -> (candidate, option)
        for number, candidate in enumerate(candidates):
            join = self.operators[candidate.outer.join][0]
            for v, option in (*candidate.options.items(), *((join, option) for option in candidate.ends)):
                extra.setdefault(v, []).append((number, option))
                placed.setdefault(v, []).append(candidate.placed(option))
        old = list(self.variables)
        for v, those in extra.items():
            self.variables[v] = self._longer(old[v], v, those, candidates)
        self.edges[:] = [self._edge(edge, extra, candidates) for edge in self.edges]
        return {v: tuple(those) for v, those in placed.items()}

    @cached_property
    def uses(self) -> Mapping[int, Sequence[tuple[int, Use]]]:
        """What each node reads: the tensor, and how."""
        found: dict[int, list[tuple[int, Use]]] = {}
        for base, uses in self.classes.uses.items():
            for use in uses:
                found.setdefault(use.node, []).append((base, use))
        return found

    # Candidates

    def _candidates(self) -> Iterator[BundleCandidate]:
        """Every bundle over every axis, alone, and with those inside of it over another axis."""
        found = [b for b in find_bundles(self.pcg) if self._placeable(b)]
        axes = [axis for axis, size in enumerate(self.costs.placement.sizes) if size > 1]
        for bundle, axis in product(found, axes):
            inner = [b for b in found if b.join in bundle.nodes and b.fork in bundle.nodes]
            inner = [b for b in inner if not any(b.join in other.nodes for other in inner)]
            for second, samples in product((None, *(a for a in axes if a != axis and inner)), (True, False)):
                below = [] if second is None else [(b, second) for b in inner]
                if samples or len(axes) > 1:
                    yield from self._with_alternatives([(bundle, axis), *below], samples)

    def _placeable(self, bundle: Bundle) -> bool:
        return placeable(self.pcg, bundle, self.classes, self.operators, self.weights)

    def _with_alternatives(self, over: Sequence[tuple[Bundle, int]], samples: bool) -> Iterator[BundleCandidate]:
        """Bundles over axes, with the first alternative of each tensor, and with those of least time together."""
        first = self._candidate(over, samples, {})
        if first is not None:
            yield from self._balanced(first)
        choices = selections(self.pcg, [bundle for bundle, _ in over])
        tried = [(choice, self._candidate(over, samples, choice)) for choice in choices]
        timed = [(choice, self._times(candidate)) for choice, candidate in tried if candidate is not None]
        choice = quickest(self.pcg, timed)
        quick = self._candidate(over, samples, choice) if choice else None
        if quick is not None:
            yield from self._balanced(quick)

    def _candidate(
        self, over: Sequence[tuple[Bundle, int]], samples: bool, choice: Mapping[int, int]
    ) -> BundleCandidate | None:
        """The candidate with these alternatives; None if something inside has no option for it."""
        found = [(computed(self.pcg, bundle, choice) if choice else bundle, axis) for bundle, axis in over]
        axes = {bundle.join: (bundle, axis) for bundle, axis in found if bundle is not None}
        if len(axes) < len(over) or not all(self._placeable(bundle) for bundle, _ in axes.values()):
            return None
        candidate = BundleCandidate(axes, samples)
        within = all(join in candidate.outer.nodes for join in list(axes)[1:])
        return candidate if within and self._fill(candidate) else None

    def _times(self, candidate: BundleCandidate) -> Mapping[int, int]:
        """ns of every node and weight inside; a hub counts with the node."""
        time, _ = self._loads(candidate)
        found: dict[int, int] = {}
        for i in (i for branch in candidate.outer.branches for i in (*branch.nodes, *branch.weights)):
            tensor = self.classes.variable(i)
            variables = (of[n][0] for of, n in ((self.operators, i), (self.weights, i), (self.hubs, tensor)) if n in of)
            found[i] = sum(time.get(v, 0) for v in variables)
        return found

    def _fill(self, candidate: BundleCandidate) -> bool:
        """Find the ordinary options of all variables inside; False if one has none."""
        bundle, axis = candidate.axes[candidate.outer.join]
        for number, branch in enumerate(bundle.branches):
            for i in branch.nodes:
                if self.classes.base[i] != i or self.classes.constant[i]:
                    continue
                path: tuple[tuple[int, int], ...] = ((bundle.join, number),)
                whole = [axis]
                for join, (inner, second) in list(candidate.axes.items())[1:]:
                    place = next((n for n, b in enumerate(inner.branches) if i in b.nodes), None)
                    if place is not None:
                        path, whole = (*path, (join, place)), [axis, second]
                # Where an inner bundle ends, samples are split over its axis too, or not at all.
                at = {second: 0 for join, (_, second) in candidate.axes.items() if join == i and not candidate.samples}
                if not self._inside(candidate, path, i, self._option(candidate, i, whole, at)):
                    return False
        for join, (inner, second) in list(candidate.axes.items())[1:]:
            given = self._given(join, candidate.options[self.operators[join][0]])
            if not innermost(given, second) or not self._read_whole(candidate, inner, second):
                return False
        everywhere = 0  # the row that is R
        for row in (batch_row(self.pcg, bundle.join), everywhere):
            option = None if row is None else self._option(candidate, bundle.join, [axis], {axis: row})
            if option is not None and innermost(self._given(bundle.join, option), axis):
                candidate.ends[option] = 0
        return bool(candidate.ends)

    def _given(self, node: int, option: int) -> Layout:
        """The layout that an option gives."""
        found = self.operators[node][1]
        return found.output_space.layout(int(found.output[option]))

    def _option(self, candidate: BundleCandidate, node: int, whole: Sequence[int], at: Mapping[int, int]) -> int | None:
        """A node's option: whole on some axes, samples split on all others; `at` names the rows of axes."""
        rows = [(batch_row if candidate.samples else whole_row)(self.pcg, node)] * len(self.costs.placement.sizes)
        for axis in whole:
            rows[axis] = whole_row(self.pcg, node)
        for axis, row in at.items():
            rows[axis] = row
        if None in rows:
            return None
        where = np.flatnonzero((self.operators[node][1].choice == np.array(rows)).all(axis=1))
        return int(where[0]) if len(where) else None

    def _inside(
        self, candidate: BundleCandidate, path: tuple[tuple[int, int], ...], node: int, option: int | None
    ) -> bool:
        """Enter a node, its hub, and the weights that it reads; False if one has no option."""
        if option is None:
            return False
        variable, found = self.operators[node]
        candidate.options[variable], candidate.path[variable] = option, path
        tensor = self.classes.variable(node)
        if tensor in self.hubs:
            hub, table = self.hubs[tensor]
            candidate.options[hub], candidate.path[hub] = (
                self._shared(candidate, tensor, table, int(found.output[option])),
                path,
            )
        for base, use in self.uses.get(node, ()):
            if base not in self.weights:
                continue
            weight, storage = self.weights[base]
            asked = int(self.costs.required(use)[option])
            alone = list(storage.space.layout(asked))
            for join, _ in path:
                alone[candidate.axes[join][1]] = R
            edge = np.flatnonzero(storage.plain & (storage.codes == asked))
            paid = np.flatnonzero(storage.plain & (storage.codes == storage.space.code(tuple(alone))))
            if not len(edge) or not len(paid) or base in self.hubs:
                return False
            candidate.options[weight], candidate.stored[weight], candidate.path[weight] = (
                int(edge[0]),
                int(paid[0]),
                path,
            )
        return True

    def _shared(self, candidate: BundleCandidate, base: int, table: Conversions, code: int) -> int:
        """The option of a hub with a layout: of two the one that is kept for backward, if a reader keeps it."""
        kept = not self.keepers.get(base, frozenset()).isdisjoint((*candidate.outer.nodes, candidate.outer.join))
        return int(table.position[code]) + len(table.codes) * kept

    def _read_whole(self, candidate: BundleCandidate, inner: Bundle, axis: int) -> bool:
        """Make what a nested bundle reads whole on its axis; False if it cannot be."""
        base = self.classes.base[inner.fork]
        if base not in self.hubs:
            return False
        hub, table = self.hubs[base]
        code = int(table.codes[candidate.options[hub] % len(table.codes)])
        layout = list(self.costs.space(base).layout(code))
        reader = next(u for u in self.classes.uses[base] if u.node in inner.nodes)
        asked = int(self.costs.required(reader)[candidate.options[self.operators[reader.node][0]]])
        layout[axis] = self.costs.space(base).layout(asked)[axis]
        candidate.options[hub] = self._shared(candidate, base, table, self.costs.space(base).code(tuple(layout)))
        return True

    # What it costs

    def _balanced(self, candidate: BundleCandidate) -> Iterator[BundleCandidate]:
        """The candidate for every undominated assignment of its branches; of nested bundles the one of least time."""
        time, size = self._loads(candidate)
        for join in list(candidate.axes)[1:]:
            *_, found = self._levels(candidate, join, time, size)[:1]
            ns = self._exchange_ns(found, candidate.options[self.operators[join][0]])
            candidate.levels[join] = replace(found, exchange_ns=ns)
        join = candidate.outer.join
        for level in self._levels(candidate, join, time, size):
            ends = {option: self._exchange_ns(level, option) for option in candidate.ends}
            yield replace(candidate, ends=ends, levels={join: level} | candidate.levels)

    def _levels(
        self, candidate: BundleCandidate, join: int, time: Mapping[int, int], size: Mapping[int, int]
    ) -> list[PlacedBundle]:
        """The undominated assignments of the branches of a bundle, with their times and bytes."""
        bundle, axis = candidate.axes[join]
        count = range(len(bundle.branches))
        mine = {n: [v for v in candidate.options if candidate.path[v][-1] == (join, n)] for n in count}
        times, sizes = ([sum(of[v] for v in mine[n]) for n in count] for of in (time, size))
        for level in (
            candidate.levels.values() if join == candidate.outer.join else ()
        ):  # what is inside counts as a whole
            branch = next(n for n, b in enumerate(bundle.branches) if level.bundle.join in b.nodes)
            times[branch] += level.slowest[0] + level.exchange_ns
            sizes[branch] += level.fullest[0]
        node = self.pcg.nodes[join]
        widths = [self.pcg.nodes[end].shape[node["dim"]] for end in node.inputs]
        found = assignments(times, sizes, widths, self.costs.placement.sizes[axis])
        return [PlacedBundle(bundle, axis, x.places, tuple(times), tuple(sizes)) for x in found]

    def _loads(self, candidate: BundleCandidate) -> tuple[dict[int, int], dict[int, int]]:
        """ns and bytes of every variable inside, with what it reads."""
        time, size = {}, {}
        for v, option in candidate.options.items():
            paid = candidate.stored.get(v, option)
            time[v], size[v] = int(self.variables[v].cost[paid]), int(self.variables[v].use[paid, 0])
        for edge in self.edges:
            if edge.v not in candidate.options:
                continue
            option = candidate.options[edge.v]
            first = candidate.options.get(edge.u)
            if first is None and edge.u in self.optional and edge.cost[-1, option] < INFINITE:
                continue  # another alternative inside, which is unused
            if first is None:  # enters the bundle in just the layout that is asked
                same = np.flatnonzero(edge.cost[:, option] == 0)
                first = int(same[0]) if len(same) else None
            if first is not None and self._joins(candidate, edge):
                time[edge.v] += self._to_join(candidate, edge, first, option)
            elif first is not None:
                time[edge.v] += int(edge.cost[first, option])
                size[edge.v] += 0 if edge.use is None else int(edge.use[first, option, 0])
        return time, size

    def _joins(self, candidate: BundleCandidate, edge: Edge) -> bool:
        """True if an edge leads from a branch to the `cat` of its bundle."""
        join = candidate.path[edge.u][-1][0] if edge.u in candidate.path else -1
        return join in candidate.axes and self.operators[join][0] == edge.v

    def _to_join(self, candidate: BundleCandidate, edge: Edge, one: int, other: int) -> int:
        """ns of a step to convert what a branch gives to how its `cat` reads it: whole on the bundle's axis."""
        join = candidate.path[edge.u][-1][0]
        axis = candidate.axes[join][1]
        node = next(i for kind in (self.operators, self.hubs) for i, (v, _) in kind.items() if v == edge.u)
        base = self.classes.variable(node)
        table, tensor = self.costs.table(base), self.costs.space(base)
        hub = self.hubs.get(base)
        given = (
            int(table.codes[one % len(table.codes)])
            if hub and hub[0] == edge.u
            else int(self.operators[node][1].output[one])
        )
        use = next(use for source, use in self.uses[join] if source == base)
        asked = list(tensor.layout(int(self.costs.required(use)[other])))
        asked[axis] = tensor.layout(given)[axis]
        return (
            int(table.total[table.position[given], table.position[tensor.code(tuple(asked))]])
            * self.costs.micro_batches
        )

    def _exchange_ns(self, level: PlacedBundle, option: int) -> int:
        """ns of a step to join the branches, and to split their gradients."""
        node, coordinates = self.pcg.nodes[level.bundle.join], self.costs.placement.sizes[level.axis]
        found = self.operators[level.bundle.join][1]
        whole = list(self._given(level.bundle.join, option))
        gathered, whole[level.axis] = whole[level.axis] == R, R
        numel = int(found.output_space.numel[found.output_space.code(tuple(whole))])
        widest = widest_piece(self.pcg, level.bundle, level.places, coordinates)
        largest = numel // node.shape[node["dim"]] * widest * self.costs.precision.itemsize(node.dtype)
        step_ns = self.costs.transitions.step_ns
        return self.costs.micro_batches * sum(
            step_ns(level.axis, action, size)
            for action, size, back in exchanges(largest, coordinates, gathered)
            if node.gradient or not back
        )

    # Lengthened tables

    def _longer(
        self, old: Variable, v: int, those: Sequence[tuple[int, int]], candidates: Sequence[BundleCandidate]
    ) -> Variable:
        cost, use = [], []
        for number, option in those:
            candidate = candidates[number]
            if v not in candidate.path:
                cost.append(int(old.cost[option]) + candidate.ends[option])
                use.append(old.use[option])
                continue
            paid = candidate.stored.get(v, option)
            exchange = sum(x.exchange_ns for join, x in candidate.levels.items() if self.operators[join][0] == v)
            cost.append((int(old.cost[paid]) + exchange) * candidate.slow(v))
            use.append(old.use[paid] * candidate.full(v))
        return Variable(old.name, np.concatenate([old.cost, np.array(cost, np.int64)]), np.concatenate([old.use, use]))

    def _edge(
        self, edge: Edge, extra: Mapping[int, Sequence[tuple[int, int]]], candidates: Sequence[BundleCandidate]
    ) -> Edge:
        left, right = extra.get(edge.u, ()), extra.get(edge.v, ())
        if not left and not right:
            return edge
        n, m = edge.cost.shape
        cost = np.full((n + len(left), m + len(right)), INFINITE, np.int64)
        cost[:n, :m] = edge.cost
        use = None if edge.use is None else np.zeros((*cost.shape, 1), np.int64)
        if use is not None:
            use[:n, :m] = edge.use
        for x, (at, option) in enumerate(left):
            if edge.u not in candidates[at].path:  # the outermost `cat`, read as ever
                cost[n + x, :m] = edge.cost[option]
                if use is not None and edge.use is not None:
                    use[n + x, :m] = edge.use[option]
            elif edge.v in self.optional:  # unused, it does not read what is inside
                cost[n + x, m - 1] = 0
            elif edge.v in self.alternatives and edge.v not in candidates[at].options:  # what is taken elsewhere
                cost[n + x, :m] = edge.cost[option]
        for y, (at, option) in enumerate(right):
            candidate = candidates[at]
            if edge.v not in candidate.path and edge.u in self.optional and edge.u not in candidate.options:
                cost[n - 1, m + y] = edge.cost[n - 1, option]  # another alternative of a branch, unused
            if edge.v in candidate.path and edge.u not in candidate.options:
                self._enter(edge, option, candidate, cost[:n, m + y], None if use is None else use[:n, m + y])
        for (x, (a, one)), (y, (b, other)) in product(enumerate(left), enumerate(right)):
            if a != b or edge.u not in candidates[a].path:
                continue
            candidate, inside = candidates[a], edge.v in candidates[a].path
            if self._joins(candidate, edge):
                ns = self._to_join(candidate, edge, one, other)
                cost[n + x, m + y] = ns if not inside or candidate.slow(edge.v) else 0
                continue
            cost[n + x, m + y] = edge.cost[one, other] if candidate.slow(edge.v) else 0
            if use is not None and edge.use is not None and candidate.full(edge.v):
                use[n + x, m + y] = edge.use[one, other]
        return Edge(edge.u, edge.v, cost, use)

    def _enter(self, edge: Edge, option: int, candidate: BundleCandidate, cost: Table, use: Table | None) -> None:
        """Tensors from outside must have the required layout: nothing is converted inside a bundle."""
        same = edge.cost[:, option] == 0
        cost[same] = 0
        if use is not None and edge.use is not None and candidate.full(edge.v):
            use[same] = edge.use[same, option]


def innermost(layout: Layout, axis: int) -> bool:
    """True if no later axis splits the same atom: then parts are exchanged over this axis alone."""
    return not is_split(layout[axis]) or layout[axis] not in layout[axis + 1 :]


def widest_piece(pcg: PCG, bundle: Bundle, places: Sequence[int], coordinates: int) -> int:
    """The largest size along the joined dim that the branches of one coordinate have together."""
    node, widths = pcg.nodes[bundle.join], [0] * coordinates
    for end, place in zip(node.inputs, places, strict=True):
        widths[place] += pcg.nodes[end].shape[node["dim"]]
    return max(widths)


def exchanges(largest_bytes: int, coordinates: int, gathered: bool) -> tuple[tuple[Action, int, bool], ...]:
    """The collectives that end a bundle: (action, bytes, True for backward); `largest_bytes` is of one coordinate."""
    if gathered:
        return (Action.GATHER, coordinates * largest_bytes, False), (Action.SLICE, largest_bytes, True)
    return (Action.EXCHANGE, largest_bytes, False), (Action.EXCHANGE, largest_bytes, True)
