"""Checks of a plan for one graph: it can be run as it is."""

from __future__ import annotations

from ...formulation.bundles.bundles import Bundle, inside
from ...formulation.bundles.parallel_branches import innermost
from ...formulation.special import special_rows_fit
from ...formulation.strategies.operator_options import least_values
from ...formulation.strategies.row import Row
from ...formulation.strategies.strategy import rows
from ...model.errors import PartitaError
from ...model.graph.atoms import atoms
from ...model.graph.buffer_updates import updated
from ...model.graph.layout import B, Layout, R, S, atom_of, is_split, splittable
from ...model.graph.pcg import SOURCES
from ...model.graph.segments import MODES, segments
from ...model.graph.sparse_tables import check_optimizer, sparse_tables
from ...model.machine.precision import precision
from ...model.optimizers import OPTIMIZERS, optimizer_states
from .branches import bundles
from .choice import FLAGS, letter_text
from .stage_plan import StagePlan
from .table_spread import check_spread


def check(plan: StagePlan) -> None:
    """Raise PartitaError unless the plan can be run: its machine has the ranks, choices are legal, no rank is empty."""
    _check_settings(plan)
    joins, changed = _check_bundles(plan), updated(plan.graph)
    fitting: set[tuple[tuple[int, ...], Layout]] = set()  # equal layers have equal layouts
    for index, (node, choice) in enumerate(zip(plan.graph.nodes, plan.choices, strict=True)):
        _check_layouts(plan, index, fitting)
        _check_strategy(plan, index, choice.joins[0] if index in joins else None)
        if index in changed and plan.choices[changed[index][0]].inputs[changed[index][1]] != choice.given:
            raise PartitaError(f"node {node.name!r} is updated in another layout than the one it is stored in")
        if node.op == "parameter":
            check_spread(plan, index)
            _check_training(plan, index)
        elif any(getattr(choice, flag) for flag in FLAGS):
            raise PartitaError(f"node {node.name!r} is no parameter: {', '.join(FLAGS)} do not apply")
        elif choice.at:
            raise PartitaError(f"node {node.name!r} is no parameter: pieces do not apply")
    _check_sparse(plan)
    _check_recompute(plan)


def _check_settings(plan: StagePlan) -> None:
    precision(plan.dtype)  # raises if unknown
    if plan.optimizer not in OPTIMIZERS:
        raise PartitaError(f"optimizer {plan.optimizer!r} is none of {', '.join(OPTIMIZERS)}")
    if plan.micro_batches < 1:
        raise PartitaError(f"{plan.micro_batches} micro-batches")
    if not 1 <= plan.in_flight <= plan.micro_batches:
        raise PartitaError(f"{plan.in_flight} of {plan.micro_batches} micro-batches in flight")
    if plan.placement.hierarchy != plan.machine.hierarchy:
        raise PartitaError(f"placement {plan.placement.matrix} does not fit a machine of {plan.machine.hierarchy}")
    if len(plan.choices) != len(plan.graph.nodes):
        raise PartitaError(f"{len(plan.choices)} choices for {len(plan.graph.nodes)} nodes")


def _check_layouts(plan: StagePlan, index: int, fitting: set[tuple[tuple[int, ...], Layout]]) -> None:
    """Every layout of a node fits its tensor; `fitting` caches those that do, by the sizes of atoms."""
    node, choice, known = plan.graph.nodes[index], plan.choices[index], atoms(plan.graph)
    if len(choice.inputs) != (0 if node.op in SOURCES else len(node.inputs)):
        raise PartitaError(f"node {node.name!r}: {len(choice.inputs)} input layouts for {len(node.inputs)} inputs")
    for i, layout in zip((index, index, *node.inputs), (choice.output, choice.given, *choice.inputs), strict=True):
        if (known[i].sizes, layout) not in fitting:
            _check_layout(plan, node.name, known[i].sizes, layout)
            fitting.add((known[i].sizes, layout))


def _check_strategy(plan: StagePlan, index: int, joined: int | None) -> None:
    """A node has a strategy on every axis, except the one over which it joins branches; they are compatible."""
    node, choice, known = plan.graph.nodes[index], plan.choices[index], atoms(plan.graph)
    sizes = plan.placement.sizes
    legal = {(row.inputs, row.output): row for row in rows(plan.graph, index)}
    letters = [(tuple(x[axis] for x in choice.inputs), choice.output[axis]) for axis in range(len(sizes))]
    for axis, (inputs, output) in enumerate(letters):
        if axis != joined and sizes[axis] > 1 and (inputs, output) not in legal:
            words = [letter_text(known[i], x) for i, x in zip(node.inputs, inputs, strict=True)]
            offered = letter_text(known[index], output)
            raise PartitaError(
                f"node {node.name!r} ({node.op}): no strategy from ({', '.join(words)}) to {offered}, axis {axis}"
            )
    taken = [legal.get(pair, Row((), R)) for pair in letters]
    if not special_rows_fit(taken, choice.inputs, choice.output, sizes):
        raise PartitaError(f"node {node.name!r} ({node.op}): its special strategies do not go together")
    if node.op == "local_batch_norm" and least_values(known[node.inputs[0]], choice.inputs[0], sizes) < 2:
        raise PartitaError(f"node {node.name!r}: a rank has a single value of a channel to normalize")


def _check_recompute(plan: StagePlan) -> None:
    """Recomputed are known segments, none with parallel branches in it."""
    known = {segment.name: segment.nodes for segment in segments(plan.graph)} if plan.recompute else {}
    for name, mode in plan.recompute.items():
        if name not in known:
            raise PartitaError(f"{name!r} is no segment to compute again; there are: {', '.join(known) or 'none'}")
        if mode not in MODES[1:]:
            raise PartitaError(f"segment {name!r}: recomputation {mode!r:.40} is none of {', '.join(MODES[1:])}")
        if any(plan.choices[i].beside or plan.choices[i].joins for i in known[name]):
            raise PartitaError(f"segment {name!r} has branches side by side, and cannot be computed again")


def _check_training(plan: StagePlan, index: int) -> None:
    """Gradients are sharded only with their states; offloading needs optimizer state and a dense gradient."""
    node, choice, device = plan.graph.nodes[index], plan.choices[index], plan.machine.device
    if choice.sharded_states and node.get("stages", 1) > 1:
        raise PartitaError(f"node {node.name!r}: other stages may have it too, so its states are not sharded")
    if not choice.sharded_gradients and not choice.offloaded:
        return
    if not node.gradient or index in sparse_tables(plan.graph):
        raise PartitaError(f"node {node.name!r} has no dense gradient: nothing of it is sharded or offloaded")
    if choice.sharded_gradients and not (choice.sharded_states and B in choice.output):
        raise PartitaError(f"node {node.name!r}: gradients are sharded over the copies that share sharded states")
    if choice.offloaded and device.host_bandwidth is None:
        raise PartitaError(f"node {node.name!r} is offloaded, but {device.name} has no host_bandwidth")
    copied = choice.sharded_states or precision(plan.dtype).copied
    if choice.offloaded and not optimizer_states(plan.optimizer) + copied:
        raise PartitaError(f"node {node.name!r} is offloaded, but {plan.optimizer} keeps nothing of it")


def _check_bundles(plan: StagePlan) -> dict[int, Bundle]:
    """Every node at one coordinate of an axis belongs to a bundle, and is whole on that axis; return the bundles."""
    found, taken = bundles(plan), dict[int, list[tuple[int, int]]]()
    outermost = sorted(found, key=lambda join: -len(found[join].nodes))
    for join in outermost:
        name, (axis, *places) = plan.graph.nodes[join].name, plan.choices[join].joins
        if not 0 <= axis < len(plan.placement.sizes) or not all(0 <= x < plan.placement.sizes[axis] for x in places):
            raise PartitaError(f"node {name!r}: branches at {places} of axis {axis}, which has no such coordinates")
        for i, place in inside(found[join], places):
            if axis in dict(taken.setdefault(i, [])):
                raise PartitaError(f"node {plan.graph.nodes[i].name!r} is inside two bundles over one axis")
            taken[i].append((axis, place))
            _check_whole(plan, i, axis)
        for i in found[join].nodes:
            for source, layout in zip(plan.graph.nodes[i].inputs, plan.choices[i].inputs, strict=True):
                if source == found[join].fork and plan.choices[source].given != layout:
                    raise PartitaError(f"node {plan.graph.nodes[i].name!r} converts what its bundle reads")
        letters = [layout[axis] for layout in plan.choices[join].inputs]
        whole = [B if plan.graph.nodes[i].gradient else R for i in plan.graph.nodes[join].inputs]
        samples = {S(a) for a in atoms(plan.graph)[join].batch}
        output = plan.choices[join].output
        if letters != whole or output[axis] not in {R, *samples} or not innermost(output, axis):
            raise PartitaError(f"node {name!r}: it joins branches that are whole to parts of the batch, or to a whole")
    for i, choice in enumerate(plan.choices):
        if choice.beside != tuple(taken.get(i, ())) or (choice.joins and i not in found):
            raise PartitaError(
                f"node {plan.graph.nodes[i].name!r} is at {choice.beside or choice.joins} without a bundle"
            )
    return found


def _check_whole(plan: StagePlan, index: int, axis: int) -> None:
    """A node or weight at one coordinate of an axis is neither split nor converted there."""
    node, choice, known = plan.graph.nodes[index], plan.choices[index], atoms(plan.graph)[index]
    sources = [plan.graph.nodes[i].gradient and node.gradient for i in node.inputs]
    letters = [layout[axis] for layout in (choice.output, choice.given, *choice.inputs)]
    if letters != [B if gradient else R for gradient in (node.gradient, node.gradient, *sources)]:
        raise PartitaError(f"node {node.name!r} is at one coordinate, but not whole there")
    first = {S(a) for a in known.of_dim(0)} if node.op in SOURCES and node.shape else set()
    if choice.joins[:1] == (axis,) or choice.sharded_states or choice.offloaded or first & {*choice.output}:
        raise PartitaError(f"node {node.name!r} is at one coordinate, and cannot be split there")


def _check_sparse(plan: StagePlan) -> None:
    """Tables with sparse gradients are read as they are stored."""
    check_optimizer(plan.graph, plan.optimizer)
    for table in sparse_tables(plan.graph):
        choice = plan.choices[table]
        readers = (plan.choices[i].inputs[0] for i in plan.graph.consumers[table])
        if any(layout != choice.output for layout in (choice.given, *readers)) or choice.regather:
            name = plan.graph.nodes[table].name
            raise PartitaError(f"the gradient of {name!r} is sparse: it cannot be converted from how it is stored")


def _check_layout(plan: StagePlan, name: str, items: tuple[int, ...], layout: Layout) -> None:
    """A layout has a letter for every axis and leaves no rank empty; `items` are the sizes of the tensor's atoms."""
    sizes = plan.placement.sizes
    if len(layout) != len(sizes):
        raise PartitaError(f"node {name!r}: a layout of {len(layout)} letters on a mesh of {len(sizes)} axes")
    splits: dict[int, tuple[int, ...]] = {}
    for letter, size in zip(layout, sizes, strict=True):
        if is_split(letter):
            a = atom_of(letter)
            if a >= len(items):
                raise PartitaError(f"node {name!r}: atom {a} of a tensor with {len(items)} atoms")
            splits[a] = (*splits.get(a, ()), size)
    for a, parts in splits.items():
        if not splittable(items[a], parts):
            raise PartitaError(f"node {name!r}: {items[a]} items split by {parts} leave a rank empty")
