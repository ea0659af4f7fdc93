"""Atoms: the factors of dims, inferred from the views of a graph.

A dim is a product of atoms, outermost first. A fused qkv weight whose output is viewed as [3, heads, width] has the
atoms 3, heads, width on its output dim, so "split by heads" is a layout of the weight. Atoms are inferred by
unification: dims that share an index of an operator's notation have the same atoms, and a view matches the atoms of its
two shapes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ..operators.operator import operator
from .notation import WHOLE, Access, Notation, accesses
from .origin import origin
from .pcg import PCG, SOURCES, Node


class _Atom:
    """A node of the unification forest: a leaf of some size, or split into smaller atoms."""

    __slots__ = ("batch", "parts", "same", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.same: _Atom | None = None
        self.parts: tuple[_Atom, ...] = ()
        self.batch = False

    def find(self) -> "_Atom":
        """The representative of this atom, with path compression."""
        atom = self
        while atom.same is not None:
            atom = atom.same
        passed = self
        while passed.same is not None:
            passed.same, passed = atom, passed.same
        return atom

    def leaves(self) -> list["_Atom"]:
        atom = self.find()
        return [leaf for part in atom.parts for leaf in part.leaves()] if atom.parts else [atom]


def _leaves(atoms: list[_Atom]) -> list[_Atom]:
    return [leaf for atom in atoms for leaf in atom.leaves()]


def _unify(left: list[_Atom], right: list[_Atom]) -> bool:
    """Match two products of atoms, outermost first, splitting atoms where one is a multiple of the other.

    Returns True if they match to the end; atoms that do not match (6 = 2 x 3 against 3 x 2) are neither joined nor
    split.
    """
    queue, other = _leaves(left), _leaves(right)
    while queue and other:
        a, b = queue.pop(0).find(), other.pop(0).find()
        if a is b:
            continue
        if a.parts or b.parts:  # split by an earlier pair
            queue, other = a.leaves() + queue, b.leaves() + other
        elif a.size == b.size:
            b.same = a
            a.batch |= b.batch
        elif max(a.size, b.size) % min(a.size, b.size):
            return False
        else:
            large, small = (a, b) if a.size > b.size else (b, a)
            large.parts = (_Atom(small.size), _Atom(large.size // small.size))
            large.parts[0].batch = large.batch
            queue, other = a.leaves() + queue, b.leaves() + other
    return not queue and not other


@dataclass(frozen=True, slots=True)
class Atoms:
    """The atoms of one tensor: for every dim the sizes of its factors, outermost first (none for dims of size 1).

    Atoms are numbered from 0 through all dims. `batch`: the atoms that count samples.
    """

    dims: tuple[tuple[int, ...], ...]
    batch: frozenset[int] = frozenset()

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(size for dim in self.dims for size in dim)

    def dim_of(self, atom: int) -> tuple[int, int]:
        """The dim that an atom is in, and its position there."""
        for d, sizes in enumerate(self.dims):
            if atom < len(sizes):
                return d, atom
            atom -= len(sizes)
        raise IndexError(atom)

    def of_dim(self, dim: int) -> range:
        """The numbers of the atoms of a dim."""
        start = sum(len(sizes) for sizes in self.dims[:dim])
        return range(start, start + len(self.dims[dim]))


def semantics(pcg: PCG, index: int) -> Notation:
    """The instantiated notation of a node that is no source, view or creation."""
    node = pcg.nodes[index]
    return operator(node.op).semantics(node, tuple(pcg.nodes[i] for i in node.inputs))


def _indexed(pcg: PCG, index: int, dims: list[list[list[_Atom]]]) -> dict[str, list[list[_Atom]]]:
    """Index of a node's notation -> the atoms of every dim, or factor of a dim, that it runs over."""
    node = pcg.nodes[index]
    notation = semantics(pcg, index)
    numbers = dict(zip(operator(node.op).named(node), node.inputs, strict=True))
    found: dict[str, list[list[_Atom]]] = {}

    def place(number: int, dim: int, name: str) -> None:
        whole = dims[number][dim]
        if " " not in name:
            found.setdefault(name, []).append(whole)
            return
        sizes = factor_sizes(name, notation.sizes, pcg.nodes[number].shape[dim])
        factors = [[_Atom(size)] if size > 1 else [] for size in sizes]
        if _unify(whole, [atom for factor in factors for atom in factor]):
            for part, factor in zip(name.split(), factors, strict=True):
                found.setdefault(part, []).append(factor)

    def visit(access: Access) -> None:
        for dim, name in enumerate(access.indices):
            place(numbers[access.operand], dim, name)
        for _, inner in access.gathers:
            visit(inner)

    for term in notation.terms:
        for access in accesses(term):
            visit(access)
    for dim, name in enumerate(notation.output):
        place(index, dim, name)
    return {name: lists for name, lists in found.items() if name not in (WHOLE, "1")}


def factor_sizes(index: str, sizes: Mapping[str, int], dim: int) -> list[int]:
    """The sizes of the factors of a dim of `dim` elements; the one without known size takes the rest."""
    known = [sizes.get(name, 0) for name in index.split()]
    return [size or dim // prod(s for s in known if s) for size in known]


@lru_cache(maxsize=64)
def atoms(pcg: PCG) -> tuple[Atoms, ...]:
    """The atoms of every node's tensor. At a batch of one, the batch is an atom of size 1."""
    at = origin(pcg)
    return _scaled(atoms(at), at.batch, pcg.batch) if at is not pcg else _found(pcg)[0]


def dimensions(pcg: PCG) -> tuple[tuple[int, ...], ...]:
    """For every node and each of its atoms, the number of the graph-wide dimension that it is.

    Atoms that operators and views unify are one dimension: the samples, a layer's heads, the width of the residual
    stream.
    """
    return _found(origin(pcg))[1]


def numbered_in(pcg: PCG) -> PCG:
    """The whole graph in which `dimensions` are numbered: equal stages of two graphs have those of either."""
    return _found(origin(pcg))[2]


@lru_cache(maxsize=64)
def _found(pcg: PCG) -> tuple[tuple[Atoms, ...], tuple[tuple[int, ...], ...], PCG]:
    """The atoms of every node, the number of each atom's representative, and the graph that has these numbers."""
    if pcg.part is not None:
        of_whole, numbered, whole = _found(pcg.part[0])
        return tuple(of_whole[i] for i in pcg.part[1]), tuple(numbered[i] for i in pcg.part[1]), whole
    dims = [_initial(node, pcg.batch) for node in pcg.nodes]
    for node, lists in zip(pcg.nodes, dims, strict=True):
        batch_dim = node.get("batch_dim") if node.op == "input" else None
        if batch_dim is not None and lists[batch_dim]:
            lists[batch_dim][0].batch = True
    for index, node in enumerate(pcg.nodes):
        if node.op in SOURCES or operator(node.op).creates:
            continue
        if operator(node.op).view:
            for left, right in _matching(node.shape, pcg.nodes[node.inputs[0]].shape):
                _unify(
                    [a for d in left for a in dims[index][d]],
                    [a for d in right for a in dims[node.inputs[0]][d]],
                )
            continue
        for places in _indexed(pcg, index, dims).values():
            first, *others = [atoms for atoms in places if atoms] or [[]]  # a dim of size 1 has none
            for other in others:
                _unify(first, other)
    for alternative, target in pcg.alternatives:
        for one, other in zip(dims[alternative], dims[target], strict=True):
            _unify(one, other)
    result, numbers, dimension = [], dict[int, int](), []
    for lists in dims:
        leaves = [_leaves(dim) for dim in lists]
        flat = [leaf.find() for dim in leaves for leaf in dim]
        dimension.append(tuple(numbers.setdefault(id(leaf), len(numbers)) for leaf in flat))
        result.append(
            Atoms(
                tuple(tuple(leaf.find().size for leaf in dim) for dim in leaves),
                frozenset(i for i, leaf in enumerate(flat) if leaf.batch),
            )
        )
    return tuple(result), tuple(dimension), pcg


def _initial(node: Node, batch: int) -> list[list[_Atom]]:
    """A node's initial atoms: one for each dim, or the factors that its attribute `atoms` names (0: samples)."""
    if node.get("atoms") is None:
        return [[_Atom(size)] if size > 1 else [] for size in node.shape]
    dims = [[_Atom(size or batch) for size in factors] for factors in node["atoms"]]
    for factors, made in zip(node["atoms"], dims, strict=True):
        for size, atom in zip(factors, made, strict=True):
            atom.batch = size == 0
    return dims


def _scaled(found: tuple[Atoms, ...], batch: int, to: int) -> tuple[Atoms, ...]:
    """Atoms found at one batch, for another: those that count samples are scaled."""
    made: dict[Atoms, Atoms] = {}
    for one in found:
        if one not in made:
            numbers = iter(range(len(one.sizes)))
            dims = tuple(
                tuple(size // batch * to if next(numbers) in one.batch else size for size in sizes)
                for sizes in one.dims
            )
            made[one] = Atoms(dims, one.batch)
    return tuple(made[one] for one in found)


def _matching(a: tuple[int, ...], b: tuple[int, ...]) -> list[tuple[range, range]]:
    """The shortest runs of dims of two shapes with equal products."""
    runs, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        i0, j0, left, right = i, j, a[i], b[j]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                left, i = left * a[i], i + 1
            else:
                right, j = right * b[j], j + 1
        runs.append((range(i0, i), range(j0, j)))
    return runs


def batch_dims(pcg: PCG) -> tuple[tuple[int, ...], ...]:
    """For every node the dims that hold the batch atom."""
    result = []
    for found in atoms(pcg):
        result.append(tuple(sorted({found.dim_of(a)[0] for a in found.batch})))
    return tuple(result)
