"""Translation of an exported ATen graph to the nodes of a PCG: its state, and steps that rules share.

The rules themselves, one per ATen operator, are in `aten`.
"""

import operator as python
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ..errors import PartitaError
from ..graph.builder import Builder
from ..graph.dtypes import FLOATS
from ..graph.pcg import Node
from ..operators.operator import capturing
from .decompositions import Decompositions
from .known_values import KnownValues
from .memory import Memory, destination, writes
from .source_lines import source_line


class Index(int):
    """A node of the PCG, distinguished from a Python number."""


Value: TypeAlias = Any
"""The translation of an fx node: the index of a PCG node, a list of indices, or a Python number."""

Rule: TypeAlias = Callable[["T", "A"], Value]
"""Translates one ATen call, given its arguments by name with defaults filled in."""

# Modules that are one operator: the node is named after the module, not after the operator.
_NAMED = {
    "Linear", "Bilinear", "Embedding", "LayerNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "RMSNorm",
    "Dropout", "GELU", "SiLU", "ReLU", "Tanh", "Sigmoid", "ELU", "LeakyReLU", "Softplus", "ReLU6", "Hardtanh",
    "Hardswish", "Hardsigmoid", "Mish", "SELU", "PReLU", "LogSigmoid", "GroupNorm", "Upsample", "Softmax",
    "LogSoftmax", "CrossEntropyLoss", "MSELoss",
}  # fmt: skip
_SPATIAL = ("Conv", "ConvTranspose", "MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool", "InstanceNorm")
_NAMED |= {f"{kind}{dims}d" for kind in _SPATIAL for dims in (1, 2, 3)}
REMEDY = "use known operators"
"""What helps where an operator has no translation."""

_SILENT = re.compile(r"_assert|sym_|_guard|mark_")


def present(*operands: "Index | None") -> list[Index]:
    """The operands that a call has."""
    return [x for x in operands if x is not None]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that all shapes can be expanded to."""
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


_SAME_ELEMENTS = frozenset([
    "view", "view_as", "_unsafe_view", "reshape", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze",
    "expand", "expand_as", "broadcast_to", "alias", "contiguous", "to", "_to_copy", "type_as", "detach", "lift_fresh",
])  # fmt: skip
"""Views with all elements of their source in row-major order; a tensor that is written has no element twice."""
_SWAPS = frozenset(["transpose", "swapaxes", "swapdims", "t", "mT", "numpy_T", "adjoint"])
"""Views that give back their source when they are applied to themselves."""


def _is_checked(node: fx.Node) -> bool:
    """True for a number read from data that only assertions look at; programs do without these."""
    if not isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool):
        return False
    return all(_SILENT.match(getattr(user.target, "__name__", "")) or _is_checked(user) for user in node.users)


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


class Translation:
    """Translates fx nodes one by one into `builder`; `values` holds their translations."""

    def __init__(
        self, table: dict[str, Rule], builder: Builder, unknown: "Fallback | None" = None, statistics: str = "batch"
    ) -> None:
        self.table = table
        self.builder = builder
        self.unknown = unknown  # translates calls that have no rule; None: they are refused
        self.statistics = statistics  # what batch norms normalize over
        self.sites = 0  # dropout calls so far
        self.gradient = True  # False inside torch.no_grad
        self.norms = 0  # batch norms in training so far
        self.values: dict[fx.Node, Value] = {}
        self.memory = Memory()
        self._modes: dict[fx.Graph, bool] = {}  # whether gradients were on
        self._shared: dict[fx.Node, Any] = {}  # what regions are given
        self._returned: dict[fx.Node, Any] = {}  # what regions return
        self._constants: dict[tuple[object, ...], Index] = {}
        self.limits: dict[int, int] = {}
        self.known = KnownValues(builder.nodes)
        self._current: fx.Node | None = None  # the call that is translated
        self._outer: fx.Node | None = None  # the user's call that `_current` is a part of
        self._decompositions = Decompositions()
        self._reason = ""
        self._path = ""
        self._leaf = False

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

    def _resolve(self, argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            self._refresh(argument)
            return self.values.get(argument)
        if isinstance(argument, list | tuple):
            return [self._resolve(a) for a in argument]
        return argument

    def resolved(self, node: fx.Node) -> Value:
        """The present value of a node, whatever was written to its memory since it was made."""
        return self._resolve(node)

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
        if _SILENT.match(packet):
            return None
        if writes(node):
            return self._write(node)
        self._reason = ""
        if torch.Tag.inplace_view in target.tags:  # another shape for the same elements
            packet = packet.removesuffix("_")
        return self._translated(node, packet, self._arguments(node))

    def _arguments(self, node: fx.Node, target: Any = None) -> dict[str, Any]:
        """The arguments of a call by name, defaults filled in; by the names of `target` if it is given."""
        target = target or node.target
        arguments = {}
        for position, item in enumerate(target._schema.arguments):
            value = node.args[position] if position < len(node.args) else node.kwargs.get(item.name, item.default_value)
            arguments[item.name] = self._resolve(value)
        return arguments

    def _translated(self, node: fx.Node, packet: str, arguments: dict[str, Any]) -> Value:
        """A call of `packet`: by its registered operator, its rule or its decomposition, or as an unknown operator."""
        target: Any = node.target
        rule = self.table.get(packet) if target.namespace in ("aten", "partita") else None
        result = self._registered(target, arguments)
        if result is None and rule:
            result = rule(self, arguments)
        plain = functional(target, packet)
        if result is None and plain is not None:
            result = self._decomposed(node, plain)
        if result is not None:
            return result
        if self.unknown is None or plain is None:
            reason = self._reason or (f"no translation for {arguments}" if rule else "no translation")
            raise self.refusal(f"operator {target} ({reason})", f"{REMEDY}, or allow unknown ones (--allow-unknown)")
        return self.unknown(self, node.meta["val"], plain, arguments)

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
        before = self.sites, self.norms, self._outer, self._leaf, self.unknown
        self._outer, self._leaf, self.unknown = self._outer or node, False, None
        reason = self._reason
        try:
            with found:
                results = self.run(found.graph, [self._resolve(operand) for operand in found.operands])
        except PartitaError as error:
            self.sites, self.norms = before[:2]
            return self.no(reason or f"which needs {error}")
        finally:
            self._current = node
            _, _, self._outer, self._leaf, self.unknown = before
        return results if isinstance(node.meta["val"], list | tuple) else results[0]

    # -- writing in place ---------------------------------------------------------------------------------------

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
            return self.view(value, self.shape(whole))
        if packet in _SWAPS:
            return self.table[packet](self, arguments | {"self": value})
        if packet == "permute":
            dims = [d % len(arguments["dims"]) for d in arguments["dims"]]
            return self.permute(value, [dims.index(d) for d in range(len(dims))])
        if packet in ("movedim", "moveaxis"):
            back = {"self": value, "source": arguments["destination"], "destination": arguments["source"]}
            return self.table[packet](self, back)
        if packet == "narrow":
            start = arguments["start"] % self.shape(whole)[arguments["dim"]]
            arguments |= {"start": start, "end": start + arguments["length"], "step": 1}
            packet = "slice"
        if isinstance(value, list):  # all pieces
            dim = arguments["dim"] % len(self.shape(whole))
            unit = [1 if d == dim else size for d, size in enumerate(self.shape(whole))]
            pieces = [self.view(part, unit) for part in value] if packet == "unbind" else value
            return self.add("cat", *pieces, shape=self.shape(whole), dim=dim)
        rule = self.table.get(f"{packet}_scatter")
        found = rule(self, arguments | {"self": whole, "src": value}) if rule else None
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
            before = self._current, self._path, self._leaf, self._reason, self.gradient
            self.gradient = self._modes[node.graph]
            self.values[node] = self._call(node)
            self._current, self._path, self._leaf, self._reason, self.gradient = before
        self.memory.renewed(node)

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

    def _place(self, node: fx.Node) -> None:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path, kind = stack[-1] if stack else ("", "")
        self._path = re.sub(r"@\d+", "", re.sub(r"^module\.?", "", path))
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        self._leaf = name.startswith("torch.nn.modules") and name.rpartition(".")[2] in _NAMED

    def refusal(self, problem: str, remedy: str = REMEDY) -> PartitaError:
        """The error for what cannot be captured: names the module, the line and the remedy."""
        assert self._current is not None
        if self._outer is not None:  # becomes the reason for another refusal
            return PartitaError(problem)
        return PartitaError(
            f"cannot capture {problem} in module {self._path or '(the top)'!r}, at {source_line(self._current)}; "
            f"{remedy}"
        )

    def unread(self) -> bool:
        """True if nothing reads the current call but assertions."""
        assert self._current is not None
        packets = (getattr(getattr(user.target, "_schema", None), "name", "") for user in self._current.users)
        return all(_SILENT.match(packet.rpartition("::")[2]) for packet in packets)

    # -- building -----------------------------------------------------------------------------------------------

    @property
    def like(self) -> Any:
        """The (fake) tensor that the current call returns."""
        assert self._current is not None
        return self._current.meta["val"]

    def at(self, index: int) -> Node:
        return self.builder.nodes[index]

    def shape(self, index: int) -> tuple[int, ...]:
        return self.at(index).shape

    def add(self, op: str, *inputs: int, like: Any = None, shape: Any = None, **attributes: Any) -> Index:
        """Add a node with the shape and dtype of the current call's result, or of `like`, or of `shape`."""
        is_module = op not in ("view", "moments") and (self._leaf or self._path.rpartition(".")[2] == op)
        name = self._path if is_module else f"{self._path}.{op}".lstrip(".")
        dtype: str | None = attributes.pop("dtype", None)
        if shape is None:
            like = self.like if like is None else like
            shape, dtype = like.shape, dtype or dtype_name(like.dtype)
        sizes = tuple(int(size) for size in shape)
        if not self.gradient:
            attributes["gradient"] = False
        made = self.builder.add(
            op, *map(int, inputs), shape=sizes, dtype=dtype, name=name, path=self._path, **attributes
        )
        return Index(made)

    def view(self, x: Index, shape: Sequence[int]) -> Index:
        """The elements of `x` in row-major order under another shape; a view of a view is one view."""
        shape = tuple(int(size) for size in shape)
        if shape == self.shape(x):
            return x
        if self.at(x).op == "view":
            return self.view(Index(self.at(x).inputs[0]), shape)
        return self.add("view", x, shape=shape)

    def permute(self, x: Index, dims: Sequence[int]) -> Index:
        """The dims of `x` in another order; a permutation of a permutation is one permutation."""
        if self.at(x).op == "permute":
            dims = [self.at(x)["dims"][d] for d in dims]
            x = Index(self.at(x).inputs[0])
        if list(dims) == sorted(dims):
            return x
        return self.add("permute", x, shape=[self.shape(x)[d] for d in dims], dims=tuple(dims))

    def transpose(self, x: Index, a: int, b: int) -> Index:
        dims = list(range(len(self.shape(x))))
        dims[a], dims[b] = dims[b], dims[a]
        return self.permute(x, dims)

    def expand(self, x: Index, shape: Sequence[int]) -> Index:
        return x if tuple(shape) == self.shape(x) else self.add("expand", x, shape=shape)

    def slice(self, x: Index, dim: int, start: int, stop: int, step: int = 1) -> Index:
        shape = list(self.shape(x))
        dim %= len(shape)
        start, stop, step = slice(start, stop, step).indices(shape[dim])
        size = len(range(start, stop, step))
        if size == shape[dim]:
            return x
        shape[dim] = size
        return self.add("slice", x, shape=shape, dim=dim, start=start, stop=stop, step=step)

    def pieces(self, x: Index, dim: int, sizes: Sequence[int]) -> list[Index]:
        """`x` cut along `dim`; equal pieces become a dim of their own first, so that each piece can be split."""
        shape = self.shape(x)
        dim %= len(shape)
        if len(sizes) == 1:
            return [x]
        if len(set(sizes)) > 1:
            ends = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
            return [self.slice(x, dim, start, stop) for start, stop in pairwise(ends)]
        whole = self.view(x, (*shape[:dim], len(sizes), sizes[0], *shape[dim + 1 :]))
        piece = (*shape[:dim], sizes[0], *shape[dim + 1 :])
        return [self.view(self.slice(whole, dim, i, i + 1), piece) for i in range(len(sizes))]

    def scale(self, x: Index, value: float) -> Index:
        return x if value == 1 else self.add("scale", x, shape=self.shape(x), value=value)

    def shift(self, x: Index, value: float) -> Index:
        return self.add("shift", x, shape=self.shape(x), value=value)

    def to(self, x: Index, dtype: str | torch.dtype | None) -> Index:
        dtype = dtype_name(dtype) if isinstance(dtype, torch.dtype) else dtype
        if dtype is None or dtype == self.at(x).dtype:
            return x
        return self.add("to", x, shape=self.shape(x), dtype=dtype)

    def full(self, value: float, shape: Sequence[int] = (), dtype: str | None = None) -> Index:
        """A constant, created once."""
        dtype = dtype or dtype_name(torch.tensor(value).dtype)
        key = ("full", value, type(value), tuple(shape), dtype)
        if key not in self._constants:
            self._constants[key] = Index(self.builder.add("full", shape=tuple(shape), dtype=dtype, value=value))
        return self._constants[key]

    def causal(self, rows: int, columns: int) -> Index:
        """The causal mask: True up to the query's own position. Created once."""
        key = ("causal", rows, columns)
        if key not in self._constants:
            ones = self.full(True, (rows, columns))
            made = self.builder.add(
                "tril", int(ones), shape=(rows, columns), dtype="bool", name="causal_mask", diagonal=0
            )
            self._constants[key] = Index(made)
        return self._constants[key]

    def is_zero(self, x: Index) -> bool:
        """True for a constant of zeros."""
        return self.at(x).op == "full" and not self.at(x)["value"]

    def number(self, value: Any) -> bool | int | float | None:
        """The value of a Python number or of a scalar constant in the graph; None for other arguments."""
        if isinstance(value, bool | int | float) and not isinstance(value, Index):
            return value
        if isinstance(value, Index) and self.at(value).op == "full" and not self.shape(value):
            number: bool | int | float = self.at(value)["value"]
            return number
        return None

    def tensor(self, value: Any, dtype: str | None = None) -> Index:
        """The node of an argument; numbers become scalar constants."""
        return value if isinstance(value, Index) else self.full(value, (), dtype)

    def reduce(self, op: str, x: Index, dims: int | Sequence[int] | None, keepdim: bool, **attributes: Any) -> Index:
        """sum, mean, amax and the like over `dims` (None: all)."""
        dims = [dims] if isinstance(dims, int) else dims
        shape = self.shape(x)
        rank = len(shape)
        chosen = tuple(sorted({d % rank for d in dims} if dims and rank else range(rank)))
        if not chosen:
            return x
        kept = [1 if d in chosen else size for d, size in enumerate(shape) if keepdim or d not in chosen]
        extra = attributes | ({"count": prod(shape[d] for d in chosen)} if op == "mean" else {})
        counted = op == "sum" and self.at(x).dtype not in FLOATS
        return self.add(op, x, shape=kept, dtype="int64" if counted else None, dims=chosen, keepdim=keepdim, **extra)


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
    before, t.gradient = t.gradient, bool(enabled)
    results = _inline(t, node, graph, arguments)
    t.gradient = before
    if enabled or before is False:
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
