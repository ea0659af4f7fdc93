"""Branches of a sum on ranges of coordinates: their layouts, times and memory, on a mesh of the size of a range."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ....model.graph.layout import B, Layout, R, S, atom_of, is_split
from ....model.graph.pcg import PCG, SOURCES
from ....model.operators.loss import CLASSIFIED
from ...bundles.branch_options import BundleCandidate
from ...bundles.branch_selection import Part, Taken, attempts, quickest
from ...bundles.bundles import Branch, Bundle, computed
from ...bundles.ranges import within
from ...strategies.tensor_classes import Use
from ..builder import Conversion, NetworkBuilder
from .encoding_pass import EncodingPass
from .hubs import Hubs
from .inside_options import InsideOptions
from .operators import Operands, Operators
from .weights import Weights

Layouts = dict[int, tuple[Layout, ...]]

Read = tuple[int, int, int]
"""A tensor class, the node that reads it, and the operand."""


@dataclass(frozen=True, slots=True)
class RangeCosts:
    """A branch on a range: ns of a step and bytes of a rank, the layouts of all inside, and those of what enters.

    `after`: ns to convert the result where it is added. `operators` have the layouts of the inputs, then of the output.
    `entries`: what a read from outside gets, in letters of the whole axis, where it is whole. `branch` has the
    alternatives taken, `times` the ns of every node and weight; a hub counts with the node.
    """

    time: int
    size: int
    operators: Mapping[int, tuple[Layout, ...]]
    hubs: Mapping[int, tuple[Layout, ...]]
    weights: Mapping[int, tuple[Layout, ...]]
    entries: Mapping[Read, Layout]
    branch: Branch
    times: Mapping[int, int]
    after: int = 0


def ranges_apply(pcg: PCG, bundle: Bundle) -> bool:
    """True for sums whose terms are all computed inside, of whole models, without counted labels inside."""
    counted = any(pcg.nodes[i].op in CLASSIFIED for i in bundle.nodes)
    return bool(bundle.adds) and not (bundle.outside or counted or pcg.part)


class BranchRanges:
    """The branches of a bundle over an axis; networks of them are made for every size of a range when needed.

    `joined`: how the sum reads each of its ends, addends on the axis. `parts`: tensors of which the alternatives of
    least time are taken, on every range.
    """

    def __init__(
        self, builder: NetworkBuilder, bundle: Bundle, axis: int, joined: Sequence[Layout], parts: Sequence[Part] = ()
    ) -> None:
        self.joined, self.parts = joined, parts
        self.builder, self.pcg, self.classes = builder, builder.pcg, builder.classes
        self.bundle, self.axis = bundle, axis
        self.builders: dict[int, NetworkBuilder | None] = {}
        self.found: dict[tuple[int, int], RangeCosts | None] = {}

    def costs(self, branch: int, share: int) -> tuple[int, int] | None:
        """Time and bytes of a branch on a range of `share` coordinates; None if it cannot split its samples so."""
        found = self.of(branch, share)
        return None if found is None else (found.time, found.size)

    def of(self, branch: int, share: int) -> RangeCosts | None:
        """The same with the layouts."""
        if (branch, share) not in self.found:
            if share not in self.builders:
                self.builders[share] = self._builder(share)
            builder = self.builders[share]
            self.found[branch, share] = None if builder is None else self._quickest(builder, branch, share)
        return self.found[branch, share]

    def _quickest(self, builder: NetworkBuilder, branch: int, share: int) -> RangeCosts | None:
        """The costs with the alternatives of least time."""
        parts = [part for part in self.parts if not part.tensors.isdisjoint(self.bundle.branches[branch].nodes)]
        every = [(taken, self._costs(builder, branch, share, taken)) for taken in attempts(parts) or [{}]]
        tried = [(taken, costs) for taken, costs in every if costs is not None]
        taken = quickest(parts, [(taken, costs.times) for taken, costs in tried])
        known = next((costs for other, costs in tried if other == taken), None)
        return self._costs(builder, branch, share, taken) if known is None else known

    def _builder(self, share: int) -> NetworkBuilder | None:
        """The network of all branches, and of what they read, on a mesh with so many coordinates."""
        own = self.builder
        part = within(own.machine, own.placement, self.axis, share)
        if part is None:
            return None
        builder = NetworkBuilder(
            own.pcg,
            *part,
            micro_batches=own.micro_batches,
            dtype=own.dtype,
            optimizer=own.optimizer,
            options=replace(own.options, space=replace(own.options.space, bundles=False, fix=())),
            stage=own.stage,
        )
        passes: list[EncodingPass] = [make(builder) for make in (Operators, Weights, Operands, Hubs)]
        if self.bundle.fork >= 0:
            self._add(builder, passes, self.classes.base[self.bundle.fork], reads=False)
        nodes = {i for part in self.parts for those in part.nodes for i in those if self.pcg.nodes[i].op not in SOURCES}
        for node in sorted(nodes.union(self.bundle.nodes)):
            if self.classes.base[node] == node and not self.classes.constant[node]:
                self._add(builder, passes, node, reads=True)
        return builder

    def _add(self, builder: NetworkBuilder, passes: list[EncodingPass], node: int, *, reads: bool) -> None:
        for member in builder.choices.of(node):
            if member not in builder.operators:
                passes[0].compute(member)
        for base, reader, operand in builder.operands(node) if reads else ():
            for one in passes:
                one.read(base, reader, operand)
        for one in passes:
            one.publish(node)

    def _costs(self, builder: NetworkBuilder, branch: int, share: int, taken: Taken) -> RangeCosts | None:
        """The costs with these alternatives; None if something has no option."""
        bundle = computed(self.pcg, self.bundle, taken) if taken else self.bundle
        assert bundle is not None  # as parts are chosen
        helper, candidate = InsideOptions(builder), BundleCandidate({bundle.join: (bundle, self.axis)})
        alone = ((bundle.join, branch),) if share == 1 else ()
        for i in bundle.branches[branch].nodes:
            if self.classes.base[i] == i and not self.classes.constant[i]:
                option = helper.option(candidate, i, [self.axis] if share == 1 else [], {})
                if not helper.enter(candidate, alone, i, option):
                    return None
        return _Priced(builder, candidate, self, share).costs(branch)


class _Priced:
    """A branch whose options on a range are known."""

    def __init__(self, builder: NetworkBuilder, candidate: BundleCandidate, ranges: BranchRanges, share: int) -> None:
        self.builder, self.candidate, self.ranges, self.share = builder, candidate, ranges, share
        self.bundle, self.axis = candidate.outer, ranges.axis
        self.pcg, self.classes = builder.pcg, builder.classes
        self.entries: dict[Read, Layout] = {}

    def costs(self, branch: int) -> RangeCosts:
        builder, options, size = self.builder, self.candidate.options, 0
        time: dict[int, int] = {}
        for v, option in options.items():
            paid = self.candidate.stored.get(v, option)
            time[v] = int(builder.variables[v].cost[paid])
            size += int(builder.variables[v].use[paid, 0])
        for number, edge in enumerate(builder.edges):
            if edge.v not in options:
                continue
            if edge.u in options:
                time[edge.v] += int(edge.cost[options[edge.u], options[edge.v]])
                size += 0 if edge.use is None else int(edge.use[options[edge.u], options[edge.v], 0])
            else:
                more = self._entry(builder.conversions[number], options[edge.v])
                time[edge.v], size = time[edge.v] + more[0], size + more[1]
        inside = self.bundle.branches[branch]
        ended = self._ended(branch)
        within, after = (ended, 0) if self.share > 1 else (0, ended)
        times = InsideOptions(builder).by_node(inside, time)
        return RangeCosts(
            sum(time.values()) + within, size, *self._layouts(), self.entries, branch=inside, times=times, after=after
        )

    def _entry(self, conversion: Conversion, option: int) -> tuple[int, int]:
        """ns and bytes to cut what is whole outside; nothing for an alternative that is not taken, or what it reads."""
        base, use = conversion.base, conversion.use
        fork = self.classes.base[self.bundle.fork] if self.bundle.fork >= 0 else -1
        if use is None or base != fork or (base, use.node, use.operand) in self.entries:
            return 0, 0
        costs = self.builder.costs
        required = costs.space(base).layout(int(costs.required(use)[option]))
        letter = B if self.pcg.nodes[base].gradient else R
        given = (*required[: self.axis], letter, *required[self.axis + 1 :])
        self.entries[base, use.node, use.operand] = given
        code = np.array([costs.space(base).code(given)])
        ns, kept = costs.from_operator(base, use, code, np.ones(1, np.bool_))
        return int(ns[0, option]), 0 if kept is None else int(kept[0, option, 0])

    def _ended(self, branch: int) -> int:
        """ns to bring the result of a branch to how it is added: an addend, on one coordinate as it is."""
        end = self.bundle.ends[branch]
        base, shown, costs = self.classes.base[end], self.classes.atoms[end], self.builder.costs
        space, table = costs.space(base), costs.table(base)
        if base in self.builder.hubs:
            hub, known = self.builder.hubs[base]
            given = int(known.codes[self.candidate.options[hub] % len(known.codes)])
        else:
            inside = self.bundle.branches[branch].nodes
            variable, found = next(self.builder.operators[i] for i in self.builder.choices.of(base) if i in inside)
            given = int(found.output[self.candidate.options[variable]])
        target = [S(shown[atom_of(x)]) if is_split(x) else x for x in self.ranges.joined[branch]]
        if self.share == 1:
            target[self.axis] = space.layout(given)[self.axis]
        ns = table.total[table.position[given], table.position[space.code(tuple(target))]]
        return int(ns) * self.builder.micro_batches

    def _layouts(self) -> tuple[Layouts, Layouts, Layouts]:
        """The layouts of operators, hubs and weights, by node."""
        options = self.candidate.options
        operators: Layouts = {}
        for node, (v, found) in self.builder.operators.items():
            if v in options:
                o = options[v]
                inputs = (s.layout(int(c[o])) for s, c in zip(found.input_spaces, found.inputs, strict=True))
                operators[node] = (*inputs, found.output_space.layout(int(found.output[o])))
        hubs: Layouts = {
            node: (self.builder.costs.space(node).layout(int(table.codes[options[v] % len(table.codes)])),)
            for node, (v, table) in self.builder.hubs.items()
            if v in options
        }
        weights: Layouts = {
            node: (stored.space.layout(int(stored.codes[options[v]])),)
            for node, (v, stored) in self.builder.weights.items()
            if v in options
        }
        return operators, hubs, weights


def read_of(conversion: Conversion) -> Read:
    """The read that a conversion is for."""
    use = conversion.use or Use(-1, -1, ())
    return conversion.base, use.node, use.operand
