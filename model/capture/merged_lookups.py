"""Look-ups in many tables as one: tables of one width are stored one below the other, in one parameter.

    stack([a[ids[:, 0]], b[ids[:, 1]], c[ids[:, 2]]], 1)
    w[ids + [0, |a|, |a| + |b|]]                             where w = [a; b; c]

One kernel does the work of dozens, its rows spread evenly over ranks however large each table is, and its results are
joined already. FBGEMM's table-batched embeddings do the same for recommendation models, with kernels of their own. The
parameter's attribute `tables` says what it joins: names in the user's module, with their rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, takewhile
from math import prod
from typing import Any

from ..graph.builder import Builder
from ..graph.constants import shared
from ..graph.joined_tables import LOOKUPS
from ..graph.pcg import PCG, live


@dataclass(frozen=True, slots=True)
class _LookUp:
    """One look-up by the ids at `number` along `dim` of `ids`; `result`: its output as joined, perhaps a view of it."""

    node: int
    table: int
    result: int
    ids: int
    dim: int
    number: int


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring inputs of a `cat`, from number `start` on, that one look-up can compute."""

    cat: int
    start: int
    lookups: tuple[_LookUp, ...]

    @property
    def tables(self) -> tuple[int, ...]:
        return tuple(lookup.table for lookup in self.lookups)


def merge_lookups(pcg: PCG) -> PCG:
    """The same graph with one look-up in place of those whose ids are adjacent in one tensor, as are their results.

    Their tables have equal width, dtype and kind of gradient, and no other reader.
    """
    runs = [run for cat in pcg.of("cat") for run in _runs(pcg, cat)]
    if not runs:
        return pcg
    first = {min(run.tables): run for run in runs}
    of_cat = {cat: [run for run in runs if run.cat == cat] for cat in {run.cat for run in runs}}
    builder, number, tables = Builder(pcg.batch), dict[int, int](), dict[_Run, int]()
    for node in pcg.nodes:
        builder.name(node.name)  # nodes keep their names
    for index, node in enumerate(pcg.nodes):
        if index in first:
            tables[first[index]] = _table(builder, pcg, first[index])
        if index not in of_cat:
            builder.nodes.append(replace(node, inputs=tuple(number[i] for i in node.inputs)))
            number[index] = len(builder.nodes) - 1
            continue
        joined = [number[i] for i in node.inputs]
        for run in reversed(of_cat[index]):
            found = _looked_up(builder, pcg, run, tables[run], number[run.lookups[0].ids])
            joined[run.start : run.start + len(run.lookups)] = [found]
        if len(joined) > 1:
            builder.nodes.append(replace(node, inputs=tuple(joined)))
        number[index] = len(builder.nodes) - 1
    builder.nodes, kept = live(shared(builder.nodes), number[pcg.loss])  # equal layers read one tensor of offsets
    builder.aliases = list(pcg.aliases)
    return builder.build(kept[number[pcg.loss]])


# Which look-ups can be merged


def _runs(pcg: PCG, cat: int) -> Iterator[_Run]:
    """The longest runs of inputs of a `cat` that one look-up can compute."""
    found = [_look_up(pcg, cat, source) for source in pcg.nodes[cat].inputs]
    start = 0
    for place, (one, other) in enumerate(pairwise([*found, None]), 1):
        if one is not None and other is not None and _alike(pcg, one, other):
            continue
        lookups = tuple(lookup for lookup in found[start:place] if lookup is not None)
        if len(lookups) > 1 and _place(pcg, cat, lookups[0]) is not None:
            yield _Run(cat, start, lookups)
        start = place


def _look_up(pcg: PCG, cat: int, result: int) -> _LookUp | None:
    """The look-up behind an input of a `cat`, if it and its table have no other reader and its ids are a slice."""

    def through_view(index: int) -> int:
        return pcg.nodes[index].inputs[0] if pcg.nodes[index].op == "view" else index

    index = through_view(result)
    node = pcg.nodes[index]
    if node.op not in LOOKUPS or len(node.inputs) != 2 or pcg.nodes[cat].inputs.count(result) > 1:
        return None
    table = node.inputs[0]
    readers = {table: (index,), index: (cat if index == result else result,), result: (cat,)}
    if any(pcg.consumers[i] != readers[i] for i in readers) or pcg.nodes[table].op != "parameter":
        return None
    if pcg.nodes[table].get("tables") or pcg.nodes[table].name in dict(pcg.aliases).values():
        return None
    piece = pcg.nodes[through_view(node.inputs[1])]
    if piece.op != "slice" or piece["stop"] - piece["start"] != 1:
        return None
    ids, dim = piece.inputs[0], piece["dim"]
    bag = pcg.nodes[ids].shape[-1] if node.op == "embedding_bag" else None
    if bag is not None and (dim == len(piece.shape) - 1 or pcg.nodes[node.inputs[1]].shape[1] != bag):
        return None
    return _LookUp(index, table, result, ids, dim, piece["start"])


def _alike(pcg: PCG, one: _LookUp, other: _LookUp) -> bool:
    """True if the second look-up does the same as the first, by the next ids in another table."""

    def kind(lookup: _LookUp) -> tuple[object, ...]:
        node, table = pcg.nodes[lookup.node], pcg.nodes[lookup.table]
        shapes = node.shape, pcg.nodes[lookup.result].shape
        return node.op, node.attributes, node.dtype, shapes, table.dtype, table.gradient, lookup.ids, lookup.dim

    return kind(one) == kind(other) and one.number + 1 == other.number


def _shape(pcg: PCG, lookup: _LookUp) -> tuple[int, ...]:
    """The shape of a look-up's result: the dims of its ids (of bags without the last one), and the width."""
    ids, node = pcg.nodes[lookup.ids].shape, pcg.nodes[lookup.node]
    inner = len(ids) - (node.op == "embedding_bag")
    return (*ids[: lookup.dim], *ids[lookup.dim + 1 : inner], node.shape[-1])


def _place(pcg: PCG, cat: int, lookup: _LookUp) -> int | None:
    """The position among the dims of `_shape` at which results are joined; None if it is inside a dim."""
    shape, dim = pcg.nodes[lookup.result].shape, pcg.nodes[cat]["dim"]
    outer = [prod(_shape(pcg, lookup)[:place]) for place in range(len(_shape(pcg, lookup)) + 1)]
    return outer.index(prod(shape[:dim])) if prod(shape[:dim]) in outer else None


# The merged look-up


def _table(builder: Builder, pcg: PCG, run: _Run) -> int:
    """Add the table that joins all tables."""
    nodes = [pcg.nodes[i] for i in run.tables]
    shape = (sum(node.shape[0] for node in nodes), nodes[0].shape[1])
    tables = tuple((node.name, node.shape[0]) for node in nodes)
    last = {node.name.rpartition(".")[2] for node in nodes}
    name = ".".join([_name(pcg, run), *(last if len(last) == 1 else ())])
    return builder.parameter(name, shape, nodes[0].dtype, nodes[0].gradient, tables=tables)


def _numbers(builder: Builder, pcg: PCG, run: _Run, ids: int, path: str) -> int:
    """Add the ids of all look-ups, counted from the first row of the first table."""
    one, count = run.lookups[0], len(run.lookups)
    shape = list(builder.nodes[ids].shape)
    if shape[one.dim] != count:
        shape[one.dim] = count
        stop = one.number + count
        ids = builder.add("slice", ids, shape=shape, path=path, dim=one.dim, start=one.number, stop=stop, step=1)
    rows = [pcg.nodes[i].shape[0] for i in run.tables]
    values = tuple(accumulate(rows[:-1], initial=0))
    along = (count, *(1 for _ in shape[one.dim + 1 :]))
    offsets = builder.add("constant", shape=along, dtype="int64", name="offsets", path=path, values=values)
    return builder.add("add", ids, offsets, shape=shape, dtype="int64", name="numbers", path=path)


def _looked_up(builder: Builder, pcg: PCG, run: _Run, table: int, ids: int) -> int:
    """Add the look-up of all ids; its result has the shape of the joined results."""
    one = run.lookups[0]
    node, attributes = pcg.nodes[one.node], dict[str, Any](pcg.nodes[one.node].attributes)
    path = _common(pcg.nodes[lookup.node].path for lookup in run.lookups)

    def view(x: int, shape: Sequence[int]) -> int:
        return x if tuple(shape) == builder.nodes[x].shape else builder.add("view", x, shape=shape, path=path)

    numbers = _numbers(builder, pcg, run, ids, path)
    shape = given = builder.nodes[numbers].shape
    if node.op == "embedding_bag":  # of a matrix, a bag in a row
        shape, given = given[:-1], (prod(given[:-1]),)
        numbers = view(numbers, (*given, builder.nodes[numbers].shape[-1]))
    width, name = node.shape[-1], _name(pcg, run)
    found = builder.add(
        node.op, table, numbers, shape=(*given, width), name=name, path=path, gradient=node.gradient, **attributes
    )
    shape, place = (*shape, width), _place(pcg, run.cat, one)
    found = view(found, shape)
    assert place is not None
    dims = [d for d in range(len(shape)) if d != one.dim]
    dims.insert(place, one.dim)
    if dims != sorted(dims):
        found = builder.add("permute", found, shape=[shape[d] for d in dims], path=path, dims=tuple(dims))
    joined = list(pcg.nodes[one.result].shape)
    joined[pcg.nodes[run.cat]["dim"]] *= len(run.lookups)
    return view(found, joined)


def _name(pcg: PCG, run: _Run) -> str:
    """The list or module that holds the tables."""
    return _common(pcg.nodes[i].name.rpartition(".")[0] for i in run.tables) or "tables"


def _common(names: Iterable[str]) -> str:
    """The common prefix of dotted names."""
    parts = zip(*(name.split(".") for name in names), strict=False)
    return ".".join(part[0] for part in takewhile(lambda part: len(set(part)) == 1, parts))
