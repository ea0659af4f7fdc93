"""Traces equal layers twice instead of a hundred times, and translates their other calls from the first trace.

`note_calls` makes equal layers record their calls. The first two calls of a kind (equal layers, tensors of equal
shapes, equal numbers) are traced between the operators `layer_begin` and `layer_end`; each further call becomes one
operator `layer_again`. `Repeating` translates it by translating the nodes of the first call once more, under the names
and with the weights of its own layer. The second trace must equal the first, which detects layers that leave state
behind, such as a cache.

Where any of this does not hold, PartitaError is raised and the module has to be traced whole.
"""

import operator as python
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from ..errors import PartitaError
from .equal_layers import PLAIN, description
from .library import define
from .memory import storage
from .translation import Index, Translation, Value

TRACED = 2
"""Calls of a kind that are traced: the first is translated for all, the second must equal it."""


# -- operators of the exported graph ----------------------------------------------------------------------------------


def _begin(given: Sequence[Tensor], call: int, path: str) -> list[Tensor]:
    return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in given]


def _token(given: Sequence[Tensor], call: int, path: str) -> Tensor:
    """One tensor that stands for all outputs of a call."""
    return torch.empty(())


def _output(token: Tensor, number: int, size: list[int], stride: list[int], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


BEGIN = define("layer_begin", "(Tensor[] given, int call, str path) -> Tensor[]", _begin)
END = define("layer_end", "(Tensor[] given, int call, str path) -> Tensor", _token)
AGAIN = define("layer_again", "(Tensor[] given, int call, str path) -> Tensor", _token)
OUTPUT = define(
    "layer_output", "(Tensor token, int number, int[] size, int[] stride, ScalarType dtype) -> Tensor", _output
)


# -- noting calls -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Form:
    """Nested arguments or results without their tensors: the structure, plain values, and shapes of tensors.

    A leaf is the number of a tensor, which may occur several times, or (type, plain value).
    """

    tensors: tuple[Any, ...]
    leaves: tuple[Any, ...]
    structure: Any

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        """Rebuild the nested structure from its tensors."""
        for tensor, (*_, requires_grad) in zip(tensors, self.tensors, strict=True):
            if tensor.requires_grad != requires_grad:
                tensor.requires_grad_(requires_grad)
        values = [tensors[leaf] if isinstance(leaf, int) else leaf[1] for leaf in self.leaves]
        return pytree.tree_unflatten(values, self.structure)


def _flat(value: Any) -> tuple[list[Tensor], _Form] | None:
    """The tensors in a value, and its form; None if it has no tensor, or leaves that are neither tensors nor plain."""
    leaves, structure = pytree.tree_flatten(value)
    tensors = list({id(leaf): leaf for leaf in leaves if isinstance(leaf, Tensor)}.values())
    if not tensors or not all(isinstance(leaf, Tensor) or type(leaf) in PLAIN for leaf in leaves):
        return None
    number = {id(tensor): place for place, tensor in enumerate(tensors)}
    places = tuple(number[id(leaf)] if isinstance(leaf, Tensor) else (type(leaf), leaf) for leaf in leaves)
    return tensors, _Form(tuple(map(description, tensors)), places, structure)


@dataclass(slots=True)
class _Call:
    """Calls of one kind: how many were traced, the form of their results, and whether further calls can repeat them."""

    number: int
    traced: int = 0
    result: _Form | None = None
    fits: bool = True


@dataclass(slots=True, eq=False)
class _Noted:
    """A layer that records its calls; `calls` is shared by all layers."""

    calls: dict[object, _Call]
    kind: int
    path: str
    layer: nn.Module

    def __call__(self, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        flat = _flat((args, kwargs))
        if flat is None:
            return forward(*args, **kwargs)
        tensors, form = flat
        call = self.calls.setdefault((self.kind, torch.is_grad_enabled(), form), _Call(len(self.calls)))
        if not call.fits:
            return forward(*args, **kwargs)
        if call.traced < TRACED:
            return self._trace(call, tensors, form, forward)
        return _results(AGAIN(tensors, call.number, self.path), call.result)

    def _trace(self, call: _Call, tensors: list[Tensor], form: _Form, forward: Callable[..., Any]) -> Any:
        before = _attributes(self.layer)
        args, kwargs = form.filled(BEGIN(tensors, call.number, self.path))
        result = forward(*args, **kwargs)
        flat = _flat(result)
        after = _attributes(self.layer)
        left = len(before) != len(after) or any(a is not b for a, b in zip(before, after, strict=True))
        if left or flat is None or call.result not in (None, flat[1]):
            call.fits = False
            return result
        call.traced, call.result = call.traced + 1, flat[1]
        return _results(END(flat[0], call.number, self.path), flat[1])


def _results(token: Tensor, form: _Form | None) -> Any:
    assert form is not None
    return form.filled([OUTPUT(token, number, *tensor[:3]) for number, tensor in enumerate(form.tensors)])


def _attributes(layer: nn.Module) -> list[object]:
    """All attributes that a forward could have set."""
    held = ((part._parameters, part._buffers, part._modules, vars(part)) for part in layer.modules())
    return [value for parts in held for names in parts for item in names.items() for value in item]


def note_calls(module: nn.Module, layers: Mapping[str, int]) -> None:
    """Make `layers` of a module (path -> kind, see `equal_layers`) record their calls. Changes `module`."""
    calls: dict[object, _Call] = {}
    for path, kind in layers.items():
        layer = module.get_submodule(path)
        own: Any = type(layer)
        try:
            layer.__class__ = _noting(own)
        except TypeError as error:
            raise PartitaError(f"{path}: {own.__name__} cannot be extended: {error}") from error
        vars(layer)["_noted"] = _Noted(calls, kind, path, layer)


@cache
def _noting(kind: Any) -> Any:
    """A subclass of `kind` under its name; torch.export calls forward with its own `self`, so patching would not do."""

    def forward(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._noted(super(made, self).forward, *args, **kwargs)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    made: Any = type(kind)(kind.__name__, (kind,), {"forward": forward, **names})
    return made


# -- translating ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """A traced call: the nodes between `begin` and `end`, and the weights that they read.

    `weights`: node before `begin` -> name of the weight without the layer's path.
    """

    begin: fx.Node
    nodes: tuple[fx.Node, ...]
    end: fx.Node
    weights: Mapping[fx.Node, str]

    @property
    def path(self) -> str:
        return str(self.begin.args[2])

    def form(self) -> list[object]:
        """The nodes without names; equal for calls that do the same."""
        numbers: dict[fx.Node, Any] = {self.begin: -1, **self.weights}
        nodes = _form(self.nodes, numbers)
        return [nodes, fx.map_arg(self.end.args[0], lambda arg: numbers[arg])]


def _form(nodes: Iterable[fx.Node], numbers: dict[fx.Node, Any]) -> list[object]:
    """Operators and arguments, with `numbers` for nodes; numbers of `nodes` are added to it."""
    form: list[object] = []
    for node in nodes:
        target: object = node.target
        if node.op == "get_attr":  # the body of a region
            inner = getattr(node.graph.owning_module, str(node.target))
            target = _form(inner.graph.nodes, {}) if isinstance(inner, fx.GraphModule) else inner
        given = fx.map_arg((node.args, node.kwargs), lambda arg: numbers[arg])
        form.append((node.op, "" if node.op == "placeholder" else target, given))
        numbers[node] = len(form)
    return form


def _shares(end: fx.Node) -> bool:
    """True if results of a call share memory with each other or with tensors that it did not make."""
    begin = end.prev
    while begin.target is not BEGIN:
        begin = begin.prev
    outside = {*map(storage, end.graph.find_nodes(op="placeholder")), *map(storage, begin.users), storage(begin)}
    returned = [storage(node) for node in end.all_input_nodes]
    return len({*returned}) < len(returned) or not outside.isdisjoint(returned)


class Repeating(Translation):
    """A translation of a graph with the operators above. Raises PartitaError if a call cannot be repeated."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pieces: dict[int, _Piece | None] = {}
        self._names: dict[str, Index] = {}
        self._moved: tuple[str, str] | None = None

    def _call(self, node: fx.Node) -> Value:
        arguments: Any = node.args
        if node.target is BEGIN:
            return self._resolve(arguments[0])
        if node.target is END:
            self._learn(node)
            return self._resolve(arguments[0])
        if node.target is AGAIN:
            given, number, path = arguments
            return self._again(self._resolve(given), self._pieces.get(number), path)
        if node.target is OUTPUT:
            return self._resolve(arguments[0])[arguments[1]]
        return super()._call(node)

    def _place(self, node: fx.Node) -> None:
        super()._place(node)
        if self._moved is not None:
            model, path = self._moved
            self._path = path + self._path[len(model) :]

    def check_written(self, owner: fx.Node) -> None:
        """A layer's operands stand for tensors outside of it, so none may be written inside; nor may its weights."""
        super().check_written(owner)
        inside = owner.target is python.getitem and owner.all_input_nodes[0].target is BEGIN
        if inside or owner.target is BEGIN or owner.op == "placeholder":
            raise PartitaError("in-place changes of what a layer is given are known only if all layers are traced")

    def _learn(self, end: fx.Node) -> None:
        """Keep the first call of a kind, unless another one differs."""
        if self.memory and _shares(end):
            raise PartitaError("layers that return a view of what they are given must be traced if anything is written")
        piece = self._piece(end)
        number: Any = end.args[1]
        first = self._pieces.setdefault(number, piece)
        if first is None or piece is None or (first is not piece and first.form() != piece.form()):
            self._pieces[number] = None

    def _piece(self, end: fx.Node) -> _Piece | None:
        """The call that ends here, if it reads nothing from outside but its own weights."""
        nodes: list[fx.Node] = []
        begin = end.prev
        while begin.target is not BEGIN:
            if begin.op not in ("call_function", "get_attr") or begin.target in (END, AGAIN, OUTPUT):
                return None
            nodes.append(begin)
            begin = begin.prev
        inside = {begin, *nodes, end}
        if begin.args[1:] != end.args[1:] or not all(inside.issuperset(node.users) for node in (begin, *nodes)):
            return None
        read = {source for node in (*nodes, end) for source in node.all_input_nodes} - inside
        weights = {source: self._own(self.values.get(source), str(end.args[2])) for source in read}
        if not all(weights.values()):
            return None
        return _Piece(begin, tuple(reversed(nodes)), end, weights)

    def _own(self, value: Value, path: str) -> str:
        """The name of a weight within the layer at `path`; empty for other values."""
        if not isinstance(value, Index) or self.at(value).op not in ("parameter", "buffer"):
            return ""
        name = self.at(value).name
        return name.removeprefix(path) if name.startswith(f"{path}.") else ""

    def _again(self, given: list[Value], piece: _Piece | None, path: str) -> list[Value]:
        """Translate the nodes of `piece` for the layer at `path`."""
        if piece is None:
            raise PartitaError(f"{path} looks like a layer that computes something else")
        with self.kept("values", "_moved"):
            self.values = {piece.begin: given}
            self.values |= {source: self._weight(path + rest) for source, rest in piece.weights.items()}
            self._moved = piece.path, path
            for node in piece.nodes:
                if node.op == "call_function":
                    self._step(node)
            results: list[Value] = self._resolve(piece.end.args[0])
        return results

    def _weight(self, name: str) -> Index:
        if not self._names:
            sources = ((i, node) for i, node in enumerate(self.builder.nodes) if node.op in ("parameter", "buffer"))
            self._names = {node.name: Index(i) for i, node in sources}
        return self._names[name]
