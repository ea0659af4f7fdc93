"""Translation of an exported ATen graph to the nodes of a PCG: its state, and steps that rules share.

The rules themselves, one per ATen operator, are in `aten`.
"""

import operator as python
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ..errors import PartitaError
from ..graph.builder import Builder
from ..operators.operator import capturing
from ..options import check_choice
from ..training import DROPOUT
from .building import REMEDY, Complex, Index, Value, broadcast, dtype_name, present
from .complex_numbers import by_rule, is_complex, numbers_as_pairs
from .decompositions import Decompositions
from .in_place import InPlace, functional
from .known_values import KnownValues
from .memory import destination, writes
from .unread_calls import SILENT

__all__ = ["A", "Fallback", "Index", "Rule", "T", "Translation", "Value", "broadcast", "dtype_name", "present"]

Rule: TypeAlias = Callable[["T", "A"], Value]
"""Translates one ATen call, given its arguments by name with defaults filled in."""


def _is_checked(node: fx.Node) -> bool:
    """True for a number read from data that only assertions look at; programs do without these."""
    if not isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool):
        return False
    return all(SILENT.match(getattr(user.target, "__name__", "")) or _is_checked(user) for user in node.users)


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    """The values, and those in lists among them."""
    for value in values:
        yield from value if isinstance(value, list) else [value]


class Translation(InPlace):
    """Translates fx nodes one by one into `builder`; `values` holds their translations."""

    def __init__(
        self,
        table: dict[str, Rule],
        builder: Builder,
        unknown: "Fallback | None" = None,
        statistics: str = "batch",
        dropout: str = "torch",
    ) -> None:
        super().__init__(builder)
        check_choice("dropout", dropout, DROPOUT)
        self.table = table
        self.unknown = unknown  # translates calls that have no rule; None: they are refused
        self.statistics = statistics  # what batch norms normalize over
        self.dropout = dropout  # what draws its masks
        self.sites = 0  # dropout calls so far
        self.norms = 0  # batch norms in training so far
        self._shared: dict[fx.Node, Any] = {}  # what regions are given
        self._returned: dict[fx.Node, Any] = {}  # what regions return
        self.limits: dict[int, int] = {}
        self.known = KnownValues(builder.nodes)
        self._decompositions = Decompositions()

    # -- running ------------------------------------------------------------------------------------------------

    def run(self, graph: fx.Graph, arguments: Sequence[Value]) -> list[Value]:
        """Translate a whole graph whose placeholders are `arguments`; returns the values of its output node."""
        given = iter(arguments)
        self.memory.follow(graph)
        self._modes[graph] = self.gradient
        for node in graph.nodes:
            if node.op == "placeholder":
                self._give(node, next(given))
            elif node.op == "call_function":
                self._step(node)
            elif node.op == "get_attr":
                self.values[node] = self._attribute(node)
            elif node.op == "output":
                return [self._resolve(value) for value in node.args[0]]
        raise PartitaError("the exported graph has no output")

    def region(self, call: fx.Node, graph: fx.Graph, arguments: Sequence[Any]) -> list[Value]:
        """Translate the graph of a region; it shares the memory of its arguments and results with the graph around."""
        for node, argument in zip((n for n in graph.nodes if n.op == "placeholder"), arguments, strict=True):
            self._shared[node] = argument
        self._returned[call] = next(node for node in graph.nodes if node.op == "output").args[0]
        return self.run(graph, [self._resolve(a) for a in arguments])

    def _give(self, node: fx.Node, value: Value) -> None:
        self.values[node] = value
        self.memory.note(node, self._shared.get(node))

    def _step(self, node: fx.Node) -> None:
        """Translate one call."""
        try:
            self.values[node] = self._call(node)
        except GuardOnDataDependentSymNode as error:
            raise self.refusal(
                f"operator {node.target} (a size depends on values of tensors)",
                "give sizes as Python numbers, or mask what does not count",
            ) from error
        same: Any = destination(node) if writes(node) else None
        if node.target is python.getitem:
            call: Any = node.args[0]
            returned = self._returned.get(call)
            same = returned[node.args[1]] if returned else None
        self.memory.note(node, same)

    def _attribute(self, node: fx.Node) -> Value:
        """A tensor that a decomposition makes; None for the graph of a region."""
        found = getattr(node.graph.owning_module, str(node.target))
        if isinstance(found, torch.Tensor):
            raise self.refusal(f"a tensor of shape {tuple(found.shape)}")
        return None

    def _call(self, node: fx.Node) -> Value:
        self._current = node
        if self._outer is None:
            self._place(node)
        target: Any = node.target
        if target is python.getitem:
            call: Any = node.args[0]
            value = self._resolve(call)[node.args[1]]
            if value is None and node.users:
                raise self.refusal(f"output {node.args[1]} of operator {call.target}")
            return value
        if _is_checked(node):
            return None
        name = getattr(target, "__name__", str(target))
        if name in _WRAPPERS:
            return _WRAPPERS[name](self, node)
        if not isinstance(target, torch._ops.OpOverload):
            raise self.refusal(f"{name} is not an operator of tensors")
        packet = target._schema.name.rpartition("::")[2]
        if SILENT.match(packet):
            return None
        if writes(node):
            return self._write(node)
        self._reason = ""
        if torch.Tag.inplace_view in target.tags:  # another shape for the same elements
            packet = packet.removesuffix("_")
        return self._translated(node, packet, self._arguments(node))

    def _translated(self, node: fx.Node, packet: str, arguments: dict[str, Any]) -> Value:
        """A call of `packet`: by its registered operator, its rule or its decomposition, or as an unknown operator."""
        target: Any = node.target
        known = target.namespace in ("aten", "partita")
        if is_complex(node.meta.get("val")) or any(isinstance(x, Complex) for x in _flat(arguments.values())):
            arguments = numbers_as_pairs(self, target, arguments)
            result = by_rule(self, packet, arguments, self._rule) if known else None
            return self._unruled(node, functional(target, packet), arguments, False) if result is None else result
        result = self._registered(target, arguments)
        if result is None and known:
            result = self._rule(packet, arguments)
        plain = functional(target, packet)
        if result is None and plain is not None:
            result = self._decomposed(node, plain)
        if result is not None:
            return result
        return self._unruled(node, plain, arguments, known and packet in self.table)

    def _unruled(self, node: fx.Node, plain: Any, arguments: dict[str, Any], declined: bool) -> Value:
        """A call of `plain` as an unknown operator. PartitaError: none is allowed, or it has no form without writes."""
        if self.unknown is None or plain is None:
            given = f" for {arguments}" if declined else ""
            target: Any = node.target
            reason = self._reason or f"no translation{given}"
            raise self.refusal(f"operator {target} ({reason})", f"{REMEDY}, or allow unknown ones (--allow-unknown)")
        return self.unknown(self, node.meta["val"], plain, arguments)

    def _rule(self, packet: str, arguments: dict[str, Any]) -> Value:
        rule = self.table.get(packet)
        return None if rule is None else rule(self, arguments)

    def _registered(self, target: Any, arguments: dict[str, Any]) -> Value:
        """The registered operator whose entry names this ATen operator (`captures`)."""
        entry = capturing(target._schema.name)
        if entry is None:
            return None
        tensors = [x for x in arguments.values() if isinstance(x, Index)]
        unsupported = [
            item.name
            for item in target._schema.arguments
            if not isinstance(arguments[item.name], Index)
            and item.name not in entry.attributes
            and arguments[item.name] != item.default_value
        ]
        if unsupported or len(tensors) > len(entry.operands):
            return self.no(
                f"with {', '.join(unsupported) or f'{len(tensors)} tensors'}, which {entry.name!r} does not take"
            )
        return self.add(entry.name, *tensors, **{name: arguments[name] for name in entry.attributes})

    def _decomposed(self, node: fx.Node, target: Any) -> Value:
        """The parts that torch's decomposition of a call has; None where there is none, or a part is unknown."""
        found = self._decompositions.of(target, node.args, node.kwargs)
        if found is None:
            return None
        counted, reason = (self.sites, self.norms), self._reason
        try:
            with found, self.kept("_current", "_outer", "_leaf", "unknown"):
                self._outer, self._leaf, self.unknown = self._outer or node, False, None
                results = self.run(found.graph, [self._resolve(operand) for operand in found.operands])
        except PartitaError as error:
            self.sites, self.norms = counted
            return self.no(reason or f"which needs {error}")
        return results if isinstance(node.meta["val"], list | tuple) else results[0]

    def reads(self, output: int) -> bool:
        """True if something reads this output of the current call."""
        assert self._current is not None
        users = self._current.users
        return any(user.target is not python.getitem or (user.args[1] == output and user.users) for user in users)

    def no(self, reason: str) -> Value:
        """Returned by a rule that has no translation for its arguments; `reason` goes into the error."""
        self._reason = reason
        return None

    def limit(self, ids: Index, size: int) -> None:
        """Note that ids are below `size`: rows of a table, classes."""
        self.limits[ids] = min(size, self.limits.get(ids, size))

    def unread(self) -> bool:
        """True if nothing reads the current call but assertions."""
        return all(SILENT.match(packet) for packet in self.readers())

    def readers(self) -> list[str]:
        """The names of the operators that read the current call; empty for what is none."""
        assert self._current is not None
        packets = (getattr(getattr(user.target, "_schema", None), "name", "") for user in self._current.users)
        return [packet.rpartition("::")[2] for packet in packets]


T: TypeAlias = Translation

A: TypeAlias = dict[str, Any]
"""The arguments of an ATen call by name."""

Fallback: TypeAlias = Callable[[T, Any, Any, A], Value]
"""Translates a call of an operator that has no rule, given the fake tensors that it returns."""


def _inline(t: Translation, node: fx.Node, graph: Any, arguments: Sequence[Any]) -> list[Value]:
    module = getattr(node.graph.owning_module, graph.target)
    return t.region(node, module.graph, arguments)


def _grad_mode(t: Translation, node: fx.Node) -> list[Value]:
    """`torch.no_grad` and `enable_grad` regions; nodes of the former have no gradient."""
    enabled, graph, *arguments = node.args
    with t.kept("gradient"):
        t.gradient = bool(enabled)
        results = _inline(t, node, graph, arguments)
    if enabled or not t.gradient:
        return results
    return [  # tensors from before the region that it only passes through
        t.add("detach", r, shape=t.shape(r), gradient=False) if isinstance(r, Index) and t.at(r).gradient else r
        for r in results
    ]


def _autocast(t: Translation, node: fx.Node) -> list[Value]:
    """Regions that switch autocast off are ignored: precision is the plan's choice."""
    _, _, enabled, _, graph, *arguments = node.args
    if enabled:
        raise t.refusal("an autocast region", "leave it out: the plan's dtype says in which precision is computed")
    return _inline(t, node, graph, arguments)


_WRAPPERS: dict[str, Callable[[Translation, fx.Node], list[Value]]] = {
    "wrap_with_set_grad_enabled": _grad_mode,
    "wrap_with_autocast": _autocast,
}
