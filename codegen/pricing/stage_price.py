"""What a plan costs, computed from its layouts alone: node by node, move by move, without network or tables of options.

The cost model, stated a second time in plain Python: it confirms the objective that a solver reports, and shares none
of its encoding. Every kernel and every collective is one item (`price_items.py`).
"""

from ...formulation.encoding.overlap import hiding_layers
from ...formulation.strategies.tensor_classes import classes
from ...formulation.weights.storage import transient_buffers
from ...model.graph.constants import built_once, held
from ...model.graph.pcg import SOURCES
from ...model.graph.sparse_tables import sparse_tables
from ...model.operators.operator import operator
from ..plan.plan import Plan
from .critical_branches import critical_path
from .price_items import Item, PriceSlot, StagePrice
from .weights import WeightPrices


def stage_price(
    plan: Plan,
    weight_versions: int = 0,
    deferred_weight_gradients: int = 0,
    between_passes: int = 0,
    *,
    delays_messages: bool = False,
    paired: bool = False,
    read_as_stored: bool = False,
) -> StagePrice:
    """The predicted time and memory of a stage, or of a plan without a pipeline.

    The counts, whether messages are delays between slots, whether all stages are `paired`, and whether weights are read
    as they are stored, are those of `StageContext`.
    """
    known = classes(plan.graph)
    layer_of = {
        i: layer.name
        for layer in hiding_layers(plan.graph, plan.together)
        for i in layer.nodes
        if not known.constant[i]
    }
    price = StagePrice(
        layer_of=layer_of,
        micro_batches=plan.micro_batches,
        host_ns=plan.machine.device.host_ns,
        busy_ns=plan.machine.busy_ns,
    )
    for part in (plan, *plan.ranges.values()):
        counts = weight_versions, deferred_weight_gradients, between_passes
        made = Pricing(part, *counts, delays_messages=delays_messages, paired=paired, whole=plan)
        made.run(read_as_stored)
        price.items += made.price.items
        price.kept += made.price.kept
    return critical_path(plan, known, price)


class Pricing(WeightPrices):
    def run(self, read_as_stored: bool = False) -> None:
        """Add all that is computed on the mesh of this plan: all of a plan, or what is on a range of coordinates."""
        for index in range(len(self.graph.nodes)):
            if self.is_here(index):
                self.node(index)
            elif self.graph.nodes[index].op not in SOURCES and self.classes.base[index] == index:
                self.reads(index)
        for base, uses in self.classes.uses.items():
            if self.graph.nodes[base].op == "input":
                for use in uses:
                    if self.saves(use) and self.is_here(use.node):
                        self.stay("activations", use.node, self.kept_bytes(use))
        if self.plan is not self.whole:
            return
        loss = self.graph.loss
        if self.device.step_ns and not operator(self.graph.nodes[loss].op).transfer:
            self.add(
                Item(
                    "compute", "step", "update", loss, loss, PriceSlot.KERNEL, ns=self.device.step_ns, count=1, calls=0,
                )
            )  # fmt: skip
        self.reserve(read_as_stored)
        self.keep_largest_segment()

    def reserve(self, read_as_stored: bool) -> None:
        """Room for the largest weight and its gradient; for a rank's part of each, where they are read as stored."""
        moving = [i for i in self.graph.of("parameter") if i not in sparse_tables(self.graph)]
        elements = max((self.graph.nodes[i].numel for i in moving), default=0)
        if read_as_stored:
            elements = sum(self.numel(i, self.plan.choices[i].output) for i in moving if i in self.classes.uses)
        buffers = transient_buffers(self.plan.ranks, self.k)
        self.hold("reserve", -1, buffers * elements * self.precision.itemsize("float32"))

    def node(self, index: int) -> None:
        """Add a weight, a constant, or an operator with the tensor that it computes."""
        node = self.graph.nodes[index]
        if node.op == "parameter":
            if index in self.classes.uses:
                self.weight(index)
        elif self.classes.constant[index]:
            if node.op == "buffer":
                item = self.precision.buffer_itemsize(node.dtype)
                self.hold("states", index, self.numel(index, self.plan.choices[index].output) * item)
            elif index in built_once(self.graph):
                if index in held(self.graph):
                    self.hold("states", index, node.numel * self.item(index))
            elif operator(node.op).passes:
                work = operator(node.op).work(node, self.sources(index))
                time = self.kernel(work, 2.0 * node.numel * self.item(index))
                self.of(index).work("compute", node.op, "forward", index, time)
                if self.mode(index) != "none":
                    self.of(index).work("compute", node.op, "recompute", index, time)
        elif node.op != "input" and self.classes.base[index] == index:
            self.of(index).compute(index)
            self.tensor(index)
            self.parted(index)
            if index in self.bundles:
                self.exchange(index)
