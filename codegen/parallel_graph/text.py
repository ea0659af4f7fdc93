"""A parallel graph as text: one line per operator, equal layers once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ...model.graph.layout import Action
from ..report.words import bytes_text, label, pattern
from .graph import PARALLEL, MachineMapping, Nested, Node, ParallelGraph, Work

WIDEST = 56
"""Width of a column behind which others are aligned, at most."""
MOST_DEVICES = 8
"""On more devices mappings are listed on top, not at every operator."""


def text(graph: ParallelGraph) -> str:
    """Mesh, price, and a line for each operator: what it reads, the tensor that it makes, its devices and its time.

    `[8/2, 64] x4`: 8 items in 2 parts, 64 whole, 4 replicas. Devices are an array over the operator's parallel tasks;
    those in braces replicate a task; large arrays are listed once, on top. `%5|%9` in a block of equal layers: %5 in
    the first, %9 of the layer before in the others.
    """
    mesh = " x ".join(f"{name}={size}" for name, size in graph.axes)
    micro = f", {graph.micro_batches} micro-batches" if graph.micro_batches > 1 else ""
    price = f"{time_text(graph.objective_ns)} a step, {bytes_text(graph.memory_bytes)} a device"
    head = [f"Parallel graph on {mesh}{micro}: {price}.", ""]
    devices = {mapping: devices_text(mapping.devices) for mapping in graph.mappings}
    if prod(size for _, size in graph.axes) > MOST_DEVICES:
        head += [*(f"m{n} = {words}" for n, words in enumerate(devices.values())), ""]
        devices = {mapping: f"m{n}" for n, mapping in enumerate(devices)}
    rows = [row for block in folded(graph) for row in _rows(graph, block, devices)]
    widths = [min(WIDEST, max((len(row[k]) for row in rows if len(row) > 1), default=0)) for k in range(3)]
    lines = ("  ".join(f"{cell:<{w}}" for cell, w in zip(row, (*widths, 0), strict=False)) for row in rows)
    return "\n".join((*head, *(line.rstrip() for line in lines)))


def _rows(graph: ParallelGraph, block: Repeat, devices: Mapping[MachineMapping, str]) -> Iterator[tuple[str, ...]]:
    """The cells of every operator of a block, below a line that says how often the block is repeated."""
    indent = "  " if block.times > 1 else ""
    if block.times > 1:
        yield (f"{block.times} times, {_layers(graph, block)}:",)
    for index in range(block.start, block.start + block.period):
        node = graph.nodes[index]
        words = [] if node.operator in PARALLEL else [node.name]
        times = "  ".join((*words, *_times(node)))
        yield indent + _expression(graph, index, block), str(node.tensor), devices[node.mapping], times


def _layers(graph: ParallelGraph, block: Repeat) -> str:
    """`layers.0-23`: for each repetition the layer to which most operators belong."""
    names = []
    for start in range(block.start, block.start + block.times * block.period, block.period):
        found = (pattern(node.name) for node in graph.nodes[start : start + block.period])
        counts = Counter((f"{name.partition('*')[0]}*", number) for name, number in found if number is not None)
        names.append(counts.most_common(1)[0][0])
    return label(names[0][0], (number for _, number in names))


def _times(node: Node) -> list[str]:
    """Times of a whole step: the kernels of a compute operator in one sum, its own messages by name."""
    named: dict[str, int] = {}
    for work in node.work:
        name = _kind(work) if node.operator in PARALLEL or work.axes else ""
        named[name] = named.get(name, 0) + work.total_ns
    return [f"{name} {time_text(ns)}".strip() for name, ns in named.items() if ns]


def _kind(work: Work) -> str:
    """`backward all-reduce`: of gradients, even if once a step; `recompute all-gather`: repeated by recomputation."""
    if work.phase == "recompute":
        return f"recompute {work.kind}"
    back = work.phase == "backward" or (work.phase == "update" and work.kind != Action.GATHER.value)
    return f"backward {work.kind}" if back else work.kind


def _expression(graph: ParallelGraph, index: int, block: Repeat) -> str:
    """`%7 = Replicate[tensor=4](%3)`."""
    node, second = graph.nodes[index], index + block.period
    following = graph.nodes[second].inputs if block.times > 1 else node.inputs
    inputs = []
    for a, b in zip(node.inputs, following, strict=True):
        carried = a < block.start and b != a
        inputs.append(f"%{a}|%{b}" if carried else f"%{a}")
    return f"%{index} = {operator_text(graph, node)}({', '.join(inputs)})"


def operator_text(graph: ParallelGraph, node: Node) -> str:
    """`Partition[1, tensor=4]`: dim, axes with their sizes, and whether it is `first` or `fused`; others by name."""
    if node.operator not in PARALLEL:
        return node.operator
    sizes, words = dict(graph.axes), []
    if node.get("dim") is not None:
        words.append(str(node.get("letter", f"S({node['dim']})")).removeprefix("S(").removesuffix(")"))
    if node.get("axes"):
        words += [f"{axis}={sizes[axis]}" for axis in node["axes"]]
    else:
        words.append(str(node["degree"]))
    words += [flag for flag in ("first", "fused") if node.get(flag)]
    return f"{node.operator.capitalize()}[{', '.join(words)}]"


def devices_text(devices: Nested) -> str:
    """The array of devices; long rows are abbreviated.

    >>> devices_text((((0,), (1,)), ((2,), (3,)))), devices_text(((0, 1), (2, 3)))
    ('[[0, 1], [2, 3]]', '[{0, 1}, {2, 3}]')
    >>> devices_text(tuple((i,) for i in range(64)))
    '[0, 1, .., 63]'
    """
    if isinstance(devices, int):
        return str(devices)
    leaf = all(isinstance(x, int) for x in devices)
    if leaf and len(devices) == 1:
        return str(devices[0])
    words = [devices_text(x) for x in devices]
    if len(words) > 4:
        words = [*words[:2], "..", words[-1]]
    return f"{{{', '.join(words)}}}" if leaf else f"[{', '.join(words)}]"


def time_text(ns: int) -> str:
    """
    >>> time_text(12_345), time_text(999), time_text(2_000_000)
    ('12.3 us', '999 ns', '2 ms')
    """
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns} ns"


# Equal layers


@dataclass(frozen=True, slots=True)
class Repeat:
    """Nodes `start` to `start + period`, repeated `times` times in a row, equal but for the number of the layer."""

    start: int
    period: int
    times: int


def folded(graph: ParallelGraph) -> Iterator[Repeat]:
    """The graph as blocks: equal layers as one, every other node by itself."""
    signatures = [_signature(node) for node in graph.nodes]
    places: dict[object, list[int]] = {}
    for index, signature in enumerate(signatures):
        places.setdefault(signature, []).append(index)
    start = 0
    while start < len(signatures):
        found = Repeat(start, 1, 1)
        layer = pattern(graph.nodes[start].name)[1]
        if layer is not None and (not start or pattern(graph.nodes[start - 1].name)[1] != layer):
            candidates = [i for i in places[signatures[start]] if i > start]
            for place in candidates[:8]:
                times = _times_equal(graph, signatures, start, place - start)
                if times > 1 and times * (place - start) > found.times * found.period:
                    found = Repeat(start, place - start, times)
        yield found
        start += found.period * found.times


def _signature(node: Node) -> object:
    """What equal layers share at a node: all but inputs, the number of the layer and the site of a dropout."""
    attributes = tuple(pair for pair in node.attributes if pair[0] != "site")
    name = pattern(node.name)[0]
    return node.operator, name, attributes, node.tensor, node.mapping, node.work, node.kept


def _times_equal(graph: ParallelGraph, signatures: Sequence[object], start: int, period: int) -> int:
    """How many times the nodes from `start` on are repeated."""
    times = 1
    while start + (times + 1) * period <= len(signatures) and all(
        signatures[i] == signatures[i - period] and _follows(graph, i, start, period)
        for i in range(start + times * period, start + (times + 1) * period)
    ):
        times += 1
    return times


def _follows(graph: ParallelGraph, index: int, start: int, period: int) -> bool:
    """True if a node reads what its twin one period earlier reads, a layer later, or what all layers read.

    Where the first layer reads a node before the block, the second may read the first layer.
    """
    first = index - period < start + period
    for a, b in zip(graph.nodes[index - period].inputs, graph.nodes[index].inputs, strict=True):
        carried = first and a < start and start <= b < start + period
        if not ((b - a == period and a >= start) or a == b < start or carried):
            return False
    return True
