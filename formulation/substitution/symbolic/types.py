"""Types of dims with symbolic sizes, and their unification.

A type is a product of radices, outermost first: whole numbers, atoms (symbols), and `Cases`, concatenations of types.
`(d, n)` is a dim of d blocks of n; `(Cases((n,), (m,)),)` a concatenation. An index of a dim has a digit for every
radix, so concatenating, splitting, partitioning and reshaping only regroup digits and need no division.

Unification finds values of the atoms at which two types are equal. `Mismatch`: they differ at all sizes. `Stuck`: they
may be equal in size, but no regrouping of digits shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd, prod
from typing import TypeAlias

from ....model.errors import PartitaError
from ..sizes import Size

SMALL = 16  # up to this many blocks are enumerated


class Mismatch(PartitaError):  # noqa: N818  the word of type checking
    """Two types differ at all sizes, or a state does not fit."""


class Stuck(PartitaError):  # noqa: N818
    """Types cannot decide this."""


@dataclass(frozen=True, slots=True)
class Cases:
    """A concatenation of types."""

    elements: tuple[Type, ...]

    def __str__(self) -> str:
        return "(" + " + ".join(written(e) for e in self.elements) + ")"


Radix: TypeAlias = "int | str | Cases"
Type: TypeAlias = "tuple[Radix, ...]"
UNIT: Type = ()


def written(type_: Type) -> str:
    """A type as an expression."""
    return "*".join(map(str, type_)) or "1"


@lru_cache(maxsize=1 << 14)
def canonical(type_: Type) -> Type:
    """Canonical form: neighbouring numbers multiplied, equal cases as a product."""
    out: list[Radix] = []
    for radix in type_:
        for part in _cases(radix) if isinstance(radix, Cases) else (radix,):
            if part == 1:
                continue
            if isinstance(part, int) and out and isinstance(out[-1], int):
                out[-1] *= part
            else:
                out.append(part)
    return tuple(out)


def _cases(radix: Cases) -> Type:
    elements = [part for element in radix.elements for part in parts(canonical(element))]
    if all(e == elements[0] for e in elements):
        return canonical((len(elements), *elements[0]))
    return (Cases(tuple(elements)),)


def parts(type_: Type) -> tuple[Type, ...]:
    """A canonical type as a concatenation: its cases, or its leading number of blocks."""
    if type_ and isinstance(type_[0], Cases):
        return tuple(canonical((*e, *type_[1:])) for e in type_[0].elements)
    if type_ and isinstance(type_[0], int) and type_[0] <= SMALL:
        return (type_[1:],) * type_[0]
    return (type_,)


def atoms_of(type_: Type) -> Iterator[str]:
    for radix in type_:
        if isinstance(radix, str):
            yield radix
        elif isinstance(radix, Cases):
            for element in radix.elements:
                yield from atoms_of(element)


@dataclass(slots=True)
class Unifier:
    """Atoms and what they stand for.

    `declared`: atoms that the rule names. `fixed`: atoms that stand for every number from 2 on and are never bound.
    `loose`: atoms that may be 1. `sizes`: the sizes of atoms that stand for an expression; `quotients`: those of atoms
    that stand for an expression divided by a number, rounded up. `equalities`: the declared atoms that were bound, each
    with the phase that required it. `given`: dims of inputs without declared sizes; `narrowed`: the target requires
    some of these to agree. `aligned`: two concatenations were unified part by part, though their totals can agree in
    other ways.
    """

    bound: dict[str, Type] = field(default_factory=dict)
    declared: set[str] = field(default_factory=set)
    fixed: set[str] = field(default_factory=set)
    loose: set[str] = field(default_factory=set)
    sizes: dict[str, Size] = field(default_factory=dict)
    quotients: dict[str, tuple[Size, int]] = field(default_factory=dict)
    equalities: list[tuple[str, str]] = field(default_factory=list)
    given: set[str] = field(default_factory=set)
    narrowed: bool = False
    aligned: bool = False
    phase: str = ""
    count: int = 0

    def fresh(self, name: str = "n", loose: bool = False) -> str:
        """A new atom, marked so that no declared one has its name."""
        self.count += 1
        atom = f"{name.split('.')[0]}.{self.count}"
        if loose:
            self.loose.add(atom)
        return atom

    def of_size(self, size: Size, declared: bool = True, ordered: bool = False) -> Type:
        """The type of a size: a number or a symbol; for a product or sum of unknown order, an atom of that size.

        `ordered`: a product of degrees, whose order does not matter, is the product.
        """
        if not size.terms:
            raise Mismatch("a dim of size 0")
        if declared:
            self.declared |= size.symbols
        ((monomial, factor), *more) = size.terms
        if not more and factor < 1:
            raise Mismatch(f"a dim of size {size}")
        if not more and (ordered or len(monomial) + (factor > 1) < 2):
            return canonical((factor, *monomial))
        atom = self.fresh("sum")
        self.sizes[atom] = size
        return (atom,)

    def resolve(self, type_: Type) -> Type:
        """The type with all bound atoms replaced."""
        if not self.bound or not any(atom in self.bound for atom in atoms_of(type_)):
            return canonical(type_)
        out: list[Radix] = []
        for radix in type_:
            if isinstance(radix, Cases):
                out.append(Cases(tuple(self.resolve(e) for e in radix.elements)))
            elif isinstance(radix, str) and radix in self.bound:
                out.extend(self.resolve(self.bound[radix]))
            else:
                out.append(radix)
        return canonical(tuple(out))

    def unify(self, a: Type, b: Type, what: str = "") -> None:
        """Unify two types. Raises Mismatch or Stuck; atoms bound before that stay bound."""
        left, right = _stripped(list(self.resolve(a)), list(self.resolve(b)))
        if not left and not right:
            return
        if not left or not right:
            self._vanish(left or right, what)
        elif len(left) == 1 and isinstance(left[0], str) and self._binds(left[0], right):
            self._bind(left[0], tuple(right), what)
        elif len(right) == 1 and isinstance(right[0], str) and self._binds(right[0], left):
            self._bind(right[0], tuple(left), what)
        else:
            self._match(tuple(left), tuple(right), what)

    def _binds(self, atom: str, other: list[Radix]) -> bool:
        """True if this atom should be bound rather than the other."""
        if atom in self.fixed:
            return False
        single = other[0] if len(other) == 1 else None
        if not isinstance(single, str) or single in self.fixed:
            return True
        return (atom not in self.declared, not self._has_size(atom)) >= (
            single not in self.declared,
            not self._has_size(single),
        )

    def _has_size(self, atom: str) -> bool:
        return atom in self.sizes or atom in self.quotients

    def _bind(self, atom: str, type_: Type, what: str) -> None:
        if atom in atoms_of(type_):
            raise Mismatch(f"{what}{atom} cannot be {written(type_)}")
        sizes = self._size(atom).number, self.size(type_).number
        if None not in sizes and sizes[0] != sizes[1]:
            raise Mismatch(f"{what}a size of {sizes[0]} is not {sizes[1]}")
        self.bound[atom] = type_
        if self.phase in ("target", "outputs") and atom in self.given:
            self.narrowed |= all(a in self.given for a in atoms_of(type_))
        if atom in self.sizes:
            self.equalities.append((self.phase, atom))
            self._solve(atom)
        elif atom in self.quotients:
            self.equalities.append((self.phase, atom))
        self._settle()

    def _settle(self) -> None:
        """Record the declared atoms that now equal expressions over declared ones."""
        for atom in self.declared & self.bound.keys():
            left = {a for a in atoms_of(self.resolve((atom,))) if a not in self.declared and a not in self.sizes}
            if not left and all(atom != other for _, other in self.equalities):
                self.equalities.append((self.phase, atom))

    def _solve(self, atom: str) -> None:
        """Solve for the unknown part of a dim of known size, if there is only one."""
        type_ = self.resolve((atom,))
        new = [r for r in type_ if isinstance(r, str) and r not in self.declared and r not in self.sizes]
        if len(new) != 1 or any(isinstance(r, Cases) for r in type_):
            return
        part = self.sizes[atom].divided(self.size(tuple(r for r in type_ if r != new[0])))
        if part is None:
            return
        (single, *others) = self.of_size(part, ordered=True) or (1,)
        if not others and isinstance(single, str):
            self.bound[new[0]] = (single,)
        elif part.number != 1:
            self.sizes[new[0]] = part

    def _vanish(self, rest: list[Radix], what: str) -> None:
        """Require all of `rest` to be 1."""
        for radix in rest:
            if not isinstance(radix, str) or radix in self.declared or radix in self.fixed:
                raise Mismatch(f"{what}{written(tuple(rest))} is not 1")
            if radix not in self.loose:
                raise Stuck(f"{what}{radix} would have to be 1")
            self.bound[radix] = UNIT
        self._settle()

    def _match(self, left: Type, right: Type, what: str) -> None:
        for a, b in ((left, right), (right, left)):
            if all(isinstance(r, int) for r in a) and _number(a) % _number(b):
                raise Mismatch(f"{what}{written(left)} is not {written(right)}")
            if len(b) == 2 and b[1] in self.loose and len(a) == 1 and isinstance(a[0], int) and isinstance(b[0], str):
                self.bound[str(b[1])] = UNIT
                return self.unify(a, b[:1], what)
        mine, other = list(parts(left)), list(parts(right))
        if len(mine) == 1 and len(other) == 1:
            numbers = [t[0] for t in (left, right) if len(t) == 1 and (isinstance(t[0], int) or t[0] in self.fixed)]
            if len(numbers) == 2:
                raise Mismatch(f"{what}{written(left)} is not {written(right)}")
            raise Stuck(f"{what}{written(left)} against {written(right)}")
        while mine and other and self.resolve(mine[0]) == self.resolve(other[0]):
            mine, other = mine[1:], other[1:]
        while mine and other and self.resolve(mine[-1]) == self.resolve(other[-1]):
            mine, other = mine[:-1], other[:-1]
        if not mine or not other:
            raise Mismatch(f"{what}{written(left)} is not {written(right)}")
        if len(mine) == len(other):
            self.aligned |= any(self.size(a) != self.size(b) for a, b in zip(mine, other, strict=True))
            for a, b in zip(mine, other, strict=True):
                self.unify(a, b, what)
        elif 1 in (len(mine), len(other)):
            one, many = (mine, other) if len(mine) == 1 else (other, mine)
            if one[0] in ((), *[(f,) for f in self.fixed]) or all(isinstance(r, int) for r in (*left, *right)):
                raise Mismatch(f"{what}{written(left)} is not {written(right)}")
            if len(one[0]) == 1 and isinstance(one[0][0], str):
                self.unify(one[0], (Cases(tuple(many)),), what)
            else:
                raise Stuck(f"{what}{written(left)} against {written(right)}")
        else:
            raise Stuck(f"{what}{written(left)} against {written(right)}")

    def within(self, type_: Type, digits: Type, what: str = "") -> Type:
        """The rest of a dim after these leading digits. Raises Mismatch if they do not divide it."""
        digits = self.resolve(digits)
        if not digits:
            return self.resolve(type_)
        rest = self.fresh(next(atoms_of(type_), "n"), loose=True)
        self.unify(type_, (*digits, rest), what)
        return self.resolve((rest,))

    def quotient(self, atom: str) -> tuple[Size, int]:
        """The stated size of an atom, also if it is bound: (size, divisor), rounded up."""
        size, by = self.quotients.get(atom) or (self.sizes[atom], 1)
        return size.substitute({name: self.size((name,)) for name in size.symbols}), by

    def size(self, type_: Type) -> Size:
        """The size of a type as a polynomial over free atoms."""
        total = Size.of(1)
        for radix in self.resolve(type_):
            total = total * self._size(radix)
        return total

    def _size(self, radix: Radix) -> Size:
        if isinstance(radix, int):
            return Size.of(radix)
        if isinstance(radix, Cases):
            total = Size()
            for element in radix.elements:
                total = total + self.size(element)
            return total
        if radix in self.sizes:
            given = self.sizes[radix]
            return given.substitute({name: self.size((name,)) for name in given.symbols})
        return Size((((radix,), 1),))


def _number(type_: Type) -> int:
    """The product of the numbers in a type."""
    return prod(r for r in type_ if isinstance(r, int))


def _stripped(left: list[Radix], right: list[Radix]) -> tuple[list[Radix], list[Radix]]:
    """Both without their common prefix and suffix; leading numbers are divided by their common divisor."""
    for end in (0, -1):
        while left and right:
            a, b = left[end], right[end]
            if a == b:
                left.pop(end), right.pop(end)
            elif isinstance(a, int) and isinstance(b, int) and (g := gcd(a, b)) > 1 and g in (a, b):
                left[end], right[end] = a // g, b // g
                left, right = [r for r in left if r != 1], [r for r in right if r != 1]
            else:
                break
    return left, right


def product_of(types: Iterable[Type]) -> Type:
    return tuple(radix for type_ in types for radix in type_)
