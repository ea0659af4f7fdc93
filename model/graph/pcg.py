"""The parallel computation graph (PCG) before it is parallelized: frozen nodes in topological order.

A node has one output; its index is the name of that tensor. Shapes are global, in elements, at one micro-batch of
`batch` samples. Inputs, parameters and buffers are nodes without inputs.
"""

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite, prod
from typing import Any, Self, TypeAlias

from ..errors import PartitaError

Attribute: TypeAlias = "int | float | str | bool | tuple[Attribute, ...] | None"

SOURCES = ("input", "parameter", "buffer")
FLOATS = ("float64", "float32", "float16", "bfloat16")
FORMAT = 1


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

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "batch": self.batch,
            "loss": self.loss,
            "aliases": [list(a) for a in self.aliases],
            **({"samples": [list(dims) for dims in self.samples]} if self.samples else {}),
            "nodes": [
                {
                    "op": n.op,
                    "name": n.name,
                    "inputs": list(n.inputs),
                    "shape": list(n.shape),
                    "dtype": n.dtype,
                    "attributes": {k: thaw(v) for k, v in n.attributes},
                    "gradient": n.gradient,
                    "path": n.path,
                }
                for n in self.nodes
            ],
        }

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read what `to_json` wrote. Raises PartitaError that says what is wrong and where."""
        from .batch import check_samples  # which analyses graphs

        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise PartitaError(f"not a graph of format {FORMAT}: {json.dumps(data)[:80]}")
        nodes: list[Node] = []
        try:
            for item in data["nodes"]:
                nodes.append(
                    Node(
                        str(item["op"]),
                        str(item["name"]),
                        tuple(map(_integer, item["inputs"])),
                        tuple(map(_integer, item["shape"])),
                        str(item["dtype"]),
                        tuple(sorted((str(k), freeze(v)) for k, v in item["attributes"].items())),
                        bool(item["gradient"]),
                        str(item["path"]),
                    )
                )
            aliases = tuple((str(a), str(b)) for a, b in data["aliases"])
            samples = tuple(tuple(map(_integer, dims)) for dims in data.get("samples", ()))
            graph = cls(tuple(nodes), _integer(data["loss"]), _integer(data["batch"]), aliases, samples)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PartitaError(f"graph file: node {len(nodes)} is malformed ({error})") from error
        _verify_file(graph)
        verify(graph)
        check_samples(graph)
        return graph


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not an integer")
    return value


def thaw(value: Attribute) -> Any:
    """An attribute for JSON, which has no infinity: {"float": "-inf"}."""
    if isinstance(value, tuple):
        return [thaw(v) for v in value]
    return {"float": repr(value)} if isinstance(value, float) and not isfinite(value) else value


def freeze(value: Any) -> Attribute:
    if isinstance(value, Mapping) and value.get("float") in ("inf", "-inf", "nan"):
        return float(value["float"])
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(freeze(v) for v in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{value!r} is no attribute")


def form_of(node: Node, inputs: Sequence[Node]) -> Hashable:
    """Equal for nodes whose operators do the same to tensors of the same shapes: layers have many of them."""
    own = node.op, node.shape, node.dtype, node.gradient, node.attributes
    return own, tuple((x.op, x.shape, x.dtype, x.gradient, x.attributes) for x in inputs)


def verify(pcg: PCG) -> None:
    """Check that a graph is well formed: order, unique names, known operators, shapes that fit their notation.

    Raises PartitaError naming the node. Holds before and after every pass.
    """
    from ..operators.operator import operator  # the registry imports this module
    from .buffer_updates import check_updates
    from .joined_tables import check_joined
    from .sparse_tables import check_sparse

    names: set[str] = set()
    fitting: set[Hashable] = set()
    for index, node in enumerate(pcg.nodes):
        where = f"node {index} ({node.op} {node.name!r})"
        if node.name in names:
            raise PartitaError(f"{where}: the name is taken")
        names.add(node.name)
        if not (is_name(node.name) and (not node.path or is_name(node.path))):
            raise PartitaError(f"{where}: a name is printable, without quotes, braces and backslashes")
        if not all(0 <= i < index for i in node.inputs):
            raise PartitaError(f"{where}: inputs {node.inputs} are not earlier nodes")
        if not all(size > 0 for size in node.shape):
            raise PartitaError(f"{where}: shape {node.shape} has an empty dim")
        factors = node.get("atoms")
        if factors is not None and tuple(prod(x or pcg.batch for x in dim) for dim in factors) != node.shape:
            raise PartitaError(f"{where}: the factors {factors} of its dims do not make its shape {node.shape}")
        if node.op in SOURCES:
            if node.inputs:
                raise PartitaError(f"{where}: a source has no inputs")
            continue
        inputs = tuple(pcg.nodes[i] for i in node.inputs)
        form = form_of(node, inputs)
        try:
            if form not in fitting:
                operator(node.op).check(node, inputs)
        except (ValueError, IndexError) as error:
            raise PartitaError(f"{where}: {error}") from error
        fitting.add(form)
    check_updates(pcg.nodes)
    check_sparse(pcg.nodes)
    check_joined(pcg)
    if pcg.batch < 1:
        raise PartitaError(f"batch {pcg.batch} is not positive")
    for way, index in pcg.alternatives:
        here, there = pcg.nodes[way], pcg.nodes[index]
        alike = (here.shape, here.dtype, here.gradient) == (there.shape, there.dtype, there.gradient)
        if not way < index or pcg.consumers[way] or not alike:
            raise PartitaError(f"node {way} ({here.op} {here.name!r}) is no other way to compute {there.name!r}")
    if not 0 <= pcg.loss < len(pcg.nodes) or (pcg.nodes[pcg.loss].shape != () and pcg.loss not in pcg.sends[-1:]):
        raise PartitaError(f"the loss (node {pcg.loss}) is not a scalar of the graph")


class Builder:
    """Builds a PCG node by node; every method returns the index of what it added."""

    def __init__(self, batch: int = 1) -> None:
        self.batch = batch
        self.nodes: list[Node] = []
        self.aliases: list[tuple[str, str]] = []
        self._names: set[str] = set()

    def name(self, wish: str) -> str:
        """A name that is free, made from `wish`."""
        name, count = wish, 1
        while name in self._names:
            count += 1
            name = f"{wish}_{count}"
        self._names.add(name)
        return name

    def add(
        self,
        op: str,
        *inputs: int,
        shape: Sequence[int],
        name: str = "",
        dtype: str | None = None,
        path: str = "",
        gradient: bool | None = None,
        **attributes: Attribute,
    ) -> int:
        """Add a node. `gradient` and `dtype` follow the inputs where they are not given."""
        sources = [self.nodes[i] for i in inputs]
        if dtype is None:
            dtype = next((n.dtype for n in sources if n.dtype in FLOATS), sources[0].dtype if sources else "float32")
        if gradient is None:
            gradient = dtype in FLOATS and any(n.gradient for n in sources)
        node = Node(
            op, self.name(name or op), inputs, tuple(shape), dtype, tuple(sorted(attributes.items())), gradient, path
        )
        self.nodes.append(node)
        return len(self.nodes) - 1

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32", batch_dim: int | None = 0) -> int:
        """A tensor that the caller gives; `batch_dim` is the dim that counts samples, None if there is none."""
        return self.add("input", shape=shape, name=name, dtype=dtype, batch_dim=batch_dim)

    def parameter(
        self, name: str, shape: Sequence[int], dtype: str = "float32", trainable: bool = True, **attributes: Attribute
    ) -> int:
        path = name.rpartition(".")[0]
        return self.add("parameter", shape=shape, name=name, dtype=dtype, gradient=trainable, path=path, **attributes)

    def build(self, loss: int) -> PCG:
        """The finished graph, verified."""
        graph = PCG(tuple(self.nodes), loss, self.batch, tuple(self.aliases))
        verify(graph)
        return graph


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


def _verify_file(pcg: PCG) -> None:
    """What a graph from a file must fulfil before `verify`: attributes and dtypes of their kinds, sizes in 64 bits."""
    from ..machine.roofline import ITEMSIZE
    from .attributes import check_attributes

    for index, node in enumerate(pcg.nodes):
        try:
            check_attributes(node)
        except ValueError as error:
            raise PartitaError(f"node {index} ({node.op} {node.name!r}): {error}") from error
        if node.dtype not in ITEMSIZE:
            raise PartitaError(f"node {index} ({node.op} {node.name!r}): no dtype {node.dtype!r}")
        if node.numel > _LARGEST or pcg.batch > _LARGEST:
            raise PartitaError(f"node {index} ({node.op} {node.name!r}): shape {node.shape} is too large")
    known = {name for i in pcg.of("parameter") for name in pcg.nodes[i].originals}
    for alias, name in pcg.aliases:
        if not is_name(alias) or name not in known:
            raise PartitaError(f"graph file: {alias!r} is no further name of a parameter")


_LARGEST = 2**48
