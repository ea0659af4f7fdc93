"""Values as sums of products over symbolic indices, in a normal form.

A polynomial is a sum of terms; a term is a coefficient times a product of factors, summed over bound variables. Each
variable runs over an atom. Factors:

    Read      an element of an input; Guard: 1 where an index lies in a dim, otherwise 0
    Fn        an opaque function, of polynomials and of whole rows of them (bodies that bind variables), and of indices
    Count     a power of an atom's size, positive or negative

The functions named by constants here are not opaque: `functions` says what proofs know of them. The normal form adds up
the arguments of the exponentials in a product, and joins sums over the rows of one table that one id selects.

Equal normal forms suggest that values are equal; `solvers.proof` proves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import count, permutations, product
from math import factorial, prod
from typing import TypeAlias

from ..sizes import Size
from .types import Stuck

# Interpreted functions; no operator has such a name. HIT is 1 where an id is the number of a row of a whole table.
POSITION, IS_ZERO, IS_POSITIVE, HIT = "position of", "= 0", "> 0", "row is"
EXP, MAX = "power of e", "largest of"
NOT_LATER = "not later "  # 1 where a key's place is not behind the query's; the first key's never is
CONDITIONS = (IS_ZERO, IS_POSITIVE, HIT)  # 1 or 0
MAX_ORDERS = 5040  # orders of variables tried for a normal form

SIZE = "#"  # begins the name of an atom's size in a place

_numbers = count()


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """An index along an atom: `offset + sum(factor * variable)`, with integers; `SIZE` and an atom name its size."""

    terms: tuple[tuple[str, int], ...] = ()
    offset: int = 0

    @staticmethod
    def of(variable: str) -> Place:
        return Place(((variable, 1),))

    def plus(self, other: Place, factor: int = 1, offset: int = 0) -> Place:
        total = dict(self.terms)
        for name, by in other.terms:
            total[name] = total.get(name, 0) + by * factor
        return Place(tuple(sorted((n, k) for n, k in total.items() if k)), self.offset + other.offset * factor + offset)

    def moved(self, name: str, place: Place) -> Place:
        """The place with another one for a variable."""
        times = dict(self.terms).get(name, 0)
        return Place(tuple(t for t in self.terms if t[0] != name), self.offset).plus(place, times) if times else self

    def renamed(self, names: Mapping[str, str]) -> Place:
        return Place(tuple(sorted((names.get(n, n), k) for n, k in self.terms)), self.offset)


@dataclass(frozen=True, slots=True)
class Read:
    """`tensor[places]`: the places along the replica dim and all others; the name also says which cases they lie in."""

    tensor: str
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Body:
    """A polynomial as a function of variables that run over atoms: a row, or a part of one."""

    variables: tuple[tuple[str, str], ...]
    value: Poly


@dataclass(frozen=True, slots=True)
class Fn:
    """`name(arguments)[places]`."""

    name: str
    arguments: tuple[Body, ...]
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Guard:
    """1 where `0 <= place < atom`."""

    place: Place
    atom: str


@dataclass(frozen=True, slots=True)
class Count:
    """A power of the size of an atom."""

    atom: str
    power: int


Factor: TypeAlias = Read | Fn | Guard | Count


@dataclass(frozen=True, slots=True)
class SymbolicTerm:
    """A product of factors summed over variables (with their atoms), in canonical order and names."""

    variables: tuple[tuple[str, str], ...]
    factors: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class Poly:
    """Terms with nonzero coefficients, in a fixed order."""

    terms: tuple[tuple[SymbolicTerm, Fraction], ...] = ()

    def __add__(self, other: Poly) -> Poly:
        return _collected((*self.terms, *other.terms))

    def __mul__(self, other: Poly) -> Poly:
        return _collected((_product(a, b), c * k) for a, c in self.terms for b, k in other.terms)

    def times(self, factor: Fraction | int) -> Poly:
        return Poly(tuple((t, c * factor) for t, c in self.terms)) if factor else Poly()

    def total(self, variables: Iterable[tuple[str, str]]) -> Poly:
        """The sum over variables; terms in which a variable does not occur are multiplied by its range."""
        added = tuple(variables)
        return _collected((_normal(term.variables + added, term.factors), c) for term, c in self.terms)


def of_terms(terms: Iterable[tuple[SymbolicTerm, Fraction]]) -> Poly:
    """A sum of terms that need not be in normal form."""
    return _collected((_normal(t.variables, t.factors), c) for t, c in terms)


def constant(value: Fraction | int) -> Poly:
    return Poly(((SymbolicTerm((), ()), Fraction(value)),)) if value else Poly()


def factor(value: Factor) -> Poly:
    return Poly(((SymbolicTerm((), (value,)), Fraction(1)),))


def size_of(atoms: Iterable[str], number: int = 1, power: int = 1) -> Poly:
    """A product of sizes, or of their inverses."""
    factors = tuple(Count(atom, power) for atom in sorted(atoms))
    return Poly(((_normal((), factors), Fraction(number) ** power),))


def size_poly(size: Size) -> Poly:
    """A size over atoms as a polynomial."""
    return _collected(t for monomial, by in size.terms for t in size_of(monomial).times(by).terms)


def position(place: Place) -> Poly:
    """A place as a polynomial."""
    return constant(place.offset) + (factor(Fn(POSITION, (), (Place(place.terms),))) if place.terms else Poly())


def is_zero(value: Poly) -> Poly:
    """1 if a value is 0, otherwise 0."""
    return opaque(IS_ZERO, value)


def opaque(name: str, *arguments: Poly) -> Poly:
    """A function of scalars."""
    return factor(Fn(name, tuple(row((), a) for a in arguments)))


def conditional(value: Factor) -> bool:
    """True if a factor is 1 or 0."""
    return isinstance(value, Guard) or (isinstance(value, Fn) and value.name in CONDITIONS)


def variable() -> str:
    """A fresh variable name."""
    return f"v{next(_numbers)}"


def _collected(terms: Iterable[tuple[SymbolicTerm, Fraction]]) -> Poly:
    total: dict[SymbolicTerm, Fraction] = {}
    for term, coefficient in terms:
        total[term] = total.get(term, Fraction(0)) + coefficient
    left = [(term, c) for term, c in total.items() if c]
    return Poly(tuple(sorted(left, key=lambda pair: key(pair[0]))) if len(left) > 1 else tuple(left))


@lru_cache(maxsize=1 << 16)
def key(term: SymbolicTerm) -> str:
    return repr((term.variables, term.factors))


@lru_cache(maxsize=1 << 16)
def _factor_key(value: Factor) -> str:
    return repr(value)


def _product(a: SymbolicTerm, b: SymbolicTerm) -> SymbolicTerm:
    b = _freshened(b)
    a = _freshened(a)
    return _normal(a.variables + b.variables, a.factors + b.factors)


def _freshened(term: SymbolicTerm) -> SymbolicTerm:
    """The term with fresh bound variables, so that it can stand in a product."""
    if not term.variables:
        return term
    names = {v: variable() for v, _ in term.variables}
    return SymbolicTerm(tuple((names[v], a) for v, a in term.variables), tuple(rename(f, names) for f in term.factors))


def rename(value: Factor, names: Mapping[str, str]) -> Factor:
    """Rename the free variables of a factor."""
    if isinstance(value, Read):
        return Read(value.tensor, tuple(p.renamed(names) for p in value.places))
    if isinstance(value, Guard):
        return Guard(value.place.renamed(names), value.atom)
    if isinstance(value, Fn):
        bodies = tuple(Body(b.variables, rename_poly(b.value, names)) for b in value.arguments)
        return Fn(value.name, bodies, tuple(p.renamed(names) for p in value.places))
    return value


def moved(value: Factor, name: str, place: Place) -> Factor:
    """A factor with a place for one of its free variables."""
    if isinstance(value, Read):
        return Read(value.tensor, tuple(p.moved(name, place) for p in value.places))
    if isinstance(value, Guard):
        return Guard(value.place.moved(name, place), value.atom)
    if isinstance(value, Fn):
        bodies = tuple(Body(b.variables, _moved_poly(b.value, name, place)) for b in value.arguments)
        return Fn(value.name, bodies, tuple(p.moved(name, place) for p in value.places))
    return value


def _moved_poly(poly: Poly, name: str, place: Place) -> Poly:
    if name not in free_of(poly):
        return poly
    fresh = ((_freshened(term), coefficient) for term, coefficient in poly.terms)
    return _collected((_normal(t.variables, tuple(moved(f, name, place) for f in t.factors)), c) for t, c in fresh)


def from_end(place: Place, atom: str) -> Place:
    """The same place counted from the other end of an atom."""
    return Place.of(f"{SIZE}{atom}").plus(place, -1, -1)


def _reversed(variables: tuple[tuple[str, str], ...], factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
    """sum(v) f(n - 1 - v) = sum(v) f(v): each variable is counted from the end at which it makes the lesser text."""
    for name, atom in variables:
        mine = [f for f in factors if name in free(f)]
        if not any(f"{SIZE}{atom}" in free(f) for f in mine) or any(_selects(f) for f in mine):
            continue
        others = tuple(moved(f, name, from_end(Place.of(name), atom)) for f in factors)
        if sorted(map(_size_uses, others)) < sorted(map(_size_uses, factors)):
            factors = others
    return factors


def _size_uses(f: Factor) -> tuple[int, str]:
    """How often a factor's text has sizes in places, for the choice between two texts; names do not matter."""
    return repr(f).count(f"'{SIZE}"), f.tensor if isinstance(f, Read) else ""


def rename_poly(poly: Poly, names: Mapping[str, str]) -> Poly:
    """Rename the free variables of a polynomial; bound ones have distinct names (`_normal`)."""
    if not any(v in names for term, _ in poly.terms for f in term.factors for v in free(f)):
        return poly
    fresh = ((_freshened(term), coefficient) for term, coefficient in poly.terms)
    return _collected((_normal(t.variables, tuple(rename(f, names) for f in t.factors)), c) for t, c in fresh)


@lru_cache(maxsize=1 << 16)
def free(value: Factor) -> frozenset[str]:
    """The variables that occur free in a factor."""
    if isinstance(value, Count):
        return frozenset()
    if isinstance(value, Guard):
        return frozenset(n for n, _ in value.place.terms)
    names = {n for place in value.places for n, _ in place.terms}
    if isinstance(value, Fn):
        for body in value.arguments:
            names |= free_of(body.value) - {v for v, _ in body.variables}
    return frozenset(names)


@lru_cache(maxsize=1 << 16)
def free_of(poly: Poly) -> frozenset[str]:
    names: set[str] = set()
    for term, _ in poly.terms:
        for f in term.factors:
            names |= free(f) - {v for v, _ in term.variables}
    return frozenset(names)


def _normal(variables: tuple[tuple[str, str], ...], factors: tuple[Factor, ...]) -> SymbolicTerm:
    """The normal form: powers of sizes collected, unused variables as factors, the others in the least order."""
    named = {f.name for f in factors if isinstance(f, Fn)}
    if HIT in named:
        variables, factors = _selected(variables, factors)
    if EXP in named:
        factors = _one_power(factors)
    if variables and any(n.startswith(SIZE) for f in factors for n in free(f)):
        factors = _reversed(variables, factors)
    used = {name for f in factors for name in free(f)}
    powers: dict[str, int] = {}
    rest: list[Factor] = []
    for f in factors:
        if isinstance(f, Count):
            powers[f.atom] = powers.get(f.atom, 0) + f.power
        else:
            rest.append(f)
    for name, atom in variables:
        if name not in used:
            powers[atom] = powers.get(atom, 0) + 1
    guards = {f for f in rest if conditional(f)}  # idempotent
    rest = [f for f in rest if not conditional(f)] + list(guards)
    counts = tuple(Count(atom, power) for atom, power in sorted(powers.items()) if power)
    kept = tuple((v, a) for v, a in variables if v in used)
    if not kept:
        return SymbolicTerm((), (*counts, *sorted(rest, key=_factor_key)))
    depth = _depth(rest)
    best: tuple[str, tuple[tuple[str, str], ...], tuple[Factor, ...]] | None = None
    for order in _orders(kept, rest):
        names = {v: f"_{depth}_{i}" for i, (v, _) in enumerate(order)}
        ordered = tuple(sorted((rename(f, names) for f in rest), key=_factor_key))
        found = (repr(ordered), tuple((names[v], a) for v, a in order), ordered)
        if best is None or found[0] < best[0]:
            best = found
    assert best is not None
    return SymbolicTerm(best[1], (*counts, *best[2]))


def _one_power(factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
    """exp(a) * exp(b) = exp(a + b); exp(0) = 1."""
    powers = [f for f in factors if isinstance(f, Fn) and f.name == EXP]
    rest = tuple(f for f in factors if not (isinstance(f, Fn) and f.name == EXP))
    total = _collected(t for f in powers for t in f.arguments[0].value.terms)
    return (*rest, Fn(EXP, (Body((), total),))) if total.terms else rest


def _selected(
    variables: tuple[tuple[str, str], ...], factors: tuple[Factor, ...]
) -> tuple[tuple[tuple[str, str], ...], tuple[Factor, ...]]:
    """Variables that one id selects are one, and an id selects exactly one row: sum(v) hit(id, v) = 1."""
    bound, first = dict(variables), dict[tuple[tuple[Body, ...], str], str]()
    for f in factors:
        name = _selects(f)
        if name in bound:
            assert isinstance(f, Fn)
            other = first.setdefault((f.arguments, bound[name]), name)
            if other != name:
                del bound[name]
                return _selected(tuple(bound.items()), tuple(rename(g, {name: other}) for g in factors))
    for (ids, _), name in first.items():
        mine = [f for f in factors if name in free(f)]
        if all(isinstance(f, Fn) and f.name == HIT and f.arguments == ids and _selects(f) == name for f in mine):
            del bound[name]
            factors = tuple(f for f in factors if f not in mine)
    return tuple(bound.items()), factors


def _selects(f: Factor) -> str:
    """The variable that a factor says is the number of a row; empty for other factors."""
    return f.places[0].terms[0][0] if isinstance(f, Fn) and f.name == HIT else ""


def _depth(factors: Iterable[Factor]) -> int:
    """One more than the depth of sums inside the factors. Bound names contain it, so that none is captured."""
    inside = [0]
    for f in factors:
        if isinstance(f, Fn):
            inside += [1 + _body_depth(body) for body in f.arguments]
    return max(inside)


@lru_cache(maxsize=1 << 14)
def _body_depth(body: Body) -> int:
    return max((_depth(term.factors) for term, _ in body.value.terms), default=0) + 1


def _orders(variables: tuple[tuple[str, str], ...], factors: list[Factor]) -> Iterable[tuple[tuple[str, str], ...]]:
    """All orders of the variables; only those alike in atom and uses are permuted."""
    alike: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    others = {v: "*" for v, _ in variables}
    for name, atom in variables:
        names = {**others, name: "!"}
        uses = sorted(repr(rename(f, names)) for f in factors if name in free(f)) if len(variables) > 1 else []
        alike.setdefault((atom, *uses), []).append((name, atom))
    groups = [alike[k] for k in sorted(alike)]
    if prod(factorial(len(g)) for g in groups) > MAX_ORDERS:
        raise Stuck(f"more than {MAX_ORDERS} orders of the sums of one product")
    return (tuple(v for group in choice for v in group) for choice in product(*(permutations(g) for g in groups)))


def row(variables: tuple[tuple[str, str], ...], value: Poly) -> Body:
    """A polynomial as a function of variables, named by their depth and order so that equal functions are equal."""
    depth = max((_depth(term.factors) for term, _ in value.terms), default=0)
    names = {v: f"={depth}_{i}" for i, (v, _) in enumerate(variables)}
    return Body(tuple((names[v], a) for v, a in variables), rename_poly(value, names))
