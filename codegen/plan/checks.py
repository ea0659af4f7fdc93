"""Checks of plans: they can be run as they are, and the stages of a pipeline fit each other and the machine."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from ...formulation.bundles.bundles import Bundle, innermost, inside
from ...formulation.pipeline.shares import stage_machines
from ...formulation.special import special_rows_fit
from ...formulation.strategies.operator_options import least_values
from ...formulation.strategies.row import Row
from ...formulation.strategies.strategy import rows
from ...model.errors import PartitaError
from ...model.graph.atoms import atoms
from ...model.graph.buffer_updates import updated
from ...model.graph.layout import B, Layout, P, R, S, atom_of, is_split, splittable
from ...model.graph.pcg import PCG, SOURCES
from ...model.graph.segments import IN_PARTS, MODES, layer_elements, segments
from ...model.graph.sparse_tables import check_optimizer, sparse_tables
from ...model.graph.stages import boundaries, stage
from ...model.machine.precision import precision
from ...model.optimizers import OPTIMIZERS, optimizer_states
from .choice import FLAGS, letter_text
from .parts_check import check_parts
from .table_spread import check_spread

if TYPE_CHECKING:
    from .plan import PipelinePlan, Plan


def check(plan: Plan) -> None:
    """Raise PartitaError unless the plan can be run: its machine has the ranks, choices are legal, no rank is empty."""
    _check_settings(plan)
    _check_bundles(plan)
    changed = updated(plan.graph)
    fitting: set[tuple[tuple[int, ...], Layout]] = set()  # equal layers have equal layouts
    for index, (node, choice) in enumerate(zip(plan.graph.nodes, plan.choices, strict=True)):
        _check_layouts(plan, index, fitting)
        _check_strategy(plan, index, plan.joined.get(index))
        if index in changed and plan.choices[changed[index][0]].inputs[changed[index][1]] != choice.given:
            raise PartitaError(f"node {node.name!r} is updated in a layout other than the stored one")
        if node.op == "parameter":
            check_spread(plan, index)
            _check_training(plan, index)
        elif any(getattr(choice, flag) for flag in FLAGS):
            raise PartitaError(f"node {node.name!r} is no parameter: {', '.join(FLAGS)} do not apply")
        elif choice.at:
            raise PartitaError(f"node {node.name!r} is no parameter: pieces do not apply")
    _check_sparse(plan)
    _check_segments(plan)


def _check_settings(plan: Plan) -> None:
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


def _check_layouts(plan: Plan, index: int, fitting: set[tuple[tuple[int, ...], Layout]]) -> None:
    """Every layout of a node fits its tensor; `fitting` caches those that do, by the sizes of atoms."""
    node, choice, known = plan.graph.nodes[index], plan.choices[index], atoms(plan.graph)
    if len(choice.inputs) != (0 if node.op in SOURCES else len(node.inputs)):
        raise PartitaError(f"node {node.name!r}: {len(choice.inputs)} input layouts for {len(node.inputs)} inputs")
    here = plan.at(index)
    for i, layout in zip((index, index, *node.inputs), (choice.output, choice.given, *choice.inputs), strict=True):
        if here is not plan:
            _check_layout(here, node.name, known[i].sizes, layout)
        elif (known[i].sizes, layout) not in fitting:
            _check_layout(plan, node.name, known[i].sizes, layout)
            fitting.add((known[i].sizes, layout))


def _check_strategy(plan: Plan, index: int, joined: int | None) -> None:
    """A node has a strategy on every axis, except the one over which it joins branches; they are compatible."""
    node, choice, known = plan.graph.nodes[index], plan.choices[index], atoms(plan.graph)
    sizes = plan.at(index).placement.sizes
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
        raise PartitaError(f"node {node.name!r} ({node.op}): its special strategies are incompatible")
    if node.op == "local_batch_norm" and least_values(known[node.inputs[0]], choice.inputs[0], sizes) < 2:
        raise PartitaError(f"node {node.name!r}: a rank would normalize a single value of a channel")


def _check_segments(plan: Plan) -> None:
    """Segments that are recomputed or whose weights travel together exist; no recomputed one has parallel branches."""
    named = (*plan.recompute, *plan.together)
    known = {segment.name: segment.nodes for segment in segments(plan.graph)} if named else {}
    weights = {node.name: node.numel for node in (plan.graph.nodes[i] for i in plan.graph.of("parameter"))}
    for name in named:
        if name not in known and (name in plan.recompute or name not in weights):
            raise PartitaError(f"{name!r} is not a segment; there are: {', '.join(known) or 'none'}")
    if plan.together and not plan.overlap:
        raise PartitaError("without overlap each weight is sent by itself: leave out `together`")
    for segment in segments(plan.graph) if plan.together else ():
        own, stated = layer_elements(plan.graph, segment), plan.together.get(segment.name)
        if stated and stated < own:
            raise PartitaError(f"segment {segment.name!r}: its weights have {own} elements, more than {stated}")
    for name, stated in plan.together.items():
        if name not in known and stated < weights[name]:
            raise PartitaError(f"{name!r} has {weights[name]} elements, more than its message of {stated}")
    for name, mode in plan.recompute.items():
        if mode not in (*MODES[1:], *IN_PARTS):
            known_modes = ", ".join((*MODES[1:], *IN_PARTS))
            raise PartitaError(f"segment {name!r}: recomputation {mode!r:.40} is none of {known_modes}")
        if mode == "selective" and plan.compile:
            raise PartitaError(f"segment {name!r}: a compiled layer is recomputed whole, in mode full, not selective")
        if any(plan.choices[i].beside or i in plan.joined for i in known[name]):
            raise PartitaError(f"segment {name!r} contains parallel branches, which cannot be recomputed")
    check_parts(plan.graph, plan.choices, plan.recompute, plan.placement.sizes)


def _check_training(plan: Plan, index: int) -> None:
    """Gradients are sharded only with their states; offloading needs optimizer state and a dense gradient."""
    node, choice, device = plan.graph.nodes[index], plan.choices[index], plan.machine.device
    if choice.sharded_states and node.get("stages", 1) > 1:
        raise PartitaError(f"node {node.name!r}: its states cannot be sharded, since other stages may share it")
    if not choice.sharded_gradients and not choice.offloaded:
        return
    if not node.gradient or index in sparse_tables(plan.graph):
        raise PartitaError(f"node {node.name!r} has no dense gradient to shard or offload")
    if choice.sharded_gradients and not (choice.sharded_states and B in choice.output):
        raise PartitaError(f"node {node.name!r}: sharded gradients need copies with sharded states")
    if choice.offloaded and device.host_bandwidth is None:
        raise PartitaError(f"node {node.name!r} is offloaded, but {device.name} has no host_bandwidth")
    if choice.offloaded and not optimizer_states(plan.optimizer) + precision(plan.dtype).copied:
        raise PartitaError(f"node {node.name!r} is offloaded, but {plan.optimizer} keeps no states of it")


def _check_bundles(plan: Plan) -> None:
    """Every node at one coordinate of an axis belongs to a bundle, and is whole on that axis."""
    found, taken = plan.bundles, dict[int, list[tuple[int, int]]]()
    outermost = sorted(found, key=lambda join: -len(found[join].nodes))
    for join in outermost:
        name, (axis, *places) = plan.graph.nodes[join].name, plan.choices[join].joins
        if not 0 <= axis < len(plan.placement.sizes) or not all(0 <= x < plan.placement.sizes[axis] for x in places):
            raise PartitaError(f"node {name!r}: branches at {places} of axis {axis}, which has no such coordinates")
        _check_shares(plan, found[join], axis)
        for i, place in inside(found[join], places):
            if axis in dict(taken.setdefault(i, [])):
                raise PartitaError(f"node {plan.graph.nodes[i].name!r} is inside two bundles over one axis")
            taken[i].append((axis, place))
            _check_whole(plan, i, axis)
        for i in found[join].nodes:
            for source, layout in zip(plan.graph.nodes[i].inputs, plan.choices[i].inputs, strict=True):
                if i in plan.range_of:
                    layout = (*layout[:axis], plan.choices[source].given[axis], *layout[axis + 1 :])
                if source == found[join].fork and plan.choices[source].given != layout:
                    raise PartitaError(f"node {plan.graph.nodes[i].name!r} converts the input of its bundle")
        _check_join(plan, found[join], axis)
    for i, choice in enumerate(plan.choices):
        if choice.beside != tuple(taken.get(i, ())) or (choice.joins and i not in found):
            raise PartitaError(
                f"node {plan.graph.nodes[i].name!r} is at {choice.beside or choice.joins} without a bundle"
            )


def _check_shares(plan: Plan, bundle: Bundle, axis: int) -> None:
    """Ranges of coordinates are those of a sum, inside the axis, and disjoint or the same."""
    choice, name = plan.choices[bundle.join], plan.graph.nodes[bundle.join].name
    if not choice.shares:
        return
    if len(choice.shares) != len(bundle.branches) or min(choice.shares) < 1:
        raise PartitaError(f"node {name!r}: shares {choice.shares} of {len(bundle.branches)} branches")
    if not bundle.adds or bundle.outside or plan.graph.part is not None:
        raise PartitaError(f"node {name!r}: only branches of a sum of a whole model can have several coordinates")
    ends = {(start, start + share) for start, share in zip(choice.joins[1:], choice.shares, strict=True)}
    crossed = any(a < d and c < b for (a, b), (c, d) in combinations(sorted(ends), 2))
    if crossed or max(stop for _, stop in ends) > plan.placement.sizes[axis]:
        raise PartitaError(f"node {name!r}: ranges {sorted(ends)} of axis {axis} overlap, or leave it")


def _check_join(plan: Plan, bundle: Bundle, axis: int) -> None:
    """A bundle joins whole branches: a `cat` into a whole or parts of the batch, a sum into addends."""
    graph, name = plan.graph, plan.graph.nodes[bundle.join].name
    for index in bundle.joining:
        inputs = graph.nodes[index].inputs
        given = [P if i in (*bundle.adds, *plan.range_of) else B if graph.nodes[i].gradient else R for i in inputs]
        for i, layout in zip(graph.nodes[index].inputs, plan.choices[index].inputs, strict=True):
            if i in bundle.outside and graph.nodes[i].op != "input" and plan.choices[i].given != layout:
                raise PartitaError(f"node {graph.nodes[index].name!r} converts the input of its bundle")
        output, samples = plan.choices[index].output, {S(a) for a in atoms(graph)[index].batch}
        joined = {P} if bundle.adds else {R, *samples}
        if [layout[axis] for layout in plan.choices[index].inputs] != given or output[axis] not in joined:
            into = "addends" if bundle.adds else "a whole or parts of the batch"
            raise PartitaError(f"node {name!r}: it must join whole branches, into {into}")
    if not innermost(plan.choices[bundle.join].output, axis):
        raise PartitaError(f"node {name!r}: it must join whole branches, into a whole or parts of the batch")


def _check_whole(plan: Plan, index: int, axis: int) -> None:
    """A node or weight at one coordinate of an axis is neither split nor converted there."""
    node, choice, known = plan.graph.nodes[index], plan.choices[index], atoms(plan.graph)[index]
    sources = [plan.graph.nodes[i].gradient and node.gradient for i in node.inputs]
    letters = [layout[axis] for layout in (choice.output, choice.given, *choice.inputs)]
    whole = [B if gradient else R for gradient in (node.gradient, node.gradient, *sources)]
    if letters != whole and (index not in plan.range_of or node.op in SOURCES):
        raise PartitaError(f"node {node.name!r} is at one coordinate, so it must be whole there")
    first = {S(a) for a in known.of_dim(0)} if node.op in SOURCES and node.shape else set()
    if choice.joins[:1] == (axis,) or choice.sharded_states or choice.offloaded or first & {*choice.output}:
        raise PartitaError(f"node {node.name!r} is at one coordinate, so it cannot be split there")


def _check_sparse(plan: Plan) -> None:
    """Tables with sparse gradients are read as they are stored."""
    check_optimizer(plan.graph, plan.optimizer)
    for table in sparse_tables(plan.graph):
        choice = plan.choices[table]
        readers = (plan.choices[i].inputs[0] for i in plan.graph.consumers[table])
        if any(layout != choice.output for layout in (choice.given, *readers)) or choice.regather:
            name = plan.graph.nodes[table].name
            raise PartitaError(f"the gradient of {name!r} is sparse: it must be read and updated as it is stored")


def _check_layout(plan: Plan, name: str, items: tuple[int, ...], layout: Layout) -> None:
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


# Pipelines


def check_pipeline(plan: PipelinePlan) -> None:
    """Raise PartitaError unless the stages make up the graph, fit the machine, and agree at their boundaries."""
    size, count = plan.size, len(plan.stages)
    if size < 2 or plan.chunks < 1:
        raise PartitaError(f"a pipeline over {size} parts of the devices with {plan.chunks} stages each")
    if count != size * plan.chunks:
        raise PartitaError(f"{count} stages for {size} parts of the devices with {plan.chunks} each")
    _check_bounds(plan)
    machines = stage_machines(plan.machine, plan.schedule.stage_row(plan.row), plan.shares, count)
    first, alike = plan.stages[0], ("micro_batches", "dtype", "optimizer", "overlap", "compile")
    for number, (part, machine) in enumerate(zip(plan.stages, machines, strict=True)):
        where = f"stage {number}"
        if part.machine != machine:
            raise PartitaError(f"{where} is planned for {part.machine.name}, not for its part of {plan.machine.name}")
        for name in alike if plan.shares else ("placement", *alike):
            here, there = getattr(part, name), getattr(first, name)
            if here != there:
                raise PartitaError(f"{where} has {name} {here}, stage 0 {there}: all stages share them")
        _check_graph(plan, number)
    schedule, micro_batches = plan.schedule, first.micro_batches
    if first.compile:
        schedule.check_compiled()
    schedule.orders(size, plan.chunks, micro_batches)  # raises if there are none
    if not schedule.runs(size, micro_batches):
        raise PartitaError(
            f"{schedule} with {size} stages needs {schedule.needs} {size} micro-batches, not {micro_batches}"
        )
    for number, part in enumerate(plan.stages):
        needed = schedule.in_flight(size, plan.chunks, micro_batches, number)
        if schedule.splits_backward and part.recompute:
            raise PartitaError(f"stage {number} recomputes segments, which a split backward would do twice")
        if part.in_flight < needed:
            raise PartitaError(f"stage {number} has room for {part.in_flight} micro-batches, {schedule} keeps {needed}")
    if schedule.double_buffered:
        for part in plan.stages:
            check_stale(part.graph, part.dtype, part.separate_states)
    for number, (before, after) in enumerate(pairwise(plan.stages)):
        _check_boundary(number, before, after, bool(plan.shares))
    _check_tied(plan)


def check_stale(graph: PCG, dtype: str, elsewhere: bool) -> None:
    """Raise PartitaError unless every updated tensor can have two versions of its weights.

    `elsewhere`: some gradients or states lie elsewhere than their weights.
    """
    if dtype == "mixed-float16":
        raise PartitaError("2bw does not scale losses: use mixed-bfloat16 instead of mixed-float16")
    if elsewhere or precision(dtype).copied:
        raise PartitaError(
            "2bw keeps two versions of the weights: it needs gradients and states next to them and in the same dtype"
        )
    for table in sparse_tables(graph):
        raise PartitaError(f"2bw keeps two versions of every weight: {graph.nodes[table].name!r} has a sparse gradient")


def _check_bounds(plan: PipelinePlan) -> None:
    if bool(plan.shares) != plan.schedule.unequal or (plan.shares and plan.row):
        raise PartitaError("a pipeline has a row of equal stages, or shares and a schedule with_unequal_stages()")
    last = len(boundaries(plan.cut)) - 1
    rising = all(a < b for a, b in pairwise(plan.bounds))
    if len(plan.bounds) != len(plan.stages) + 1 or not rising or (plan.bounds[0], plan.bounds[-1]) != (0, last):
        raise PartitaError(
            f"{len(plan.stages)} stages between boundaries {plan.bounds}: the graph has 0 to {last}: "
            "a pipeline takes the first, the last, and one between any two stages"
        )


def _check_graph(plan: PipelinePlan, number: int) -> None:
    """A stage's graph may be rewritten, but receives and sends what lies between its boundaries."""
    wanted, found = stage(plan.cut, *plan.bounds[number : number + 2]).graph, plan.stages[number].graph
    if found == wanted:
        return
    for op in ("receive", "send", "from_pass", "to_pass"):
        if _transferred(found, op) != _transferred(wanted, op):
            raise PartitaError(f"stage {number}: its graph is not what lies between its boundaries ({op})")
    names = [{name for i in graph.of("parameter") for name in graph.nodes[i].originals} for graph in (found, wanted)]
    if names[0] != names[1] or found.batch != wanted.batch:
        raise PartitaError(f"stage {number}: its graph is not what lies between its boundaries (weights, batch)")


def _transferred(graph: PCG, op: str) -> list[tuple[object, ...]]:
    nodes = (graph.nodes[i] for i in graph.of(op))
    return [(node.name, node.shape, node.dtype, node.gradient, node["atoms"]) for node in nodes]


def layout_words(plan: Plan, index: int) -> list[str]:
    """The layout of a node in letters that do not depend on its graph."""
    return [letter_text(atoms(plan.graph)[index], letter) for letter in plan.choices[index].output]


def _check_boundary(number: int, before: Plan, after: Plan, unequal: bool) -> None:
    """A stage sends every tensor in the layout in which the next one receives it, unless they are unequal."""
    if unequal:
        _check_crossing(number, before, "send")
        _check_crossing(number + 1, after, "receive")
        return
    for sent, received in zip(before.graph.of("send"), after.graph.of("receive"), strict=True):
        source, target = layout_words(before, sent), layout_words(after, received)
        if source != target:
            name = before.graph.nodes[sent]["peer"]
            raise PartitaError(
                f"stage {number} sends {name!r} as {' '.join(source)}, the next one receives it as {' '.join(target)}"
            )


def _check_crossing(number: int, part: Plan, op: str) -> None:
    """What a stage exchanges with one on another mesh is equal on its ranks or split, and so are the gradients."""
    for index in part.graph.of(op):
        node = part.graph.nodes[index]
        if not {P, B if node.gradient else P}.isdisjoint(part.choices[index].output):
            words = " ".join(layout_words(part, index))
            raise PartitaError(f"stage {number}: {op} of {node['peer']!r} as {words}, for a stage on another mesh")


def tied(plan: Plan, *, trained: bool = False) -> dict[str, tuple[int, ...]]:
    """The weights shared by several stages, by name, with those stages; all, or those that are trained."""
    found: dict[str, tuple[int, ...]] = {}
    for number, part in enumerate(plan.stages):
        for index in part.graph.of("parameter"):
            node = part.graph.nodes[index]
            for name in node.originals if node.gradient or not trained else ():
                found[name] = (*found.get(name, ()), number)
    return {name: stages for name, stages in found.items() if len(stages) > 1}


def _check_tied(plan: PipelinePlan) -> None:
    """A weight shared by several stages is stored alike in all of them; unequal stages share none."""
    for name, stages in tied(plan).items() if plan.shares else ():
        raise PartitaError(f"stages {', '.join(map(str, stages))} share {name!r}, and have meshes of their own")
    for name, stages in tied(plan).items():
        first, *others = (_stored(plan.stages[number], name) for number in stages)
        for number, other in zip(stages[1:], others, strict=True):
            if other != first:
                raise PartitaError(f"stages {stages[0]} and {number} store {name!r} differently")


def _stored(plan: Plan, name: str) -> tuple[object, ...]:
    """How a weight is stored, in terms that do not depend on a stage."""
    index = next(i for i in plan.graph.of("parameter") if name in plan.graph.nodes[i].originals)
    choice = plan.choices[index]
    return plan.graph.nodes[index].name, layout_words(plan, index), choice.sharded_states, choice.beside, choice.at
