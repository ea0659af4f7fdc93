"""The parallel computation graph (PCG) before it is parallelized: frozen nodes in topological order.

A node has one output; its index is the name of that tensor. Shapes are global, in elements, at one micro-batch of
`batch` samples. Inputs, parameters and buffers are nodes without inputs.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

Attribute: TypeAlias = "int | float | str | bool | tuple[Attribute, ...] | None"

SOURCES = ("input", "parameter", "buffer")


@dataclass(frozen=True, slots=True)
class Node:
    """One operator. `inputs` index earlier nodes; `attributes` are sorted by name; `gradient`: whether one flows here.

    `name` is unique (a parameter's is its name in the user's module, unless it joins several: see `originals`), `path`
    the place in the user's module (`layers.0.attention`), `dtype` torch's name without `torch.`.
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
        """Names in the user's module of what a parameter holds, with shapes: itself, or what it joins along dim 0.

        The attribute `tables` joins tables that look-ups read, which may be spread over ranks; `joined` anything else.
        """
        joined = self.get("tables") or self.get("joined")
        return {name: (rows, *self.shape[1:]) for name, rows in joined} if joined else {self.name: self.shape}


@dataclass(frozen=True)
class PCG:
    """A captured graph. `loss` indexes the scalar that is minimized (of a stage of a pipeline that only hands tensors
    on, the last of them); `batch` is the micro-batch of the shapes.

    `aliases` maps further names of a tied parameter to the node's name. `reduction` is `mean` or `sum`: how the loss
    joins micro-batches (both add up, since divisors are global). Two graphs are equal iff their nodes are. `samples`
    are for a batch of one, where sizes do not tell, the dims of every node that count samples. `origin` is the graph
    that this one is at another batch: what holds at any batch is found once, of that (see `batch`). `alternatives`
    are pairs (a, c): node a, before c and read by nothing, is another way to compute it; one of the ways is chosen.
    `part`: of which graph this is a stage, and for every node its index there (see `stages`); what is known of the
    nodes there holds here.
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
        """Computed once: analyses are cached by graph."""
        return self._hash

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """For every node the nodes that read it, in order; one that reads it twice is listed once."""
        lists: list[list[int]] = [[] for _ in self.nodes]
        for index, node in enumerate(self.nodes):
            for source in dict.fromkeys(node.inputs):
                lists[source].append(index)
        return tuple(map(tuple, lists))

    @cached_property
    def members(self) -> Mapping[int, tuple[int, ...]]:
        """For every node that can be computed in several ways these ways, itself first."""
        found: dict[int, tuple[int, ...]] = {}
        for way, node in self.alternatives:
            found[node] = (*found.get(node, (node,)), way)
        return found

    @cached_property
    def plain(self) -> frozenset[int]:
        """The nodes that the loss needs if no alternative is taken."""
        if not self.alternatives:
            return frozenset(range(len(self.nodes)))
        needed = {*self.results}
        for index in reversed(range(len(self.nodes))):
            if index in needed:
                needed.update(self.nodes[index].inputs)
        return frozenset(needed)

    @cached_property
    def sends(self) -> tuple[int, ...]:
        """What a stage of a pipeline hands on (see `stages`), in order."""
        return self.of("send")

    @property
    def results(self) -> tuple[int, ...]:
        """What is computed for its own sake: the loss; of a stage of a pipeline what it hands on."""
        return self.sends or (self.loss,)

    def of(self, op: str) -> tuple[int, ...]:
        """Indices of the nodes with operator `op`."""
        return tuple(i for i, node in enumerate(self.nodes) if node.op == op)


def form_of(node: Node, inputs: Sequence[Node]) -> Hashable:
    """Equal for nodes whose operators do the same to tensors of the same shapes: layers have many of them."""
    own = node.op, node.shape, node.dtype, node.gradient, node.attributes
    return own, tuple((x.op, x.shape, x.dtype, x.gradient, x.attributes) for x in inputs)


def live(nodes: Sequence[Node], loss: int) -> tuple[list[Node], dict[int, int]]:
    """The nodes that the loss needs, and all inputs; with the new number of each."""
    needed = {loss, *(i for i, node in enumerate(nodes) if node.op == "input")}
    for index in reversed(range(len(nodes))):
        if index in needed:
            needed.update(nodes[index].inputs)
    number = {old: new for new, old in enumerate(sorted(needed))}
    return [replace(nodes[i], inputs=tuple(number[j] for j in nodes[i].inputs)) for i in number], number


def is_name(text: Any) -> bool:
    """Whether text may stand within the quotes of a program."""
    return isinstance(text, str) and 0 < len(text) <= 1000 and text.isprintable() and not set(text) & set("\"'\\{}")
