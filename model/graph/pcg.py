"""The parallel computation graph (PCG) before it is parallelized: frozen nodes in topological order.

A node has one output and its index stands for that tensor. Shapes are global, in elements, of one micro-batch of
`batch` samples. Inputs, parameters and buffers are nodes without inputs. `verification.verify` checks a graph.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

Attribute: TypeAlias = "int | float | str | bool | tuple[Attribute, ...] | None"

SOURCES = ("input", "parameter", "buffer")
GIVEN = ("receive", "from_all", "from_pass")
"""Tensors that other stages compute."""
TRANSFERS = (*GIVEN, "send", "to_all", "to_pass")


@dataclass(frozen=True, slots=True)
class Node:
    """One operator. `inputs` index earlier nodes; `attributes` are sorted by name; `gradient`: True if it gets one.

    `name` is unique (a parameter has its name in the user's module, unless it joins several: see `originals`), `path`
    is the place in the user's module (`layers.0.attention`), `dtype` torch's name without `torch.`.
    """

    op: str
    name: str
    inputs: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    attributes: tuple[tuple[str, Attribute], ...] = ()
    gradient: bool = False
    path: str = ""

    def __getitem__(self, name: str) -> Any:
        return dict(self.attributes)[name]

    def get(self, name: str, default: Any = None) -> Any:
        return dict(self.attributes).get(name, default)

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def originals(self) -> dict[str, tuple[int, ...]]:
        """The user's parameters that this one holds, names and shapes: itself, or those joined along dim 0.

        The attribute `tables` joins tables that look-ups read (they may be spread over ranks), `joined` anything else.
        """
        joined = self.get("tables") or self.get("joined")
        return {name: (rows, *self.shape[1:]) for name, rows in joined} if joined else {self.name: self.shape}


@dataclass(frozen=True)
class PCG:
    """A captured graph.

    `loss`: the scalar that is minimized; in a pipeline stage without it, the last tensor handed on.
    `batch`: the micro-batch of the shapes.
    `aliases`: (alias, name) of tied parameters.
    `samples`: for a batch of one, where sizes do not tell, the dims of every node that count samples.
    `origin`: the graph that this one is at another batch; its structure is analysed there (see `origin`).
    `alternatives`: pairs (a, c); node a, earlier than c and read by nothing, is another way to compute c.
    `part`: the graph of which this is a pipeline stage, and every node's index there (see `stages`).
    """

    nodes: tuple[Node, ...]
    loss: int
    batch: int
    aliases: tuple[tuple[str, str], ...] = ()
    samples: tuple[tuple[int, ...], ...] = ()
    origin: "PCG | None" = field(default=None, compare=False, repr=False)
    alternatives: tuple[tuple[int, int], ...] = ()
    part: "tuple[PCG, tuple[int, ...]] | None" = field(default=None, compare=False, repr=False)

    @cached_property
    def _hash(self) -> int:
        return hash((self.nodes, self.loss, self.batch, self.alternatives))

    def __hash__(self) -> int:
        """Computed once, since analyses are cached by graph."""
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Equal graphs share their nodes from the first comparison on, so that each further one takes no time."""
        if self is other:
            return True
        if not isinstance(other, PCG):
            return NotImplemented
        mine, its = ((g.nodes, g.loss, g.batch, g.aliases, g.samples, g.alternatives) for g in (self, other))
        if self._hash != other._hash or mine != its:
            return False
        object.__setattr__(other, "nodes", self.nodes)
        return True

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """For every node its readers, in order and once each."""
        lists: list[list[int]] = [[] for _ in self.nodes]
        for index, node in enumerate(self.nodes):
            for source in dict.fromkeys(node.inputs):
                lists[source].append(index)
        return tuple(map(tuple, lists))

    @cached_property
    def members(self) -> Mapping[int, tuple[int, ...]]:
        """For every node with alternatives: itself, then the alternatives."""
        found: dict[int, tuple[int, ...]] = {}
        for alternative, node in self.alternatives:
            found[node] = (*found.get(node, (node,)), alternative)
        return found

    @cached_property
    def plain(self) -> frozenset[int]:
        """The nodes that the results need if no alternative is chosen."""
        if not self.alternatives:
            return frozenset(range(len(self.nodes)))
        needed = {*self.results}
        for index in reversed(range(len(self.nodes))):
            if index in needed:
                needed.update(self.nodes[index].inputs)
        return frozenset(needed)

    @cached_property
    def originals(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the user's parameters and buffers."""
        sources = (self.nodes[i] for op in ("parameter", "buffer") for i in self.of(op))
        return {name: shape for node in sources for name, shape in node.originals.items()}

    @cached_property
    def sends(self) -> tuple[int, ...]:
        """The `send` nodes of a pipeline stage, in order."""
        return self.of("send")

    @property
    def results(self) -> tuple[int, ...]:
        """What the graph computes: the tensors that a pipeline stage sends, also to the next pass, and the loss."""
        return tuple(dict.fromkeys((*self.sends, *self.of("to_pass"), self.loss)))

    def of(self, op: str) -> tuple[int, ...]:
        """Indices of the nodes with operator `op`."""
        return self._of.get(op, ())

    @cached_property
    def _of(self) -> Mapping[str, tuple[int, ...]]:
        found: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            found.setdefault(node.op, []).append(index)
        return {op: tuple(indices) for op, indices in found.items()}


def form_of(node: Node, inputs: Sequence[Node]) -> Hashable:
    """Equal for nodes that do the same to tensors of the same shapes, as equal layers have."""
    own = node.op, node.shape, node.dtype, node.gradient, node.attributes
    return own, tuple((x.op, x.shape, x.dtype, x.gradient, x.attributes) for x in inputs)


def live(nodes: Sequence[Node], loss: int) -> tuple[list[Node], dict[int, int]]:
    """The nodes that the loss needs, and all inputs, renumbered; with the map from old to new numbers."""
    needed = {loss, *(i for i, node in enumerate(nodes) if node.op == "input")}
    for index in reversed(range(len(nodes))):
        if index in needed:
            needed.update(nodes[index].inputs)
    number = {old: new for new, old in enumerate(sorted(needed))}
    return [replace(nodes[i], inputs=tuple(number[j] for j in nodes[i].inputs)) for i in number], number


def is_name(text: Any) -> bool:
    """True if the text can stand within quotes in a program."""
    return isinstance(text, str) and 0 < len(text) <= 1000 and text.isprintable() and not set(text) & set("\"'\\{}")
