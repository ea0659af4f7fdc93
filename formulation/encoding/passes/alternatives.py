"""Alternatives: a variable that chooses among them, and the option "unused" of what some choices do not need."""

from collections.abc import Iterator
from itertools import combinations, product

from ...network.chains import Position
from .encoding_pass import EncodingPass
from .unused_options import ComputedWhen, UnusedOptions


class ChosenAlternatives(EncodingPass):
    """a_t: the alternative that computes a tensor; its last option is none, if some choice does not need the tensor."""

    def publish(self, node: int) -> None:
        builder = self.builder
        if node in builder.pcg.members and node in builder.operators:
            size = len(builder.choices.of(node)) + (node in builder.choices.conditional)
            name = f"{builder.pcg.nodes[node].name} way"
            builder.alternatives[node] = builder.add_free_variable(name, "mode", size, Position(node + 0.1))

    def finish(self) -> None:
        builder = self.builder
        if not builder.pcg.alternatives:
            return
        members = {member for members in builder.pcg.members.values() for member in members}
        kinds = (builder.operators, builder.weights, builder.hubs)
        found = [v for kind in kinds for base, (v, _) in kind.items() if base in builder.choices.conditional]
        builder.optional = frozenset([*found, *(builder.operators[member][0] for member in members)])
        conversions = builder.conversions.items()
        selective = {n for n, c in conversions if c.source == "operator" and c.base in builder.alternatives}
        unused = UnusedOptions(builder.variables, builder.edges, builder.optional)
        unused.lengthen(selective, {n for n, c in conversions if c.use is None})
        unused.choose(
            {
                choosing: [builder.operators[member][0] for member in builder.choices.of(node)]
                for node, choosing in builder.alternatives.items()
            }
        )
        unused.need(self._needs())
        unused.exclude(self._excluded())

    def _needs(self) -> Iterator[tuple[int, int]]:
        """(choosing variable that may take no alternative, variable unused then): the hub, or all readers."""
        builder = self.builder
        for node in builder.alternatives.keys() & builder.choices.conditional:
            choosing = builder.alternatives[node]
            if node in builder.hubs:
                yield choosing, builder.hubs[node][0]
            else:
                uses = builder.classes.uses.get(node, ())
                readers = dict.fromkeys(builder.operators[builder.classes.decides(u.node)][0] for u in uses)
                yield from ((choosing, v) for v in readers)

    def _excluded(self) -> Iterator[tuple[ComputedWhen, ComputedWhen]]:
        """Readers of a weight, and those of one that joins it: each value is trained in one place."""
        builder = self.builder
        holders: dict[str, list[int]] = {}
        for base in builder.weights:
            for name in builder.pcg.nodes[base].originals:
                holders.setdefault(name, []).append(base)
        pairs = dict.fromkeys(pair for bases in holders.values() for pair in combinations(bases, 2))
        readers = {base: [u.node for u in builder.classes.uses[base]] for pair in pairs for base in pair}
        found = (
            (self._computed_when(a), self._computed_when(b))
            for x, y in pairs
            for a, b in product(readers[x], readers[y])
        )
        yield from dict.fromkeys(pair for pair in found if pair[0].variable != pair[1].variable)

    def _computed_when(self, node: int) -> ComputedWhen:
        """The options with which a node is computed, of the variable with the fewest."""
        builder, tensor = self.builder, self.builder.classes.variable(node)
        if tensor in builder.alternatives:
            return ComputedWhen(builder.alternatives[tensor], builder.choices.of(tensor).index(node))
        return ComputedWhen((builder.hubs if tensor in builder.hubs else builder.operators)[tensor][0])
