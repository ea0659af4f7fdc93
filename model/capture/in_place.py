"""Writes in place: what they compute becomes the value of the memory, and of the tensors that view it."""

import operator as python
import re
from abc import ABC, abstractmethod
from math import prod
from typing import Any

import torch
from torch import fx

from ..graph.builder import Builder
from .building import Building, Complex, Index, Value
from .complex_numbers import counted_from_front
from .memory import Memory, destination

_SAME_ELEMENTS = frozenset([
    "view", "view_as", "_unsafe_view", "reshape", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze",
    "expand", "expand_as", "broadcast_to", "alias", "contiguous", "to", "_to_copy", "type_as", "detach", "lift_fresh",
])  # fmt: skip
"""Views with all elements of their source in row-major order; a tensor that is written has no element twice."""
_SWAPS = frozenset(["transpose", "swapaxes", "swapdims", "t", "mT", "numpy_T", "adjoint"])
"""Views that give back their source when they are applied to themselves."""


def functional(target: Any, name: str) -> Any:
    """The overload of `name` that takes what `target` takes; `target` itself if that is its name; None if none does."""
    namespace, _, packet = target._schema.name.partition("::")
    if packet == name and len(_types(target)) == len(target._schema.arguments):
        return target
    found = getattr(getattr(torch.ops, namespace), name, None)
    overloads = [] if found is None else [getattr(found, overload) for overload in found.overloads()]
    taking = [each for each in overloads if _types(each) == _types(target)]
    return next((each for each in taking if each._overloadname == target._overloadname), next(iter(taking), None))


def _types(target: Any) -> list[str]:
    """The types of what an overload takes, other than where it writes its result."""
    return [str(item.type) for item in target._schema.arguments if not (item.is_out and item.kwarg_only)]


class InPlace(Building, ABC):
    """The values of fx nodes, and the memory that they share.

    The value of a view of memory that was written is made again when it is read.
    """

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.values: dict[fx.Node, Value] = {}
        self.memory = Memory()
        self._modes: dict[fx.Graph, bool] = {}  # whether gradients were on
        self._reason = ""

    @abstractmethod
    def _call(self, node: fx.Node) -> Value:
        """Translate a call."""

    @abstractmethod
    def _rule(self, packet: str, arguments: dict[str, Any]) -> Value:
        """Translate an ATen call by its rule; None if it has none, or none for these arguments."""

    @abstractmethod
    def _translated(self, node: fx.Node, packet: str, arguments: dict[str, Any]) -> Value:
        """Translate a call as one of `packet`."""

    def _arguments(self, node: fx.Node, target: Any = None) -> dict[str, Any]:
        """The arguments of a call by name, defaults filled in; by the names of `target` if it is given."""
        called: Any = node.target
        own = {item.name: item.default_value for item in called._schema.arguments}  # bernoulli_ has one, bernoulli none
        arguments = {}
        for position, item in enumerate((target or called)._schema.arguments):
            default = own.get(item.name, item.default_value)
            value = node.args[position] if position < len(node.args) else node.kwargs.get(item.name, default)
            arguments[item.name] = self._resolve(value)
        return counted_from_front(arguments, node.meta.get("val"))

    def _resolve(self, argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            self._refresh(argument)
            value, held = self.values.get(argument), argument.meta.get("val")
            if isinstance(value, Index) and isinstance(held, torch.Tensor) and held.is_complex():
                return Complex(value, held.dim())
            return value
        if isinstance(argument, list | tuple):
            return [self._resolve(a) for a in argument]
        return argument

    def resolved(self, node: fx.Node) -> Value:
        """The present value of a node, whatever was written to its memory since it was made."""
        return self._resolve(node)

    def _write(self, node: fx.Node) -> Value:
        """A call that changes its first operand, or `out`: what it computes becomes the value of that memory."""
        target: Any = node.target
        written = [item.alias_info is not None and item.alias_info.is_write for item in target._schema.arguments]
        packet = target._schema.name.rpartition("::")[2]
        name = re.sub("^__i(?=.*__$)", "__", packet).removesuffix("_" if not packet.endswith("__") else "")
        given = "out" in node.kwargs
        if sum(written) > 1 or not (given or (written[0] and name != packet)):
            raise self.refusal(f"operator {target} (it writes in place)")
        self._reason = ""
        value = self._translated(node, name, self._arguments(node, functional(target, name)))
        before: Any = destination(node)
        x = self._resolve(before)
        value = self.expand(self.to(value, self.at(x).dtype), self.shape(x))
        self._store(before, value)
        return value

    def _store(self, node: fx.Node, value: Index) -> None:
        """Write the tensor of a node: the tensors that it is a view of change, up to the one that owns the memory."""
        owner = self.memory.owner(node)
        self.check_written(owner)
        path = []
        while node is not owner:
            source: Any = self.memory.source(node)
            before = self._resolve(source)
            self.values[node] = value
            path.append(node)
            value = self._around(node, before, value)
            node = source
        self.values[owner] = value
        self.memory.written(owner)
        for changed in (*path, owner):
            self.memory.renewed(changed)

    def check_written(self, owner: fx.Node) -> None:
        """Raise PartitaError if the tensor that owns some memory cannot be changed, or not in this gradient mode."""
        value = self.values[owner]
        if owner.op == "placeholder" and self._outer is not None:
            raise self.refusal("a decomposition that changes its operands")
        if not self.gradient and isinstance(value, Index) and self.at(value).gradient:
            raise self.refusal("a write in place, within torch.no_grad, to a tensor with a gradient")

    def _around(self, node: fx.Node, whole: Value, value: Value) -> Value:
        """The `source` of a view, whose value is `whole`, after `value` was written to the view."""
        if self.memory.is_same(node):
            return value
        if node.target is python.getitem:
            number = node.args[1]
            if isinstance(whole, list):
                return [value if place == number else part for place, part in enumerate(whole)]
            raise self.refusal("a write in place to one of the results of a call")
        target: Any = node.target
        packet = target._schema.name.rpartition("::")[2]
        packet = packet.removesuffix("_") if torch.Tag.inplace_view in target.tags else packet
        arguments = self._arguments(node)
        if packet == "detach" and self.at(whole).gradient:
            raise self.refusal("a write in place to a detached tensor whose origin has a gradient")
        if packet in _SAME_ELEMENTS:
            if prod(self.shape(value)) != prod(self.shape(whole)):
                raise self.refusal("a write in place to an expanded tensor")
            return self.view(value, self.shape(whole))
        if packet in _SWAPS:
            return self._rule(packet, arguments | {"self": value})
        if packet == "permute":
            dims = [d % len(arguments["dims"]) for d in arguments["dims"]]
            return self.permute(value, [dims.index(d) for d in range(len(dims))])
        if packet in ("movedim", "moveaxis"):
            back = {"self": value, "source": arguments["destination"], "destination": arguments["source"]}
            return self._rule(packet, back)
        if packet == "narrow":
            start = arguments["start"] % self.shape(whole)[arguments["dim"]]
            arguments |= {"start": start, "end": start + arguments["length"], "step": 1}
            packet = "slice"
        if isinstance(value, list):  # all pieces
            dim = arguments["dim"] % len(self.shape(whole))
            unit = [1 if d == dim else size for d, size in enumerate(self.shape(whole))]
            pieces = [self.view(part, unit) for part in value] if packet == "unbind" else value
            return self.add("cat", *pieces, shape=self.shape(whole), dim=dim)
        found = self._rule(f"{packet}_scatter", arguments | {"self": whole, "src": value})
        if found is None:
            raise self.refusal(f"a write in place to a view by {target}")
        return found

    def _refresh(self, node: fx.Node) -> None:
        """Make the value of a view again if its memory was written."""
        if not self.memory.outdated(node):
            return
        source: Any = self.memory.source(node)
        self._refresh(source)
        if self.memory.is_same(node):
            self.values[node] = self.values[source]
        else:
            with self.kept("_current", "_path", "_leaf", "_reason", "gradient"):
                self.gradient = self._modes[node.graph]
                self.values[node] = self._call(node)
        self.memory.renewed(node)
