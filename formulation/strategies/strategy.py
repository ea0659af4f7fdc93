"""Strategies, derived from index notation: a row says, for one mesh axis, what an operator requires and gives.

For one axis (design, section 3):

    linear, none        x:R     w:R     -> y:R       split b (data)      x:S(b)  w:B     -> y:S(b)
    linear, none        x:B     w:B     -> y:B       split o (columns)   x:B     w:S(o)  -> y:S(o)
    linear, addends     x:P     w:B     -> y:P       split i (rows)      x:S(i)  w:S(i)  -> y:P

A strategy on a mesh is one row per axis. Every row follows from three facts: an index that is free or summed can be
split, an operator computed alike on all ranks may carry addend gradients, and a sum is the sum of its addends. What
index notation does not give is added by special strategies (`special`).
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import prod

from ...model.graph.atoms import Atoms, atoms, factor_sizes, semantics
from ...model.graph.buffer_updates import updated
from ...model.graph.dtypes import FLOATS
from ...model.graph.joined_tables import table_rows
from ...model.graph.layout import B, Layout, P, R, S
from ...model.graph.notation import WHOLE, Access, Call, Notation, Term, accesses, names_of
from ...model.graph.origin import origin
from ...model.graph.pcg import PCG, SOURCES, TRANSFERS
from ...model.graph.sparse_tables import sparse_tables
from ...model.operators.operator import operator
from ..special import Situation, special_rows
from .row import Row

ANY = "*"
"""The name that stands for any row."""


def rows(pcg: PCG, node: int) -> tuple[Row, ...]:
    """All legal rows of a node, in a fixed order; for sources what they can offer. They are the same at any batch."""
    return _all_rows(origin(pcg))[node]


@lru_cache(maxsize=16)
def _all_rows(pcg: PCG) -> tuple[tuple[Row, ...], ...]:
    """The rows of every node; those of nodes that are alike are derived once."""
    if pcg.part is not None:
        whole, places = _all_rows(pcg.part[0]), pcg.part[1]
        moved = (node.op in TRANSFERS for node in pcg.nodes)
        return tuple(
            tuple(_rows(pcg, n)) if own else whole[i] for n, (i, own) in enumerate(zip(places, moved, strict=True))
        )
    known, made = atoms(pcg), dict[object, tuple[Row, ...]]()
    found = []
    for index, node in enumerate(pcg.nodes):
        inputs = tuple(
            (n.op == "parameter", n.shape, n.dtype, n.gradient, table_rows(n), known[i])
            for i in node.inputs
            for n in (pcg.nodes[i],)
        )
        key = node.op, node.attributes, node.shape, node.dtype, node.gradient, known[index], inputs
        if node.op in SOURCES:
            found.append(tuple(_rows(pcg, index)))
            continue
        if key not in made:
            made[key] = tuple(dict.fromkeys(_rows(pcg, index)))
        found.append(made[key])
    return tuple(found)


def rows_taken(pcg: PCG, node: int, inputs: Sequence[Layout], output: Layout) -> list[Row | None]:
    """The row of a node on every axis, by its letters; None where no row has them."""
    by_letters = {(row.inputs, row.output): row for row in rows(pcg, node)}
    return [by_letters.get((tuple(x[axis] for x in inputs), letter)) for axis, letter in enumerate(output)]


def row_names(pcg: PCG, node: int) -> tuple[str, ...]:
    """A node's rows as `--fix` names them: the split index (`o`, `b.0`, `o:1` for its second atom), R, B or P."""
    found = rows(pcg, node)
    several = {r.index[0] for r in found if r.index and r.index[1]}
    counts: dict[str, int] = {}
    names = []
    for row in found:
        if row.special:
            several_rows = sum(r.special == row.special for r in found) > 1
            name = row.special + (f":{row.index[0]}" if several_rows and row.index else "")
        elif row.index is None:
            name = "RBP"[row.output]
        else:
            name = row.index[0].removeprefix("@") + (f":{row.index[1]}" if row.index[0] in several else "")
        counts[name] = counts.get(name, 0) + 1
        names.append(name if counts[name] == 1 else f"{name}'{counts[name]}")
    return tuple(names)


def _rows(pcg: PCG, index: int) -> Iterator[Row]:
    node, known = pcg.nodes[index], atoms(pcg)
    if node.op in SOURCES:
        yield from (Row((), letter) for letter in source_letters(pcg, index))
    elif operator(node.op).creates:
        yield Row((), R)
    elif operator(node.op).view:
        passes = node.gradient
        yield Row((R,), R)
        if passes:
            yield Row((B,), B)
        if node.dtype in FLOATS:
            yield Row((P,), P)
        for a, b in view_atoms(pcg, index).items():
            yield Row((S(a),), S(b), (f"{a}", 0))
    else:
        derived = _derived(
            semantics(pcg, index),
            dict(zip(operator(node.op).named(node), range(len(node.inputs)), strict=True)),
            [known[i] for i in node.inputs],
            [pcg.nodes[i].gradient and node.gradient for i in node.inputs],
            output=known[index],
            gradient=node.gradient,
            additive=node.dtype in FLOATS,
        )
        if node.get("loose"):
            yield Row((), P)
        if node.get("linear", True) is False:  # a backward to which the gradient must come whole
            derived = (row for row in derived if row.output != B)
        # Joined tables are never addends: at P they are spread.
        yield from (row for row in derived if P not in row.inputs or not table_rows(pcg.nodes[node.inputs[0]]))
        sources = tuple(pcg.nodes[i] for i in node.inputs)
        yield from special_rows(Situation(node, sources, tuple(known[i] for i in node.inputs), known[index]))


def source_letters(pcg: PCG, index: int) -> tuple[int, ...]:
    """What a source may offer: an input any split, a parameter R, B or any split, a buffer R, or any if it changes.

    Joined tables may be at P too, which says that they are spread: see `special.spread`.
    """
    node, known = pcg.nodes[index], atoms(pcg)[index]
    splits = tuple(S(a) for a in range(len(known.sizes)))
    if node.op == "buffer" and index not in updated(pcg):
        return (R,)
    spread = (P,) if table_rows(node) else ()  # of joined tables each rank has some columns
    return (R, B, *spread, *splits) if node.gradient and index not in sparse_tables(pcg) else (R, *spread, *splits)


def view_atoms(pcg: PCG, index: int) -> dict[int, int]:
    """For a view: which atom of the output each atom of the input is (all of them, where the two match)."""
    node = pcg.nodes[index]
    mine, its = atoms(pcg)[index], atoms(pcg)[node.inputs[0]]
    if mine.sizes == its.sizes:
        return {a: a for a in range(len(mine.sizes))}
    pairs: dict[int, int] = {}
    i = j = left = right = 0
    # Walk both lists to the places where their products agree; between two such places only equal lists match.
    while i < len(its.sizes) and j < len(mine.sizes):
        left, right = i, j
        a, b = its.sizes[i], mine.sizes[j]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a, i = a * its.sizes[i], i + 1
            else:
                b, j = b * mine.sizes[j], j + 1
        if its.sizes[left:i] == mine.sizes[right:j]:
            pairs.update(zip(range(left, i), range(right, j), strict=True))
    return pairs


def _derived(
    notation: Notation,
    position: dict[str, int],
    inputs: list[Atoms],
    gradients: list[bool],
    output: Atoms,
    gradient: bool,
    additive: bool,
) -> Iterator[Row]:
    whole = tuple(B if g else R for g in gradients)
    yield Row(tuple(R for _ in inputs), R)
    if gradient:
        yield Row(whole, B)
    if additive:
        for letters in _addends(notation.terms, position, whole):
            yield Row(letters, P)
    locked = {i for t in notation.terms for f in t.factors if isinstance(f, Call) for i in f.indices}
    for name in _names(notation):
        if name not in locked:
            yield from _split(notation, name, position, inputs, whole, output)


def _names(notation: Notation) -> tuple[str, ...]:
    """The indices that could be split, in order of appearance: free ones first."""
    names = dict.fromkeys(names_of(notation.output))
    for term in notation.terms:
        for access in accesses(term):
            names.update(dict.fromkeys(names_of(access.indices)))
            for _, inner in access.gathers:
                names.update(dict.fromkeys(names_of(inner.indices)))
    return tuple(n for n in names if n not in (WHOLE, "1"))


def _split(
    notation: Notation,
    name: str,
    position: dict[str, int],
    inputs: list[Atoms],
    whole: tuple[int, ...],
    output: Atoms,
) -> Iterator[Row]:
    """The rows that split index `name`, one for each of its atoms."""
    places: dict[int, set[tuple[int, str]]] = {}  # input -> its dims with this index
    absent: set[int] = set()  # inputs that are also read without it
    for term in notation.terms:
        for access in accesses(term):
            for a in (access, *(g for _, g in access.gathers)):
                dims = {(d, i) for d, i in enumerate(a.indices) if name in i.split()}
                places.setdefault(position[a.operand], set()).update(dims)
                if not dims:
                    absent.add(position[a.operand])
    split = {p: dims for p, dims in places.items() if dims}
    mine = [(d, i) for d, i in enumerate(notation.output) if name in i.split()]
    if any(len(dims) > 1 for dims in split.values()) or absent & split.keys() or len(mine) > 1:
        return
    free = bool(mine)
    # Every term that the index does not sum must come as addends where the others are.
    others = () if free else tuple(t for t in notation.terms if name not in t.sums)
    if not free and any(name in _indices(t) for t in others):
        return
    of_inputs = {p: _numbers(inputs[p], *next(iter(dims)), name, notation) for p, dims in split.items()}
    of_output = _numbers(output, *mine[0], name, notation) if free else None
    sizes = {tuple(inputs[p].sizes[a] for a in numbers) for p, numbers in of_inputs.items()}
    if of_output is not None:
        sizes.add(tuple(output.sizes[a] for a in of_output))
    if len(sizes) != 1:  # a view made the atoms of two operands differ: not split
        return
    for letters in _addends(others, position, whole):
        for k in range(len(sizes.copy().pop())):
            required = tuple(S(of_inputs[p][k]) if p in of_inputs else letters[p] for p in range(len(inputs)))
            yield Row(required, P if of_output is None else S(of_output[k]), (name, k))


def _numbers(known: Atoms, dim: int, index: str, name: str, notation: Notation) -> range:
    """The atoms of a dim, or those of its factor `name` where the dim is a product; none where they do not fit it."""
    numbers = known.of_dim(dim)
    if index == name:
        return numbers
    start = numbers.start
    for factor, size in zip(index.split(), factor_sizes(index, notation.sizes, prod(known.dims[dim])), strict=True):
        stop = start
        while stop < numbers.stop and prod(known.sizes[start:stop]) < size:
            stop += 1
        if prod(known.sizes[start:stop]) != size:
            return range(0)
        if factor == name:
            return range(start, stop)
        start = stop
    raise ValueError(f"{name!r} is no factor of {index!r}")


def _indices(term: Term) -> set[str]:
    return {i for a in accesses(term) for i in names_of(a.indices)}


def _addends(terms: tuple[Term, ...], position: dict[str, int], whole: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Input letters that make every term an addend: of each product one linear factor is at P, the others are whole."""
    choices: list[list[dict[int, int]]] = []
    for term in terms:
        options: list[dict[int, int]] = []
        for chosen in term.factors:
            if isinstance(chosen, Call) and not chosen.linear:
                continue
            letters: dict[int, int] = {}
            fine = True
            for factor in term.factors:
                for access in (factor,) if isinstance(factor, Access) else factor.arguments:
                    for a in (access, *(g for _, g in access.gathers)):
                        p = position[a.operand]
                        letter = P if factor is chosen and a is access else whole[p]
                        fine &= letters.setdefault(p, letter) == letter
            if fine:
                options.append(letters)
        choices.append(options)
    for combination in product(*choices):
        merged: dict[int, int] = {}
        if all(merged.setdefault(p, letter) == letter for part in combination for p, letter in part.items()):
            yield tuple(merged.get(p, letter) for p, letter in enumerate(whole))
