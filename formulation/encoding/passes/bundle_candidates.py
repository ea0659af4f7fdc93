"""Bundles as candidates: which ordinary options their variables stand for over each axis, and what these cost."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import numpy.typing as npt

from ....model.graph.atoms import atoms
from ....model.graph.layout import B, Layout, R
from ...bundles.branch_options import BundleCandidate, PlacedBundle
from ...bundles.branch_selection import Part, Taken, attempts, parts_inside, quickest
from ...bundles.bundles import (
    Bundle,
    assignments,
    batch_row,
    computed,
    exchanges,
    find_bundles,
    innermost,
    sum_row,
    widest_piece,
    widths,
)
from ...bundles.ranges import divisions
from ...network.network import INFINITE, Edge
from ...strategies.transitions import Codes
from ..builder import NetworkBuilder
from .branch_ranges import BranchRanges, ranges_apply, read_of
from .inside_options import InsideOptions, Path


class BundleCandidates(InsideOptions):
    """The candidates of a finished network.

    Of tensors with several alternatives, a bundle takes the captured ones, or those of least time.
    """

    def __init__(self, builder: NetworkBuilder) -> None:
        super().__init__(builder)
        self._parts_of: dict[int, tuple[Part, ...]] = {}

    def all(self) -> Iterator[BundleCandidate]:
        """Every bundle over every axis, alone, and with those inside of it over another axis."""
        found = [b for b in find_bundles(self.pcg) if self._placeable(b)]
        axes = [axis for axis, size in enumerate(self.sizes) if size > 1]
        for bundle, axis in product(found, axes):
            inner = [b for b in found if b.join in bundle.nodes and b.fork in bundle.nodes]
            inner = [b for b in inner if not any(b.join in other.nodes for other in inner)]
            for second, samples in product((None, *(a for a in axes if a != axis and inner)), (True, False)):
                below = [] if second is None else [(b, second) for b in inner]
                if samples or len(axes) > 1:
                    yield from self._with_alternatives([(bundle, axis), *below], samples)
            yield from self._on_ranges(bundle, axis)

    def _on_ranges(self, bundle: Bundle, axis: int) -> Iterator[BundleCandidate]:
        """The candidates with some branches on several coordinates, on which they split their samples."""
        coordinates = self.sizes[axis]
        if not ranges_apply(self.pcg, bundle) or coordinates < 3:
            return
        first = BundleCandidate({bundle.join: (bundle, axis)})
        joins = self._rows_of_joins(first)
        for i in bundle.adds[:-1]:
            if not self.enter(first, (), i, self.option(first, i, [], joins[i])):
                return
        end = self.option(first, bundle.join, [], joins[bundle.join])
        if end is None:
            return
        joined = self._joined_layouts(first, bundle, end)
        parts = self._parts(bundle)
        for chosen in ((), parts) if parts else ((),):
            yield from self._divided(first, end, BranchRanges(self.builder, bundle, axis, joined, chosen))

    def _divided(self, first: BundleCandidate, end: int, ranges: BranchRanges) -> Iterator[BundleCandidate]:
        """The candidates of all divisions of an axis; `first` has the options of what adds up, but the last's."""
        bundle, axis = ranges.bundle, ranges.axis
        add_ns = int(self.builder.variables[self.operators[bundle.join][0]].cost[end])
        for found in divisions(len(bundle.branches), self.sizes[axis], ranges.costs, add_ns):
            costs = [ranges.of(b, share) for b, share in enumerate(found.shares)]
            known = [one for one in costs if one is not None]
            times, sizes = tuple(one.time for one in known), tuple(one.size for one in known)
            taken = replace(bundle, branches=tuple(one.branch for one in known))
            placed = PlacedBundle(taken, axis, found.places, times, sizes, add_ns=add_ns, shares=found.shares)
            candidate = BundleCandidate(
                {bundle.join: (taken, axis)}, options=dict(first.options), path=dict(first.path)
            )
            candidate.adders, candidate.levels = first.adders, {bundle.join: placed}
            candidate.ends = {end: placed.slowest[0] + sum(one.after for one in known)}
            candidate.held_bytes = placed.fullest[0]
            for b, one in enumerate(known):
                candidate.entries |= one.entries
                for of, layouts in (
                    (self.operators, one.operators),
                    (self.hubs, one.hubs),
                    (self.weights, one.weights),
                ):
                    for node, letters in layouts.items():
                        v = of[node][0]
                        candidate.options[v], candidate.layouts[v] = 0, letters
                        candidate.path[v] = ((bundle.join, b),)
            yield candidate

    def _joined_layouts(self, candidate: BundleCandidate, bundle: Bundle, option: int) -> list[Layout]:
        """How a sum reads each of its ends; `option` is that of its last addition."""
        found = []
        for end in bundle.ends:
            reader = next(i for i in bundle.adds if end in self.pcg.nodes[i].inputs)
            variable, options = self.operators[reader]
            place = self.pcg.nodes[reader].inputs.index(end)
            code = int(options.inputs[place][candidate.options.get(variable, option)])
            found.append(options.input_spaces[place].layout(code))
        return found

    def _placeable(self, bundle: Bundle) -> bool:
        """True if everything inside is decided by variables of its own."""
        classes = self.classes
        nodes = (i for i in bundle.nodes if classes.base[i] == i and not classes.constant[i])
        held = (i for branch in bundle.branches for i in branch.weights)
        read = (i for i in held if i in classes.uses and self.pcg.nodes[i].op == "parameter")
        own = all(i in self.operators for i in (*bundle.joining, *nodes))
        ends = (
            not {*self.builder.choices.of(classes.base[end])}.isdisjoint(branch.nodes)
            for branch, end in zip(bundle.branches, bundle.ends, strict=True)
        )
        added = not bundle.adds or all(
            own or not branch.nodes for own, branch in zip(ends, bundle.branches, strict=True)
        )
        return own and added and not classes.twin and all(i in self.weights for i in read)

    def _with_alternatives(self, over: Sequence[tuple[Bundle, int]], samples: bool) -> Iterator[BundleCandidate]:
        """Bundles over axes, as captured, and with the alternatives of least time."""
        first = self._candidate(over, samples, {})
        if first is not None:
            yield from self._balanced(first)
        parts = self._parts(over[0][0])
        tried = [(taken, self._candidate(over, samples, taken)) for taken in attempts(parts)]
        timed = [(taken, self._times(candidate)) for taken, candidate in tried if candidate is not None]
        taken = quickest(parts, timed)
        quick = self._candidate(over, samples, taken) if taken else None
        if quick is not None:
            yield from self._balanced(quick)

    def _parts(self, bundle: Bundle) -> tuple[Part, ...]:
        """The parts of a bundle whose alternatives are chosen."""
        if bundle.join not in self._parts_of:
            self._parts_of[bundle.join] = parts_inside(self.pcg, bundle)
        return self._parts_of[bundle.join]

    def _candidate(self, over: Sequence[tuple[Bundle, int]], samples: bool, taken: Taken) -> BundleCandidate | None:
        """The candidate with these alternatives; None if something inside has no option for it."""
        found = [(computed(self.pcg, bundle, taken) if taken else bundle, axis) for bundle, axis in over]
        axes = {bundle.join: (bundle, axis) for bundle, axis in found if bundle is not None}
        if len(axes) < len(over) or not all(self._placeable(bundle) for bundle, _ in axes.values()):
            return None
        candidate = BundleCandidate(axes, samples)
        within = all(join in candidate.outer.nodes for join in candidate.nested)
        return candidate if within and self._fill(candidate) else None

    def _times(self, candidate: BundleCandidate) -> Mapping[int, int]:
        """ns of every node and weight inside."""
        time, _ = self._loads(candidate)
        each = [self.by_node(branch, time) for branch in candidate.outer.branches]
        return {node: ns for times in each for node, ns in times.items()}

    # Ordinary options

    def _fill(self, candidate: BundleCandidate) -> bool:
        """Find the ordinary options of all variables inside; False if one has none."""
        at = self._rows_of_joins(candidate)
        if not all(self.enter(candidate, *inside) for inside in self._inside(candidate, at)):
            return False
        for join, (inner, second) in candidate.nested.items():
            given = self._given(join, candidate.options[self.operators[join][0]])
            if not innermost(given, second) or not self._read_whole(candidate, inner, second):
                return False
            if inner.adds and not self._hand_on(candidate, inner, second):
                return False
        bundle, axis = candidate.axes[candidate.outer.join]
        for row in self._rows_of_end(bundle):
            option = None if row is None else self.option(candidate, bundle.join, [axis], {axis: row})
            if option is not None and innermost(self._given(bundle.join, option), axis):
                candidate.ends[option] = 0
        return bool(candidate.ends)

    def _rows_of_end(self, bundle: Bundle) -> Iterator[int | None]:
        """The rows with which a bundle can end on its axis: sums as addends, a `cat` as parts of the batch or whole."""
        if bundle.adds:
            yield sum_row(self.pcg, bundle.join)
            return
        if atoms(self.pcg)[bundle.join].batch:  # losses that are stacked have none
            yield batch_row(self.pcg, bundle.join)
        yield 0  # the row that is R

    def _rows_of_joins(self, candidate: BundleCandidate) -> dict[int, Mapping[int, int | None]]:
        """For nodes that join bundles the row on the bundle's axis: of sums addends, of a `cat` samples or a whole."""
        at: dict[int, Mapping[int, int | None]] = {}
        for join, (bundle, axis) in candidate.axes.items():
            if bundle.adds:
                # Sums over samples, like losses, are addends on the other axes as well.
                summed = candidate.samples and join == candidate.outer.join and not atoms(self.pcg)[join].batch
                over = range(len(self.sizes)) if summed else (axis,)
                at |= {i: dict.fromkeys(over, sum_row(self.pcg, i)) for i in bundle.adds}
                candidate.adders |= {self.operators[i][0]: join for i in bundle.adds}
            elif not candidate.samples:
                at[join] = {axis: 0}
        return at

    def _inside(
        self, candidate: BundleCandidate, at: Mapping[int, Mapping[int, int | None]]
    ) -> Iterator[tuple[Path, int, int | None]]:
        """(path, node, option) of the nodes inside, and of those that add up the outermost bundle but the last."""
        bundle, axis = candidate.axes[candidate.outer.join]
        for number, branch in enumerate(bundle.branches):
            for i in branch.nodes:
                if self.classes.base[i] != i or self.classes.constant[i]:
                    continue
                path: Path = ((bundle.join, number),)
                whole = [axis]
                for join, (inner, second) in candidate.nested.items():
                    place = next((n for n, b in enumerate(inner.branches) if i in b.nodes), None)
                    if place is not None:
                        path, whole = (*path, (join, place)), [axis, second]
                yield path, i, self.option(candidate, i, whole, at.get(i, {}))
        for i in bundle.adds[:-1]:
            yield (), i, self.option(candidate, i, [], at[i])

    def _given(self, node: int, option: int) -> Layout:
        """The layout that an option gives."""
        found = self.operators[node][1]
        return found.output_space.layout(int(found.output[option]))

    def _read_whole(self, candidate: BundleCandidate, inner: Bundle, axis: int) -> bool:
        """Make what a nested bundle reads whole on its axis; False if it cannot be."""
        base = self.classes.base[inner.fork]
        if base not in self.hubs:
            return False
        hub, table = self.hubs[base]
        space = self.costs.space(base)
        layout = list(space.layout(int(table.codes[candidate.options[hub] % len(table.codes)])))
        reader = next(u for u in self.classes.uses[base] if u.node in inner.nodes)
        required = self.required(base, reader, candidate.options[self.operators[reader.node][0]])
        layout[axis] = required[axis]
        candidate.options[hub] = self.hub_option(candidate, base, space.code(tuple(layout)))
        return True

    def _hand_on(self, candidate: BundleCandidate, inner: Bundle, axis: int) -> bool:
        """Have the addends of a nested bundle summed up once, if several nodes read the sum; False if impossible."""
        base = self.classes.base[inner.join]
        if base in self.hubs:
            reader = self.classes.uses[base][0]
            variable = self.operators[reader.node][0]
            if variable not in candidate.options:
                return True
            hub, table = self.hubs[base]
            space = self.costs.space(base)
            layout = list(space.layout(int(table.codes[candidate.options[hub] % len(table.codes)])))
            layout[axis] = self.required(base, reader, candidate.options[variable])[axis]
            code = space.code(tuple(layout))
            if table.position[code] < 0:
                return False
            candidate.options[hub] = self.hub_option(candidate, base, code)
        return True

    # Costs

    def _balanced(self, candidate: BundleCandidate) -> Iterator[BundleCandidate]:
        """The candidate for every undominated assignment of its branches; of nested bundles the one of least time."""
        time, size = self._loads(candidate)
        for join in candidate.nested:
            found = self._levels(candidate, join, time, size)[0]
            candidate.levels[join] = replace(
                found, exchange_ns=self._exchange_ns(found, self._joining(candidate, join))
            )
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
        mine = {n: [v for v in candidate.options if candidate.path[v][-1:] == ((join, n),)] for n in count}
        times, sizes = ([sum(of[v] for v in mine[n]) for n in count] for of in (time, size))
        # What is inside counts as a whole.
        for level in candidate.levels.values() if join == candidate.outer.join else ():
            branch = next(n for n, b in enumerate(bundle.branches) if level.bundle.join in b.nodes)
            times[branch] += level.slowest[0] + level.exchange_ns
            sizes[branch] += level.fullest[0]
        add_ns = int(self.builder.variables[self.operators[join][0]].cost[self._joining(candidate, join)])
        add_ns *= bool(bundle.adds)
        # All results of a coordinate but one are added to another: as if all were, less one.
        found = assignments([ns + add_ns for ns in times], sizes, widths(self.pcg, bundle), self.sizes[axis])
        return [PlacedBundle(bundle, axis, x.places, tuple(times), tuple(sizes), add_ns=add_ns) for x in found]

    def _joining(self, candidate: BundleCandidate, join: int) -> int:
        """The option with which a bundle is joined; of the outermost one the first."""
        return candidate.options.get(self.operators[join][0], next(iter(candidate.ends)))

    def _loads(self, candidate: BundleCandidate) -> tuple[dict[int, int], dict[int, int]]:
        """ns and bytes of every variable inside, with what it reads."""
        time, size = {}, {}
        for v, option in candidate.options.items():
            paid, variable = candidate.stored.get(v, option), self.builder.variables[v]
            time[v], size[v] = int(variable.cost[paid]) * (v not in candidate.adders), int(variable.use[paid, 0])
        for number, edge in enumerate(self.builder.edges):
            if edge.v not in candidate.options:
                continue
            option = candidate.options[edge.v]
            first = candidate.options.get(edge.u)
            if first is None and edge.u in self.builder.optional and edge.cost[-1, option] < INFINITE:
                continue  # another alternative inside, which is unused
            if first is None:  # enters the bundle in exactly the required layout
                same = np.flatnonzero(self.enters(candidate, number, option))
                first = int(same[0]) if len(same) else None
            if first is not None and self.joins(candidate, edge):
                time[edge.v] += self.join_ns(candidate, number, first, option)
            elif first is not None:
                time[edge.v] += int(edge.cost[first, option])
                size[edge.v] += 0 if edge.use is None else int(edge.use[first, option, 0])
        return time, size

    def adding_ns(self, candidate: BundleCandidate, v: int) -> int:
        """ns to add the result of a variable to another one at its coordinate, if it ends a branch of a sum there."""
        join, branch = candidate.path[v][-1] if candidate.path[v] else (-1, -1)
        level = candidate.levels.get(join)
        if level is None or branch not in level.bundle.adding(level.places):
            return 0
        end = self.classes.base[level.bundle.ends[branch]]
        return level.add_ns * any(self.operators[i][0] == v for i in self.builder.choices.of(end))

    def joins(self, candidate: BundleCandidate, edge: Edge) -> bool:
        """True if an edge leads from a branch, or the fork, to what joins the branches of a bundle."""
        join = self._joined_at(candidate, edge.v)
        return join >= 0 and candidate.adders.get(edge.u, -1) != join

    def _joined_at(self, candidate: BundleCandidate, v: int) -> int:
        """The bundle that a variable joins, by its join; -1 if none."""
        return candidate.adders.get(v, next((join for join in candidate.axes if self.operators[join][0] == v), -1))

    def enters(self, candidate: BundleCandidate, number: int, option: int) -> npt.NDArray[np.bool_]:
        """The options of what an edge comes from, outside of a bundle, that need no conversion there."""
        edge = self.builder.edges[number]
        if edge.v in candidate.layouts and number in self.builder.conversions:
            return self._cut_at(candidate, number)
        if edge.v not in candidate.adders:
            same: npt.NDArray[np.bool_] = edge.cost[:, option] == 0
            return same
        fits = np.zeros(len(edge.cost), np.bool_)
        if self.builder.conversions[number].source == "weight":  # added to the branches: only outside of a bundle
            return fits
        given, base = self._given_codes(number), self.builder.conversions[number].base
        outside = candidate.axes[candidate.adders[edge.v]][0].outside
        if any(self.classes.base[i] == base for i in outside):
            letter = B if self.pcg.nodes[base].gradient else R
            fits[: len(given)] = given == self._as_joined(candidate, number, option, letter)
        if edge.u in self.builder.optional:  # another alternative, unused
            fits[-1] = edge.cost[-1, option] < INFINITE
        return fits

    def _cut_at(self, candidate: BundleCandidate, number: int) -> npt.NDArray[np.bool_]:
        """The options of what an edge comes from that are whole on the axis, and else what a range reads."""
        edge, conversion = self.builder.edges[number], self.builder.conversions[number]
        fits = np.zeros(len(edge.cost), np.bool_)
        layout = candidate.entries.get(read_of(conversion))
        if layout is not None:
            given = self._given_codes(number)
            fits[: len(given)] = given == self.costs.space(conversion.base).code(layout)
        if edge.u in self.builder.optional:
            fits[-1] = True  # another alternative, unused
        return fits

    def join_ns(self, candidate: BundleCandidate, number: int, one: int, other: int) -> int:
        """ns of a step to convert what a branch gives to how it is joined: whole on the bundle's axis."""
        base, given = self.builder.conversions[number].base, int(self._given_codes(number)[one])
        axis = candidate.axes[self._joined_at(candidate, self.builder.edges[number].v)][1]
        required = self._as_joined(candidate, number, other, self.costs.space(base).layout(given)[axis])
        table = self.costs.table(base)
        return int(table.total[table.position[given], table.position[required]]) * self.costs.micro_batches

    def _given_codes(self, number: int) -> Codes:
        """The layouts that the options of a hub or an operator give, which an edge comes from."""
        conversion, u = self.builder.conversions[number], self.builder.edges[number].u
        if conversion.source == "hub":
            table = self.costs.table(conversion.base)
            return np.resize(table.codes, len(self.builder.edges[number].cost) // len(table.codes) * len(table.codes))
        producer = next(i for i in self.builder.choices.of(conversion.base) if self.operators[i][0] == u)
        return self.operators[producer][1].output

    def _as_joined(self, candidate: BundleCandidate, number: int, option: int, letter: int) -> int:
        """The layout in which an option of a join reads a tensor, but with this letter on the bundle's axis."""
        base, use = self.builder.conversions[number].base, self.builder.conversions[number].use
        assert use is not None
        required = list(self.required(base, use, option))
        required[candidate.axes[self._joined_at(candidate, self.builder.edges[number].v)][1]] = letter
        return self.costs.space(base).code(tuple(required))

    def _exchange_ns(self, level: PlacedBundle, option: int) -> int:
        """ns of a step to join the branches, and to split their gradients."""
        node, coordinates = self.pcg.nodes[level.bundle.join], self.sizes[level.axis]
        if level.bundle.adds:
            return 0
        space, whole = self.operators[level.bundle.join][1].output_space, list(self._given(level.bundle.join, option))
        gathered, whole[level.axis] = whole[level.axis] == R, R
        widest = widest_piece(self.pcg, level.bundle, level.places, coordinates)
        numel = int(space.numel[space.code(tuple(whole))]) // node.shape[node["dim"]] * widest
        return self.costs.micro_batches * sum(
            self.costs.transitions.step_ns(level.axis, action, size)
            for action, size, back in exchanges(
                numel * self.costs.precision.itemsize(node.dtype), coordinates, gathered
            )
            if node.gradient or not back
        )
