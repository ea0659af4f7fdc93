"""From an assignment of the cost network to one choice per node of the graph, and to a report of its costs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ...formulation.bundles.branch_options import PlacedBundle
from ...formulation.bundles.bundles import inside
from ...formulation.encoding.encoding import Encoding
from ...formulation.encoding.overlap import KERNELS, TRAFFIC
from ...formulation.network.network import Network, evaluate, window_streams, window_terms
from ...formulation.strategies.tensor_classes import handover, without_addends
from ...formulation.strategies.transitions import space
from ...model.graph.atoms import atoms
from ...model.graph.buffer_updates import updated
from ...model.graph.layout import B, Layout, P, R, S, atom_of, is_split
from ...model.graph.segments import segments
from ...model.operators.operator import operator
from ..plan.choice import Choice
from ..plan.table_spread import at_of


def choices(found: Encoding, assignment: Sequence[int]) -> tuple[Choice, ...]:
    """The choice of every node: its strategy, the layout its tensor is converted to, how weights are stored.

    An alternative that the assignment does not take is whole on every rank.
    """
    axes = len(found.placement.sizes)
    whole: Layout = (R,) * axes
    given: dict[int, Layout] = {}  # by base of a tensor class, in its atoms: the layout from which consumers convert
    result: list[Choice] = []
    recomputed = _recomputed_nodes(found, assignment)
    wanted, changed = _wanted_of_inputs(found, assignment), updated(found.pcg)
    for index, node in enumerate(found.pcg.nodes):
        base = found.classes.base[index]
        if index in found.operators:
            choice = _strategy(found, assignment, index)
        elif index in found.classes.twin and base == index:
            choice = _repeated(found, assignment, index)
        elif index in found.weights:
            variable, stored = found.weights[index]
            o, placed = (0, None) if found.unused(assignment, variable) else found.option(assignment, variable)
            layout = stored.space.layout(int(stored.codes[o]))
            shared = _shared(found, assignment, index)
            regather = bool(stored.regather[o]) and recomputed.isdisjoint(found.pcg.consumers[index])
            shards = bool(stored.sharded[o]), bool(stored.scattered[o])
            choice = Choice((), layout, shared, regather, *shards, bool(stored.offloaded[o]))
            if placed is not None and placed.layouts:
                choice = Choice((), placed.layouts[0], shared)
            for letter, spread in zip(layout, stored.spreads, strict=False):
                if letter == P and spread is not None:
                    choice = replace(choice, at=at_of(node, spread))
        elif node.op == "input":
            choice = Choice((), _common(wanted.get(index, []), axes))
        elif index in changed and changed[index][0] in found.operators:  # stored as its update reads it
            reader, operand = changed[index]
            choice = Choice((), _strategy(found, assignment, reader).inputs[operand])
        elif base != index:  # a view passes on the layout of its base
            source, output = (_shown(given[base], found.classes.atoms[i]) for i in (node.inputs[0], index))
            choice = Choice((source,), output)
        else:  # constants and unused parameters: whole on every rank
            choice = Choice((whole,) * len(node.inputs), whole)
        if base == index:
            given[index] = choice.given
        result.append(choice)
    for level in _bundles(found, assignment):
        for i, at in inside(level.bundle, level.places):
            result[i] = replace(result[i], beside=(*result[i].beside, (level.axis, at)))
    return tuple(result)


def _recomputed_nodes(found: Encoding, assignment: Sequence[int]) -> set[int]:
    """The nodes of recomputed segments; the weights that they read are gathered again with them."""
    modes = found.recomputed(assignment)
    return {i for segment in segments(found.pcg) if segment.name in modes for i in segment.nodes} if modes else set()


def _bundles(found: Encoding, assignment: Sequence[int]) -> Iterator[PlacedBundle]:
    """The chosen bundles, each before those nested in it."""
    for variable in found.bundled:
        _, placed = found.option(assignment, variable)
        if placed is not None and found.operators[placed.levels[0].bundle.join][0] == variable:
            yield from placed.levels


def _strategy(found: Encoding, assignment: Sequence[int], index: int) -> Choice:
    """The choice of an operator with options of its own."""
    node = found.classes.alternative_of.get(index, index)
    variable, options = found.operators[index]
    if found.computed_by(assignment, node) != index:
        whole: Layout = (R,) * len(found.placement.sizes)
        return Choice((whole,) * len(options.inputs), whole)
    o, placed = found.option(assignment, variable)
    inputs = tuple(s.layout(int(c[o])) for s, c in zip(options.input_spaces, options.inputs, strict=True))
    output = options.output_space.layout(int(options.output[o]))
    if placed is not None and placed.layouts:
        inputs, output = placed.layouts[:-1], placed.layouts[-1]
    choice = Choice(inputs, output, _shared(found, assignment, node))
    for level in placed.levels if placed else ():
        if index in level.bundle.joining:  # on its axis, every branch's result is whole at one coordinate
            axis, adds = level.axis, level.bundle.adds
            letters = [B if found.pcg.nodes[i].gradient else R for i in found.pcg.nodes[index].inputs]
            ranged = {end for end, share in zip(level.bundle.ends, level.shares, strict=False) if share > 1}
            inputs = tuple(
                x if i in adds or i in ranged else (*x[:axis], w, *x[axis + 1 :])
                for i, x, w in zip(found.pcg.nodes[index].inputs, choice.inputs, letters, strict=True)
            )
            choice = replace(choice, inputs=inputs)
            if index == level.bundle.join:
                choice = replace(choice, joins=(axis, *level.places), shares=level.shares)
    return choice


def _repeated(found: Encoding, assignment: Sequence[int], index: int) -> Choice:
    """The choice of a node without gradient that repeats another: the same, with R for B; see `handover`."""
    model = _strategy(found, assignment, found.classes.twin[index])
    shared = None if model.shared is None else without_addends(model.shared)
    if index in found.classes.handed:
        shared = handover(found.pcg, index, found.placement.sizes)
    return Choice(tuple(map(without_addends, model.inputs)), without_addends(model.output), shared)


def _shared(found: Encoding, assignment: Sequence[int], index: int) -> Layout | None:
    """The layout to which a tensor is converted once for all its consumers, if there is one."""
    if index not in found.hubs:
        return None
    hub, table = found.hubs[index]
    if found.unused(assignment, hub):
        return None
    option, placed = found.option(assignment, hub)
    if placed is not None and placed.layouts:
        return placed.layouts[0]
    option %= len(table.codes)  # those that are kept for backward follow the others
    return space(found.placement.sizes, atoms(found.pcg)[index].sizes).layout(int(table.codes[option]))


def _shown(layout: Layout, shown: tuple[int, ...]) -> Layout:
    """A layout of a base in the atoms of its view; `shown[a]` is the base's atom of the view's atom a."""
    return tuple(S(shown.index(atom_of(x))) if is_split(x) else x for x in layout)


def _wanted_of_inputs(found: Encoding, assignment: Sequence[int]) -> dict[int, list[Layout]]:
    """For every input of the graph the layouts in which its consumers read it, in the input's own atoms."""
    wanted: dict[int, list[Layout]] = {}
    for base, uses in found.classes.uses.items():
        if found.pcg.nodes[base].op != "input":
            continue
        for use in uses:
            if not _is_computed(found, assignment, use.node):
                continue
            layout = _strategy(found, assignment, found.classes.decides(use.node)).inputs[use.operand]
            placed = found.option(assignment, found.operators[found.classes.decides(use.node)][0])[1]
            if placed is not None and placed.layouts:  # cut on the range of its branch alone
                axis = placed.levels[0].axis
                layout = (*layout[:axis], R, *layout[axis + 1 :])
            wanted.setdefault(base, []).append(tuple(S(use.atoms[atom_of(x)]) if is_split(x) else x for x in layout))
    return wanted


def _is_computed(found: Encoding, assignment: Sequence[int], index: int) -> bool:
    """True if a node is computed, and not by another alternative."""
    return found.computed_by(assignment, found.classes.variable(index)) in (index, found.classes.decides(index))


def _common(layouts: Sequence[Layout], axes: int) -> Layout:
    """The largest split that all consumers share: each rank reads that part, and cuts it further for each of them."""
    common = []
    for axis in range(axes):
        letters = {layout[axis] for layout in layouts}
        letter = letters.pop() if len(letters) == 1 else R
        common.append(letter if is_split(letter) else R)
    # Splits of one atom are a stack: an axis may only stay if those outside it on the same atom stay too.
    for axis in range(axes):
        if any(layout[o] == common[axis] != common[o] for layout in layouts for o in range(axis)):
            common[axis] = R
    return tuple(common)


def report(found: Encoding, assignment: Sequence[int]) -> dict[str, Any]:
    """The costs of an assignment by part (ns of a step), which add up to the objective, and its memory."""
    network, nodes, assignment = found.network, found.pcg.nodes, found.settled(assignment)
    checked = evaluate(network, assignment)
    names = {v: nodes[found.classes.variable(i)].name for i, (v, _) in found.operators.items()}
    parts = {"compute": network.constant, "conversions": 0, "weights": 0, "gradients": 0}
    stored = {v for v, _ in found.weights.values()}
    hub_of_weight = {found.hubs[w][0] for w in found.weights if w in found.hubs}
    per_node: dict[str, int] = {}
    conversions: list[dict[str, Any]] = []
    streams, hidden, host_bound = _streams(network, assignment)
    for number, term in enumerate(network.terms()):
        cost = int(term.cost[tuple(assignment[v] for v in term.scope)]) + streams[number]
        if number < len(network.variables):
            parts["gradients" if number in stored else "compute"] += cost
            if number in names and cost:
                per_node[names[number]] = cost
            continue
        u, v = term.scope[-2:]
        parts["weights" if u in stored or u in hub_of_weight else "conversions"] += cost
        if cost:
            conversions.append({"from": network.variables[u].name, "to": network.variables[v].name, "ns": cost})
    assert sum(parts.values()) - hidden + host_bound == checked.cost, (parts, hidden, host_bound, checked.cost)
    bundles = _bundle_reports(found, assignment)
    return {
        **({"bundles": bundles} if bundles else {}),
        "memory_bytes": checked.use[0] + found.fixed_bytes,
        "capacity_bytes": found.machine.device.capacity_bytes,
        "unsplit_flops": unsplit_flops([(found, assignment)]),
        "parts_ns": parts,
        "hidden_ns": hidden,
        "host_bound_ns": host_bound,
        "operators_ns": per_node,
        "conversions": conversions,
    }


def _streams(network: Network, assignment: Sequence[int]) -> tuple[Counter[int], int, int]:
    """What every term, in the network's order, adds to kernels and traffic of windows (ns).

    And how much less the windows take since these run at the same time, and how much more since the host takes longer.
    """
    found = Counter[int]()
    for window, terms in zip(network.windows, window_terms(network), strict=True):
        numbers = (*window.variables, *(len(network.variables) + k for k in window.edges))
        for number, (scope, table) in zip(numbers, terms, strict=True):
            options = tuple(assignment[v] for v in scope)
            found[number] += sum(table.item(k, *options) for k in (KERNELS, TRAFFIC))
    each = window_streams(network, assignment)
    device = sum(max(streams[KERNELS], streams[TRAFFIC]) for streams in each)
    return found, found.total() - device, sum(map(max, each)) - device


def _bundle_reports(found: Encoding, assignment: Sequence[int]) -> list[dict[str, Any]]:
    """Where parallel branches run, and how long in parallel and in sequence, without the exchange."""
    nodes = found.pcg.nodes
    return [
        {
            nodes[level.bundle.join].op: nodes[level.bundle.join].name,
            "axis": level.axis,
            **({"shares": list(level.shares)} if level.shares else {}),
            "places": {nodes[i].name: at for i, at in zip(level.bundle.ends, level.places, strict=True)},
            "beside_ns": level.slowest[0],
            "in_turn_ns": sum(level.times) + level.add_ns * (len(level.places) - 1),
        }
        for level in _bundles(found, assignment)
    ]


def unsplit_flops(stages: Iterable[tuple[Encoding, Sequence[int]]]) -> float:
    """Share of the FLOPs of all stages that no axis splits; 0 on one device."""
    total = unsplit = 0
    for found, assignment in stages:
        if found.placement.devices == 1:
            return 0.0
        for index, (variable, options) in found.operators.items():
            if not _is_computed(found, assignment, index):
                continue
            node = found.pcg.nodes[index]
            work = operator(node.op).work(node, tuple(found.pcg.nodes[i] for i in node.inputs))
            total += work
            option, placed = found.option(assignment, variable)
            if placed is None and all(options.rows[r].index is None for r in options.choice[option]):
                unsplit += work
    return unsplit / total if total else 0.0
