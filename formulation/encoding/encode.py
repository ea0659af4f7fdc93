"""From a graph and a mesh to a cost network: strategies, shared conversions, weights and memory as one problem.

Variables, each with one option taken; the pass that adds them is in parentheses:

    x_v   strategy of operator v: one row per mesh axis                                               (`Operators`)
    s_w   how parameter w is stored: layout, sharded or offloaded states, gathered again for backward (`Weights`)
    h_t   layout to which tensor t is converted once, if it has several readers or is at a cut        (`Hubs`)
    a_t   alternative that computes tensor t; x, s and h may be "unused"                  (`ChosenAlternatives`)
    z_g   recomputation mode of segment g                                                      (`Recomputation`)

Views have no variable, since layouts live on atoms; neither have constants, which are whole on every rank, nor inputs,
which are read in any layout. Let in_u(x_v) be the layout in which v requires operand u, and out_u the layout that u is
given in: by h_u if it has a hub, else by s_u or x_u. With k micro-batches, of which f are in flight, minimize (ns)

    constant + Σ_v k·time_v(x_v) + Σ_w update_w(s_w) + k·accumulate_w(s_w)
             + Σ_(u read by v) k·convert_u(out_u, in_u(x_v)) + Σ_(t with hub) k·convert_t(out_t before the hub, h_t)

so that what a device holds fits (bytes):

    Σ_v f·kept_v(x_v) + transient_v(x_v)                activations, and what the turn to backward takes
      + Σ_w stored_w(s_w)                               parameter, gradient, states
      + Σ_(u, v) f·copy_u(out_u, in_u(x_v))             converted copies that v keeps for backward, or a hub
      + max_g extra_g(z_g, x, s, h)                     brought back while one segment is recomputed
      ≤ capacity - buffers - room for the largest weight

z_g replaces the tables of what its segment computes, converts and gathers (`segment_tables`). a_t = n means that x of
the n-th alternative of t is used and the others are not; what is unused costs nothing, and nothing used reads it.
Bundles give x, s and h inside of parallel branches one more option each, taken together (`Bundles`); a branch off the
slowest coordinate then costs nothing.

If the space has `overlap`, a layer's kernels and weight traffic are streams of windows (`Windows`): the longer counts.

A new kind of decision is a new `EncodingPass` in `passes/in_order.py`.
"""

from collections.abc import Sequence
from dataclasses import replace

from ...model.errors import PartitaError
from ...model.graph.origin import origin
from ...model.graph.pcg import PCG
from ...model.graph.sparse_tables import check_optimizer
from ...model.machine.machine import Machine
from ..network.chains import find_chains
from ..network.network import Network
from ..placement.placement import Placement, placements
from ..strategies.tensor_classes import classes
from ..weights.fixed_memory import fixed_bytes
from .builder import NetworkBuilder
from .encoding import Encoding
from .encoding_options import EncodingOptions, StageContext
from .passes.in_order import PASSES


def encode(
    pcg: PCG,
    machine: Machine,
    placement: Placement,
    *,
    micro_batches: int = 1,
    dtype: str = "float32",
    optimizer: str = "adam",
    options: EncodingOptions | None = None,
    stage: StageContext | None = None,
) -> Encoding:
    """The cost network of one mesh under one placement; `pcg` has the shapes of one micro-batch.

    Costs are ns of a step; the one capacity is a device's memory. PartitaError: unknown names in the space's
    `fix` or in `stage.stored`, an optimizer that cannot apply sparse gradients, a node without legal option.
    """
    options, stage = options or EncodingOptions(), stage or StageContext()
    _check(pcg, optimizer, options, stage)
    builder = NetworkBuilder(
        pcg,
        machine,
        placement,
        micro_batches=micro_batches,
        dtype=dtype,
        optimizer=optimizer,
        options=options,
        stage=stage,
    )
    passes = [make(builder) for make in PASSES]
    for node in range(len(pcg.nodes)):
        for one in passes:
            one.compute(node)
        if node in builder.operators:
            for base, reader, operand in builder.operands(node):
                for one in passes:
                    one.read(base, reader, operand)
            for one in passes:
                one.publish(node)
    for one in passes:
        one.finish()
    return _encoding(builder)


def strategy_network(
    pcg: PCG,
    machine: Machine,
    mesh: Sequence[int] | None = None,
    *,
    placement: Placement | None = None,
    micro_batches: int = 1,
    dtype: str = "float32",
    optimizer: str = "adam",
) -> Network:
    """The cost network of a captured graph on one mesh, to try solvers on.

    Without `placement` the first one of the mesh is taken; without a mesh all devices are one axis.
    """
    if placement is None:
        placement = placements(machine.hierarchy, mesh=mesh or (machine.devices,))[0]
    return encode(pcg, machine, placement, micro_batches=micro_batches, dtype=dtype, optimizer=optimizer).network


def _check(pcg: PCG, optimizer: str, options: EncodingOptions, stage: StageContext) -> None:
    """PartitaError: see `encode`."""
    check_optimizer(pcg, optimizer)
    part, fixed = origin(pcg).part, options.space.fixed  # a stage may be given the fixes of its whole graph
    unknown = fixed.keys() - {n.name for graph in (pcg, *(part or ())[:1]) for n in graph.nodes}
    unknown |= set(stage.stored) - {pcg.nodes[i].name for i in pcg.of("parameter")}
    if unknown:
        names = [n.name for n in pcg.nodes if n.op not in ("input", "parameter", "buffer")]
        raise PartitaError(f"no node is named {sorted(unknown)[0]!r}; nodes are {', '.join(names[:40])}")
    for node, model in classes(pcg).twin.items():
        if pcg.nodes[node].name in fixed:
            first = pcg.nodes[model].name
            raise PartitaError(f"{pcg.nodes[node].name!r} repeats {first!r} without a gradient: fix that one")


def _encoding(builder: NetworkBuilder) -> Encoding:
    """The finished network, and what its variables mean."""
    size = builder.placement.devices, builder.micro_batches
    held = fixed_bytes(builder.pcg, builder.precision, *size, read_as_stored=builder.stage.read_as_stored)
    capacity = builder.options.capacity_bytes
    capacity = builder.machine.device.capacity_bytes if capacity is None else capacity
    network = Network(
        tuple(builder.variables),
        tuple(builder.edges),
        (capacity - held,),
        sum(builder.constants.values()),
        switches=builder.switches,
        windows=builder.windows,
    )
    network = replace(network, chains=find_chains(network, builder.positions))
    if not network.chains:
        network = _with_pairs(network, builder)
    segments = zip(builder.segments.segments, builder.switches, strict=False)  # others only hold prefetched weights
    return Encoding(
        pcg=builder.pcg,
        machine=builder.machine,
        placement=builder.placement,
        micro_batches=builder.micro_batches,
        precision=builder.precision,
        optimizer=builder.optimizer,
        network=network,
        classes=builder.classes,
        operators=builder.operators,
        weights=builder.weights,
        hubs=builder.hubs,
        tables=builder.costs.tables,
        bundled=builder.bundled,
        alternatives=builder.alternatives,
        optional=builder.optional,
        recompute={segment.name: switch.variable for segment, switch in segments},
        recompute_modes=builder.options.recompute,
        together=builder.together,
    )


def _with_pairs(network: Network, builder: NetworkBuilder) -> Network:
    """The network with the pairs of hubs between layers, and its variables in the order of the graph."""
    hubs = builder.hubs
    pairs = tuple((hubs[u][0], hubs[v][0]) for v, u in builder.pairs.items() if u in hubs and v in hubs)
    places = builder.positions
    line = sorted((v for v, place in enumerate(places) if not place.shared), key=lambda v: places[v].order)
    return replace(network, pairs=pairs, line=tuple(line)) if pairs else network
