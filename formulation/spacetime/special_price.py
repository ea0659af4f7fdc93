"""What special strategies add to the prices of operators: the planner's messages, work and kept tensors."""

from collections.abc import Sequence
from math import prod

from ...model.machine.precision import Precision
from ..special import Message, Part, Situation, part_of, special_strategy
from .graph import Graph
from .op import Op, Phase


class SpecialPrices:
    """The special strategies of the operators of one graph, cached for operators with equal cuts."""

    def __init__(self, graph: Graph, precision: Precision) -> None:
        self.graph, self.precision = graph, precision
        self._known: dict[object, Sequence[tuple[int, Part]]] = {}

    def parts(self, op: Op) -> Sequence[tuple[int, Part]]:
        """By cut along which an operator exchanges data, its number among these and the largest part."""
        cuts = (op.forward or op).cuts
        key = op.node, tuple((cut.row, cut.parts) for cut in cuts)
        if key not in self._known:
            self._known[key] = self._parts(op) if op.exchanges else ()
        return self._known[key]

    def _parts(self, op: Op) -> list[tuple[int, Part]]:
        cuts, nodes = (op.forward or op).cuts, self.graph.pcg.nodes
        *known, result = (self.graph.atoms[i] for i in (*op.of.inputs, op.node))
        sources = tuple(nodes[i] for i in op.of.inputs)
        situation = Situation(op.of, sources, tuple(known), result)
        inputs = [tuple(cut.row.inputs[place] for cut in cuts) for place in range(len(sources))]
        layouts, sizes = (inputs, tuple(cut.row.output for cut in cuts)), [cut.parts for cut in cuts]
        items = [self.precision.itemsize(node.dtype) for node in (*sources, op.of)]
        return [
            (number, part_of(situation, cut.row, cut.parts, layouts, sizes, items))
            for number, cut in enumerate(op.exchanges)
        ]

    def work(self, op: Op) -> float:
        """The work of the busiest part, relative to an even share."""
        return prod(special_strategy(part.row.special).work(part) for _, part in self.parts(op))

    def kept_bytes(self, op: Op) -> int:
        """What a part keeps for backward besides the operator's own."""
        return max((special_strategy(part.row.special).kept(part) for _, part in self.parts(op)), default=0)

    def copied(self, op: Op) -> frozenset[str]:
        """The operands of which it keeps something else."""
        found = (special_strategy(part.row.special).copied(part) for _, part in self.parts(op))
        return frozenset(name for names in found for name in names)

    def messages(self, op: Op) -> Sequence[tuple[int, Message]]:
        """What an operator exchanges while it runs, each with the number of the cut along which it goes."""
        if op.phase is Phase.WEIGHT:  # backward has exchanged all
            return ()
        return [
            (number, message)
            for number, part in self.parts(op)
            for message in special_strategy(part.row.special).messages(part)
            if message.backward == (op.phase is Phase.BACKWARD)
        ]
