"""Operators: one variable each, whose options are its strategies, and the edges of what it reads."""

from functools import partial

import numpy as np

from ....model.graph.constants import built_once
from ....model.graph.pcg import GIVEN
from ....model.operators.operator import operator
from ...network.chains import Position
from ...network.network import INFINITE, Table
from ...pipeline.stage_transfers import in_one_message, messages
from ...strategies.operand_cost import EdgeTables
from ...strategies.tensor_classes import Use, trains
from ..builder import Conversion, NetworkBuilder
from ..hub_retention import read_twice
from .encoding_pass import EncodingPass


class Constants(EncodingPass):
    """Tensors that depend on neither parameters nor inputs: computed whole on every rank, which no variable changes.

    Those that are computed once cost nothing in a step.
    """

    def compute(self, node: int) -> None:
        builder, this = self.builder, self.builder.pcg.nodes[node]
        again = builder.classes.constant[node] and node not in built_once(builder.pcg)
        if again and this.op != "buffer" and operator(this.op).passes:
            size = np.array([2.0 * this.numel * builder.precision.itemsize(this.dtype)])
            work = operator(this.op).work(this, tuple(builder.pcg.nodes[i] for i in this.inputs))
            time_ns = builder.roofline.ns(np.array([float(work)]), size)
            builder.constants[node] = builder.micro_batches * int(time_ns[0])
        if node == builder.pcg.loss and not (operator(this.op).transfer or builder.stage.without_updates):
            builder.constants[node] = builder.constants.get(node, 0) + builder.machine.device.step_ns


class Operators(EncodingPass):
    """x_v: the strategy of an operator, with its time, what it keeps for backward, and its undecided operands."""

    def compute(self, node: int) -> None:
        builder = self.builder
        classes = builder.classes
        source = builder.pcg.nodes[node].op in ("input", "parameter")
        if not source and not classes.constant[node] and classes.base[node] == node and node not in classes.twin:
            key = builder.keep(operator_key(builder, node), lambda: self._tables(node))
            variable = builder.add_variable(builder.pcg.nodes[node].name, key, Position(node))
            builder.operators[node] = variable, builder.node_options.of(node)

    def _tables(self, node: int) -> EdgeTables:
        """Time of a step and bytes of every option."""
        builder, costs = self.builder, self.builder.costs
        found, readers = builder.node_options.of(node), builder.readers(node)
        itemsize = builder.precision.itemsize(builder.pcg.nodes[node].dtype)
        cost = (found.time_ns + found.forward_ns * (len(readers) - 1)) * builder.micro_batches
        if operator(builder.pcg.nodes[node].op).message:
            cost = cost + self._messages_ns(node, repeats=len(readers) - 1)
            if builder.pcg.nodes[node].op in ("from_pass", "to_pass"):
                cost = np.where(found.output == costs.handover(node)[0], cost, INFINITE)
        use = found.kept_bytes * builder.stage.in_flight + found.transient_bytes
        if _defers(builder, node):
            waiting = builder.stage.deferred_weight_gradients * itemsize
            use = use + found.output_space.numel[found.output] * waiting
        use = use + self._copies(node) * found.output_space.numel[found.output] * itemsize
        for reader in readers:
            for operand in range(len(found.inputs)):
                cost = cost + costs.undecided_ns(reader, operand)
        for operand in range(len(found.inputs)):
            use += costs.undecided_bytes(node, operand)
        handed = _handed_over(builder, node)
        if handed:
            layout = costs.handover(next(reader for reader in readers if reader in builder.classes.handed))
            cost = cost + len(handed) * costs.without_gradient_ns(node, found.output, layout)[:, 0]
            size = int(found.output_space.numel[layout[0]]) * builder.stage.in_flight * itemsize
            use += sum(kept for kept, *_ in handed) * size
        return cost, use[:, None]

    def _copies(self, node: int) -> int:
        """Of how many micro-batches a tensor is there, beside those kept for backward: it waits, or is under way."""
        builder = self.builder
        under_way = messages(False) * operator(builder.pcg.nodes[node].op).message
        return builder.between_passes.get(node, 0) + under_way * (len(builder.readers(node)) - 1)

    def _messages_ns(self, node: int, repeats: int) -> Table:
        """What a step waits for the messages of a `send` or `receive`, per option, and of passes that repeat it.

        Both ends wait where the program does: for the value one way, for its gradient the other way. Where
        messages hide, only the sender, or, where they are delays between slots, all for the first one.
        """
        builder, this = self.builder, self.builder.pcg.nodes[node]
        found, gradient, receives = builder.node_options.of(node), int(this.gradient), int(this.op in GIVEN)
        sizes = found.output_space.numel[found.output] * builder.precision.itemsize(this.dtype)
        if not builder.options.space.hides_messages(builder.machine):
            ahead, back = builder.micro_batches * (1 + repeats), builder.micro_batches * gradient
        elif builder.stage.without_messages:
            ahead, back = 0, 0
        elif builder.stage.delays_messages:
            ahead, back = receives, 0
        else:
            ahead, back = (0, gradient) if receives else (1 + repeats, 0)
            ahead, back = builder.micro_batches * ahead, builder.micro_batches * back
        cost = np.zeros(len(sizes), dtype=np.int64)
        for count, of_gradient in ((ahead, False), (back, True)):
            if count:
                price = in_one_message(builder.transitions.transfer, builder.pcg, node, gradient=of_gradient)
                cost = cost + count * price.ns_array(sizes)
        return cost


def operator_key(builder: NetworkBuilder, node: int) -> object:
    """The key of the tables of an operator's variable."""
    number, operands = builder.node_options.number(node), range(len(builder.node_options.of(node).inputs))
    kinds = tuple(tuple(builder.costs.undecided_key(reader, p) for p in operands) for reader in builder.readers(node))
    waits = builder.between_passes.get(node, 0)
    sent = builder.pcg.nodes[node]
    silent = operator(sent.op).transfer and builder.stage.without_messages
    together = [builder.pcg.nodes[i].gradient for i in builder.pcg.of(sent.op)] if operator(sent.op).message else []
    message = silent, len(together), sum(together)
    return "operator", number, kinds, _handed_over(builder, node), _defers(builder, node), waits, message


def _handed_over(builder: NetworkBuilder, node: int) -> tuple[tuple[bool, int, int], ...]:
    """For every repetition of a node whose result another repetition gets: whether a reader keeps that for backward.

    And in which layout it gets it, with the identity of the conversions.
    """
    costs, reads = builder.costs, builder.classes.reads
    return tuple(
        (any(map(costs.saves, reads[r])), int(costs.handover(r)[0]), id(costs.without_gradient(node)))
        for r in builder.readers(node)
        if r in builder.classes.handed
    )


def _defers(builder: NetworkBuilder, node: int) -> bool:
    """True if output gradients of a node wait for the gradient of its weight."""
    return builder.stage.deferred_weight_gradients > 0 and trains(builder.pcg, node)


class Operands(EncodingPass):
    """Edges from a tensor to its readers: the conversion from the layout given to the one that a strategy requires."""

    def read(self, base: int, node: int, operand: int) -> None:
        builder, costs = self.builder, self.builder.costs
        use, repeats = costs.uses[base, node, operand], node in builder.classes.twin
        decides = builder.classes.decides(node)
        consumer = builder.operators[decides][0]
        again = id(costs.without_gradient(base)) if use.repeats else 0
        key = (builder.node_options.number(decides), operand, use.atoms, use.repeats, again, repeats)
        if base in builder.hubs:
            self._from_hub(base, use, key, consumer)
        elif base in builder.weights:
            weight, stored = builder.weights[base]
            own = "weight", id(stored), id(costs.table(base))
            edge_key = builder.keep((*own, *key), lambda: costs.from_storage(base, stored, use))
            builder.add_conversion(weight, consumer, Conversion(base, "weight", use, edge_key))
        else:
            for producer in builder.choices.of(base):
                self._from_operator(base, producer, use, key, consumer)

    def _from_hub(self, base: int, use: Use, key: tuple[object, ...], consumer: int) -> None:
        builder = self.builder
        hub, table = builder.hubs[base]
        held = np.ones(len(table.codes), dtype=np.bool_)
        make = partial(builder.costs.from_operator, base, use, table.codes, held)
        edge_key = builder.keep(("hub", id(table), *key), make)
        if builder.retention.is_chosen(base):
            once = builder.tables[edge_key]
            excluded = builder.retention.by_alternatives(base) and builder.costs.keeps_unchanged(use)
            edge_key = builder.keep((edge_key, "twice", excluded), lambda: read_twice(once, excluded))
        builder.add_conversion(hub, consumer, Conversion(base, "hub", use, edge_key))

    def _from_operator(self, base: int, producer: int, use: Use, key: tuple[object, ...], consumer: int) -> None:
        builder = self.builder
        variable, given = builder.operators[producer]
        make = partial(builder.costs.from_operator, base, use, given.output, given.saves_output)
        edge_key = builder.keep(("direct", builder.node_options.number(producer), *key), make)
        builder.add_conversion(variable, consumer, Conversion(base, "operator", use, edge_key))
