"""Practitioners' words for strategies: batch, positions, heads, columns, rows."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby, pairwise

from ...formulation.strategies.strategy import rows
from ...model.graph.atoms import atoms
from ...model.graph.layout import P, atom_of, is_split
from ...model.graph.pcg import PCG, SOURCES
from ...model.operators.convolution import CONVOLUTIONS
from ...model.operators.loss import CLASSIFIED, LOSSES
from ...model.sizes import bytes_text as bytes_text
from ...model.wording import runs
from ..plan.plan import Plan

_SCORES = ("attention", "softmax")
_ORDER = ("batch", "channels", "positions", "heads", "classes")  # the first that fits names an atom


@lru_cache(maxsize=8)
def roles(graph: PCG) -> tuple[tuple[str, ...], ...]:
    """The role of every atom of every node: batch, channels, positions, heads, classes or features.

    Atoms that a strategy splits together have the same role; sources and a few operators give it.
    """
    known = atoms(graph)
    start = [0]
    for found in known:
        start.append(start[-1] + len(found.sizes))
    parent = list(range(start[-1]))

    def root(x: int) -> int:
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    for index, node in enumerate(graph.nodes):
        if node.op in SOURCES:
            continue
        for row in rows(graph, index):
            if row.special:  # may split atoms of different roles together
                continue
            pairs = zip((*node.inputs, index), (*row.inputs, row.output), strict=True)
            same = [root(start[i] + atom_of(x)) for i, x in pairs if is_split(x)]
            for other in same[1:]:
                parent[other] = same[0]
    names: dict[int, str] = {}
    for index, atom, role in _seeds(graph):
        place = root(start[index] + atom)
        names[place] = min(role, names.get(place, role), key=_ORDER.index)
    return tuple(
        tuple(names.get(root(start[i] + a), "features") for a in range(len(found.sizes)))
        for i, found in enumerate(known)
    )


def _seeds(graph: PCG) -> Iterator[tuple[int, int, str]]:
    """(node, atom, role) where the node itself gives the role."""
    known = atoms(graph)
    for index, node in enumerate(graph.nodes):
        for atom in range(len(known[index].sizes)):
            dim = known[index].dim_of(atom)[0]
            if atom in known[index].batch:
                yield index, atom, "batch"
            elif node.op == "input" and (dim + 1 < len(node.shape) or not node.dtype.startswith(("float", "bfloat"))):
                yield index, atom, "positions"
            elif node.op in _SCORES and dim + 2 < len(node.shape):
                yield index, atom, "heads"
        for image in (node.inputs[0], index) if node.op in CONVOLUTIONS else ():
            for atom in known[image].of_dim(1):
                yield image, atom, "channels"
        if node.op in CLASSIFIED and len(graph.nodes[node.inputs[0]].shape) > 1:
            for atom in known[node.inputs[0]].of_dim(1):
                yield node.inputs[0], atom, "classes"


def split_word(plan: Plan, index: int, axis: int) -> str:
    """What `axis` splits of one operator: `batch`, `heads`, `columns`, `rows`, ...; `whole` or `addends` if nothing."""
    node, choice = plan.graph.nodes[index], plan.choices[index]
    letters = [*(x[axis] for x in choice.inputs), choice.output[axis]]
    split = [(position, letter) for position, letter in enumerate(letters) if is_split(letter)]
    if letters[0] == P and plan.choices[node.inputs[0]].at:
        return "tables"
    if not split:
        return "addends" if letters[-1] == P else "whole"
    position, letter = split[0]
    owner = (*node.inputs, index)[position]
    role = roles(plan.graph)[owner][atom_of(letter)]
    if role in ("batch", "positions"):
        return role
    if node.op in CONVOLUTIONS:
        into, out = is_split(letters[0]), is_split(letters[-1])
        return "groups" if into and out else "input channels" if into else "output channels"
    for operand, letter in split:
        source = (*node.inputs, index)[operand]
        if plan.graph.nodes[source].op == "parameter" and len(plan.graph.nodes[source].shape) == 2:
            dim = atoms(plan.graph)[source].dim_of(atom_of(letter))[0]
            side = ("columns", "rows")[dim != node.op.startswith("embedding")]
            return f"{side} by {role}" if role == "heads" else side
    return role


# Equal layers


_LAYER = re.compile(r"(?:^|(?<=\.))\d+(?=\.|$)")


def pattern(name: str) -> tuple[str, int | None]:
    """A dotted name with its first number as `*`, and that number: `layers.3.mlp` -> `layers.*.mlp`, 3."""
    match = _LAYER.search(name)
    return (f"{name[: match.start()]}*{name[match.end() :]}", int(match[0])) if match else (name, None)


def label(name: str, numbers: Iterable[int | None]) -> str:
    """A pattern with the layers for which it holds: `layers.*.mlp`, 0..31 -> `layers.0-31.mlp`."""
    return name.replace("*", ranges(n for n in numbers if n is not None), 1)


def ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as ranges.

    >>> ranges([3, 0, 1, 2, 7]), ranges([0, 2, 4, 6])
    ('0-3,7', '0,2..6')
    """
    left = sorted(set(numbers))
    steps = {b - a for a, b in pairwise(left)}
    if len(left) > 3 and len(steps) == 1 and steps != {1}:
        return f"{left[0]},{left[1]}..{left[-1]}"
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs(left))


def equal_layers(
    plan: Plan, nodes: Iterable[int], cells: Callable[[int], tuple[str, ...] | None]
) -> tuple[tuple[str, ...], ...]:
    """A row for every set of nodes with equal cells and names that differ in the number of a layer only."""
    groups: dict[tuple[str, ...], list[int | None]] = {}
    for index in nodes:
        found = cells(index)
        if found is not None:
            name, layer = pattern(plan.graph.nodes[index].name)
            groups.setdefault((name, *found), []).append(layer)
    return tuple((label(name, layers), *found) for (name, *found), layers in groups.items())


def recompute_text(recompute: Mapping[str, str]) -> str:
    """The recomputed segments, by mode: `full: layers.0-15; selective: layers.16-31`."""
    groups: dict[tuple[str, str], list[int | None]] = {}
    for name, mode in recompute.items():
        text, layer = pattern(name)
        groups.setdefault((mode, text), []).append(layer)
    by_mode: dict[str, list[str]] = {}
    for (mode, text), layers in groups.items():
        by_mode.setdefault(mode, []).append(label(text, layers))
    return "; ".join(f"{mode}: {', '.join(names)}" for mode, names in sorted(by_mode.items()))


def module_of(graph: PCG, index: int) -> tuple[str, int | None]:
    """The part of the model that a node belongs to: `layers.*.attention`, `token_embedding`, `loss`."""
    node = graph.nodes[index]
    if node.op in LOSSES:
        return "loss", None
    name, number = pattern(node.path)
    parts = name.split(".")
    depth = parts.index("*") + 2 if "*" in parts else 1
    return ".".join(parts[:depth]) or "(top level)", number


_ENTRY = re.compile(r"^(.*?)(?:^|\.)(\d+)(?:\.|$)")


def contents(graph: PCG) -> str:
    """The parts of the user's module in a stage: `wte, h.0 to 5`."""
    found: list[str] = []
    for prefix, group in groupby(dict.fromkeys(_places(graph)), key=lambda place: place[0]):
        numbers = [number for _, number in group if number >= 0]
        if numbers:
            span = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
            found.append(f"{prefix}.{span}".lstrip("."))
        else:
            found.append(prefix)
    words = ", ".join(dict.fromkeys(found))
    return words if len(words) < 90 else f"{found[0]} to {found[-1]}"


def _places(graph: PCG) -> Iterator[tuple[str, int]]:
    """(path, index) of entries of outermost lists, and (path, -1) of other modules with weights, in order."""
    for node in graph.nodes:
        if node.op in SOURCES or not node.path:
            continue
        match = _ENTRY.match(node.path)
        if match:
            yield match[1], int(match[2])
        elif any(graph.nodes[i].op == "parameter" for i in node.inputs):
            yield node.path, -1


# Numbers


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def shape_text(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "scalar"
