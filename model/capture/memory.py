"""Which tensors of an exported graph share memory, for calls that write in place.

The fake tensors of an exported graph share their storages as the real ones would, so views are known exactly, also
those of `reshape` or `contiguous`, which view or copy depending on strides. Only storages that a call writes are
followed.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx


def writes(node: fx.Node) -> bool:
    """True if a call changes the elements of a tensor that it is given."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.inplace_view in target.tags:
        return False
    mutable: bool = target._schema.is_mutable
    return mutable and target._schema.name != "aten::detach_"


def destination(node: fx.Node) -> Any:
    """The tensor that a writing call changes: `out`, or its first operand."""
    return node.kwargs.get("out", node.args[0] if node.args else None)


def storage(node: fx.Node) -> int | None:
    """The storage of a node's tensor, or of all its tensors; None if they have several, or it has none."""
    value = node.meta.get("val")
    tensors = value if isinstance(value, list | tuple) else [value]
    found = {x.untyped_storage()._cdata for x in tensors if isinstance(x, torch.Tensor)}
    return found.pop() if len(found) == 1 else None


def graphs(graph: fx.Graph) -> Iterator[fx.Graph]:
    """A graph and those of its regions."""
    yield graph
    for node in graph.nodes:
        inner = getattr(graph.owning_module, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(inner, fx.GraphModule):
            yield from graphs(inner.graph)


class Memory:
    """The nodes with storages that are written.

    A node with a `source` shows the elements of that node; one without owns its memory. Values are up to date if they
    were made at the present version of the memory.
    """

    def __init__(self) -> None:
        self._written: set[int] = set()
        self._source: dict[fx.Node, fx.Node] = {}
        self._versions: dict[fx.Node, int] = {}
        self._made: dict[fx.Node, int] = {}
        self._same: set[fx.Node] = set()

    def __bool__(self) -> bool:
        """True if anything is written."""
        return bool(self._written)

    def follow(self, graph: fx.Graph) -> None:
        """Follow the storages that calls of a graph, or of its regions, write."""
        calls = [node for part in graphs(graph) for node in part.nodes if node.op == "call_function" and writes(node)]
        changed = (destination(node) for node in calls)
        given = {storage(source) for source in changed if isinstance(source, fx.Node)}
        self._written |= {number for number in given if number is not None}

    def writes(self, node: fx.Node) -> bool:
        """True if some call changes the memory of a node."""
        return storage(node) in self._written

    def note(self, node: fx.Node, same: Any = None) -> None:
        """Note a node whose value was just made. It is the tensor `same`, if given, else it may view an operand."""
        number = storage(node) if self._written else None
        if number not in self._written:
            return
        self._source.pop(node, None)
        self._same.discard(node)
        if isinstance(same, fx.Node) and storage(same) == number:
            while same in self._same:
                same = self._source[same]
            self._same.add(node)
            sources = [same]
        else:
            sources = [source for source in node.all_input_nodes if storage(source) == number]
        if sources and sources[0] in self._made:
            self._source[node] = sources[0]
        else:
            self._versions[node] = 0
        self._made[node] = self._versions[self.owner(node)]

    def is_same(self, node: fx.Node) -> bool:
        """True if a node is its source itself: the result of a call in place, or what a region is given or returns."""
        return node in self._same

    def source(self, node: fx.Node) -> fx.Node | None:
        return self._source.get(node)

    def owner(self, node: fx.Node) -> fx.Node:
        while node in self._source:
            node = self._source[node]
        return node

    def outdated(self, node: fx.Node) -> bool:
        """True if the memory was written since the value was made."""
        return node in self._made and self._made[node] != self._versions[self.owner(node)]

    def renewed(self, node: fx.Node) -> None:
        self._made[node] = self._versions[self.owner(node)]

    def written(self, owner: fx.Node) -> None:
        """The memory has a new version."""
        self._versions[owner] += 1

    def changed(self, node: fx.Node) -> bool:
        """True if a write changed the memory that this node owns."""
        return self._versions.get(node, 0) > 0
