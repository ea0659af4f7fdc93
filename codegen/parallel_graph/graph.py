"""A parallel computation graph: parallelization is operators of its own (Unity, OSDI 2022, section 3).

A tensor has data dims, each with a size and a degree (its number of parts), and a replica dim. Six operators change
them, and the backward of each is its partner: partition and combine (the degree of a dim), replicate and reduce (the
replica dim: copies one way, a sum the other), pipeline and batch (parts in sequence: the size, not the degree).

Layouts (`model.graph.layout`) as states of such tensors, for one mesh axis of n ranks:

| letter | state                              | entered by          | left by          |
|--------|------------------------------------|---------------------|------------------|
| `R`    | one tensor, which n ranks compute  |                     |                  |
| `S(d)` | dim d at degree n                  | partition[d, n]     | combine[d, n]    |
| `B`    | n replicas, equal                  | replicate[n]        | reduce[n, first] |
| `P`    | n replicas, addends                | replicate[n, first] | reduce[n]        |

Both B and P are "replica dim n": replicate makes B, reduce takes P. The replicas are copies or addends, and those of
the gradient the other of the two. A move between letters leaves one and enters the other: P to S is reduce, partition
(a reduce-scatter), S to B combine, replicate (an all-gather; backward a reduce-scatter), S to S combine, partition (an
all-to-all), P to B reduce, replicate (an all-reduce each way).

`first` marks moves that the six operators lack, which send nothing: replicate[first] puts zeros where replicate puts
copies, reduce[first] takes the first replica where reduce adds all. Each is the backward of the other. Up to how a
value is divided into addends, replicate[n, first](x) is replicate[n](x / n), and reduce[n, first] of copies is
reduce[n](x) / n.

Further letters: `@c`, at coordinate c of an axis only, on devices of its own (it reads one replica where its fork is at
`B`); `flat`, the optimizer's part of a weight (ZeRO-1), split by elements in order; `spread`, tables placed one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from ...model.errors import PartitaError
from ...model.graph.pcg import Attribute
from ...model.json_values import whole
from ..plan.delegation import call

if TYPE_CHECKING:
    from collections.abc import Iterator

Nested: TypeAlias = "int | tuple[Nested, ...]"


def nested(value: Any) -> Nested:
    """Lists of lists of numbers as tuples. Raises ValueError for what is not a whole number."""
    return tuple(map(nested, value)) if isinstance(value, list) else whole(value)


PARALLEL = ("partition", "combine", "replicate", "reduce", "pipeline", "batch")


@dataclass(frozen=True, slots=True)
class ParallelTensor:
    """Global `shape`, the `degrees` of its dims, and `replicas`; `letters` is the same state axis by axis."""

    shape: tuple[int, ...]
    degrees: tuple[int, ...]
    replicas: int
    letters: tuple[str, ...]
    dtype: str = "float32"

    def __str__(self) -> str:
        dims = (f"{n}/{d}" if d > 1 else str(n) for n, d in zip(self.shape, self.degrees, strict=True))
        return f"[{', '.join(dims)}]" + (f" x{self.replicas}" if self.replicas > 1 else "")


def kind(letter: str) -> str:
    """`R`, `B`, `P`, `@` or `S`, the kind of flat and spread tensors too."""
    return "S" if letter in ("flat", "spread") else letter[0]


def split_dim(letter: str) -> int:
    """The dim that `S(1)` splits (`S(1.0)`: its outermost atom); the first one for flat and spread tensors."""
    return int(letter[2:-1].partition(".")[0]) if letter[0] == "S" else 0


def tensor(shape: Sequence[int], letters: Sequence[str], sizes: Sequence[int], dtype: str) -> ParallelTensor:
    """A tensor with the degrees and replicas that follow from its letters, on axes of these sizes."""
    degrees, replicas = [1] * len(shape), 1
    for letter, size in zip(letters, sizes, strict=True):
        if kind(letter) in "BP":
            replicas *= size
        elif kind(letter) == "S" and shape:
            degrees[split_dim(letter)] *= size
    return ParallelTensor(tuple(shape), tuple(degrees), replicas, tuple(letters), dtype)


@dataclass(frozen=True, slots=True)
class MachineMapping:
    """Which devices run an operator: a nested array with a dim for each axis of `tasks` (Unity, section 3.2).

    The innermost tuples are the devices that replicate one task: several where an axis neither splits nor replicates.
    """

    tasks: tuple[str, ...]
    devices: tuple[Nested, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """A kernel or a collective of an operator: takes `ns`, runs `count` times a step (see `price_items.Item`)."""

    part: str
    kind: str
    phase: str
    ns: int
    count: int
    axes: tuple[str, ...] = ()
    bytes: int = 0

    @property
    def total_ns(self) -> int:
        return self.ns * self.count


@dataclass(frozen=True, slots=True)
class Node:
    """One operator; `inputs` index earlier nodes, `of` is the node of the plan's graph that it computes or moves.

    Attributes of a parallel operator: `axes` and `degree`, `dim` (with `letter` for an atom of a dim or a flat tensor),
    `first`, and `fused` if it is one message with the operator before it: its work is that of both. `kept` is memory by
    kind, in bytes of the device that holds most. `gradient`: True if a gradient flows back through the node.
    """

    operator: str
    name: str
    inputs: tuple[int, ...]
    tensor: ParallelTensor
    mapping: MachineMapping
    of: int
    attributes: tuple[tuple[str, Attribute], ...] = ()
    gradient: bool = False
    work: tuple[Work, ...] = ()
    kept: tuple[tuple[str, int], ...] = ()

    def __getitem__(self, name: str) -> Any:
        return dict(self.attributes)[name]

    def get(self, name: str, default: Any = None) -> Any:
        return dict(self.attributes).get(name, default)

    @property
    def ns(self) -> int:
        return sum(work.total_ns for work in self.work)

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.kept)


@dataclass(frozen=True)
class ParallelGraph:
    """A PCG on a mesh of named `axes`; `output` is the loss of the step.

    `reserve_bytes` is memory of no operator, `hidden_ns` of the operators' time runs beside that of others, for
    `host_bound_ns` the device waits for the host.
    """

    axes: tuple[tuple[str, int], ...]
    micro_batches: int
    nodes: tuple[Node, ...]
    output: int
    reserve_bytes: int = 0
    hidden_ns: int = 0
    host_bound_ns: int = 0

    def __post_init__(self) -> None:
        verify(self)

    @cached_property
    def objective_ns(self) -> int:
        """Time of a step: the sum over all operators, but for what is hidden, and waiting for the host."""
        return sum(node.ns for node in self.nodes) - self.hidden_ns + self.host_bound_ns

    @cached_property
    def memory_bytes(self) -> int:
        """Memory of the device that holds most."""
        return self.reserve_bytes + sum(node.bytes for node in self.nodes)

    @property
    def mappings(self) -> tuple[MachineMapping, ...]:
        """The distinct machine mappings."""
        return tuple(dict.fromkeys(node.mapping for node in self.nodes))

    def __str__(self) -> str:
        return str(call("graph_text", self))

    def to_json(self) -> dict[str, Any]:
        result: dict[str, Any] = call("graph_to_json", self)
        return result

    @classmethod
    def from_json(cls, data: Any) -> ParallelGraph:
        """Read what `to_json` gave. Raises PartitaError that says what is wrong and where."""
        graph: ParallelGraph = call("graph_from_json", data)
        return graph


# What parallel operators do

_LETTERS: Mapping[tuple[str, bool], tuple[str, str]] = {  # operator, first -> the kinds of letters before and after
    ("partition", False): ("R", "S"),
    ("combine", False): ("S", "R"),
    ("replicate", False): ("R", "B"),
    ("replicate", True): ("R", "P"),
    ("reduce", False): ("P", "R"),
    ("reduce", True): ("B", "R"),
}


def moves(source: str, target: str) -> Iterator[tuple[str, str, bool]]:
    """The operators from one letter of an axis to another: each with the letter it gives, and whether it is `first`."""
    for (operator, first), (before, after) in _LETTERS.items():
        if after == "R" and kind(source) == before and source != target:
            yield operator, "R", first
    for (operator, first), (before, after) in _LETTERS.items():
        if before == "R" and kind(target) == after and source != target:
            yield operator, target, first


def moved(given: ParallelTensor, node: Node, sizes: Mapping[str, int]) -> ParallelTensor:
    """The result of a parallel operator on a tensor. Raises ValueError if it does not apply."""
    if node.operator in ("pipeline", "batch"):
        count, dim, shape = node.get("degree"), node.get("dim"), list(given.shape)
        if count < 1:
            raise ValueError(f"{count} micro-batches")
        if dim is not None:  # without a dim addends are batched: they are summed
            if node.operator == "pipeline" and shape[dim] % count:
                raise ValueError(f"{shape[dim]} items in {count} micro-batches")
            shape[dim] = shape[dim] // count if node.operator == "pipeline" else shape[dim] * count
        return replace(given, shape=tuple(shape))
    before, after = _LETTERS[node.operator, bool(node.get("first"))]
    split = node.get("letter") or f"S({node.get('dim')})"
    old, new = (split if x == "S" else x for x in (before, after))
    letters = dict(zip(sizes, given.letters, strict=True))
    for axis in node.get("axes"):
        if letters.get(axis) != old:
            raise ValueError(f"axis {axis} is at {letters.get(axis)}, not {old}")
        letters[axis] = new
    if node.get("degree") != prod(sizes[axis] for axis in node.get("axes")):
        raise ValueError(f"degree {node.get('degree')} over the axes {', '.join(node.get('axes'))}")
    return tensor(given.shape, tuple(letters.values()), tuple(sizes.values()), given.dtype)


def tasks(letters: Sequence[str], inputs: Sequence[Sequence[str]], axes: Sequence[str]) -> tuple[str, ...]:
    """The axes over which an operator has parallel tasks: it or what it reads is split or replicated there."""
    found = []
    for a, axis in enumerate(axes):
        kinds = {kind(x[a]) for x in (letters, *inputs)}
        if kind(letters[a]) != "@" and kinds & {"S", "B", "P"}:
            found.append(axis)
    return tuple(found)


def verify(graph: ParallelGraph) -> None:
    """Raise PartitaError unless inputs precede readers, parallel operators apply, and states fit their mappings."""
    sizes = dict(graph.axes)
    if len(sizes) != len(graph.axes) or any(size < 1 for size in sizes.values()) or graph.micro_batches < 1:
        raise PartitaError(f"a parallel graph over the axes {graph.axes} with {graph.micro_batches} micro-batches")
    if not 0 <= graph.output < len(graph.nodes):
        raise PartitaError(f"a parallel graph of {len(graph.nodes)} nodes, of which {graph.output} is the output")
    mapped: set[tuple[MachineMapping, tuple[str, ...], int]] = set()
    for index, node in enumerate(graph.nodes):
        try:
            if not all(0 <= i < index for i in node.inputs):
                raise ValueError(f"inputs {node.inputs} are not earlier nodes")
            given = [graph.nodes[i].tensor for i in node.inputs]
            if node.operator in PARALLEL and (len(given) != 1 or moved(given[0], node, sizes) != node.tensor):
                raise ValueError("its input does not give this tensor")
            own = node.tensor
            if tensor(own.shape, own.letters, tuple(sizes.values()), own.dtype) != own:
                raise ValueError(f"tensor {own} does not have the state {' '.join(own.letters)}")
            expected = tasks(own.letters, [x.letters for x in given], tuple(sizes))
            alone = prod(n for x, n in zip(own.letters, sizes.values(), strict=True) if kind(x) == "@")
            if (node.mapping, expected, alone) not in mapped:
                _check_mapping(node.mapping, expected, sizes, alone)
                mapped.add((node.mapping, expected, alone))
            if any(x.ns < 0 or x.count < 0 or x.bytes < 0 for x in node.work) or any(n < 0 for _, n in node.kept):
                raise ValueError("work or memory below 0")
        except (ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
            raise PartitaError(f"parallel graph, node {index} ({node.operator} {node.name!r}): {error}") from error


def _check_mapping(mapping: MachineMapping, expected: tuple[str, ...], sizes: Mapping[str, int], alone: int) -> None:
    """Check tasks and devices, each of which occurs once; the operator is at one of `alone` coordinates."""
    if mapping.tasks != expected:
        raise ValueError(f"a mapping of the tasks {mapping.tasks} of an operator with the tasks {expected}")
    shape = [sizes[a] for a in expected]
    shape.append(prod(sizes.values()) // prod(shape) // alone)
    level: list[Nested] = [mapping.devices]
    for size in shape:
        if not all(isinstance(x, tuple) and len(x) == size for x in level):
            raise ValueError(f"devices {mapping.devices} are not an array of {shape}")
        level = [y for x in level if isinstance(x, tuple) for y in x]
    devices = {x for x in level if isinstance(x, int) and 0 <= x < prod(sizes.values())}
    if len(devices) != len(level):
        raise ValueError(f"devices {mapping.devices} are not distinct numbers below {prod(sizes.values())}")
