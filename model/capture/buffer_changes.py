"""Buffers that forward changes: in place, or by assigning another tensor to them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind, InputSpec

from ..errors import PartitaError
from ..operators.buffers import MOST
from .translation import Index, Translation


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """The buffers of a module, under all their names."""
    return dict(module.named_buffers(remove_duplicate=False))


def write_assigned(module: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Write what forward assigned to buffers into those that it was given: torch.export notes only the latter.

    Raises PartitaError if a buffer got another shape or dtype.
    """
    for name, old in before.items():
        path, _, own = name.rpartition(".")
        part = module.get_submodule(path)
        new = part._buffers.get(own)
        if new is old:
            continue
        if new is None or new.shape != old.shape or new.dtype != old.dtype:
            raise PartitaError(f"forward assigns a tensor of another shape or dtype to the buffer {name!r}")
        with torch.no_grad():
            old.copy_(new.detach())
        part._buffers[own] = old


class BufferChanges:
    """The buffers that the calls of a graph write: nodes for their values before, and for those that are stored."""

    def __init__(self, graph: fx.Graph, specs: Sequence[InputSpec], translation: Translation) -> None:
        """Raises PartitaError if one of them is no buffer."""
        self.translation = translation
        translation.memory.follow(graph)
        placeholders = graph.find_nodes(op="placeholder")
        self.changed = [(n, s) for n, s in zip(placeholders, specs, strict=True) if translation.memory.writes(n)]
        self._buffers: dict[fx.Node, int] = {}

    @property
    def buffers(self) -> frozenset[int]:
        """The nodes of buffers that change."""
        return frozenset(self._buffers.values())

    def read(self, node: fx.Node, source: Index) -> Index:
        """What forward reads of a source: a copy of a buffer that changes."""
        if not any(node is changed for changed, _ in self.changed):
            return source
        builder = self.translation.builder
        if builder.nodes[source].op != "buffer":
            return source
        self._buffers[node] = source
        shape, name = builder.nodes[source].shape, f"{builder.nodes[source].name}.before"
        return Index(builder.add("clone", int(source), shape=shape, name=name, gradient=False))

    def stored(self, loss: int) -> int:
        """The loss, after which the buffers have their new values. Raises PartitaError for what is no buffer."""
        memory, builder = self.translation.memory, self.translation.builder
        changes = [(node, spec) for node, spec in self.changed if memory.changed(node)]
        others = [spec.target or "its inputs" for _, spec in changes if spec.kind != InputKind.BUFFER]
        if others or len(changes) > MOST:
            names = ", ".join(dict.fromkeys(name.removeprefix("module.") for name in others))
            raise PartitaError(
                f"forward changes {names} in place; only buffers of the module may change (register_buffer)"
                if others
                else f"forward changes {len(changes)} buffers, more than {MOST}"
            )
        operands: dict[int, int] = {}
        for node, _ in changes:
            value = self.translation.resolved(node)
            shape, dtype = builder.nodes[value].shape, builder.nodes[value].dtype
            if builder.nodes[value].gradient:
                value = builder.add("detach", int(value), shape=shape, dtype=dtype, gradient=False)
            operands[self._buffers[node]] = int(value)
        if not operands:
            return loss
        given = [index for pair in operands.items() for index in pair]
        return builder.add(
            "store", int(loss), *given, shape=(), dtype=builder.nodes[loss].dtype, name="updated buffers"
        )
