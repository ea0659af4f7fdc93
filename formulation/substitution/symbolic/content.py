"""What a sum has as a factor, what is known of its sign, and functions that are written for one sign of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from .terms import (
    CONDITIONS,
    EXP,
    MAX,
    NOT_LATER,
    Body,
    Count,
    Factor,
    Fn,
    Guard,
    Place,
    Poly,
    SymbolicTerm,
    constant,
    factor,
    free,
    free_of,
    of_terms,
    opaque,
)

INVERSE, ROOT, LOG, SIGMOID, SOFTPLUS = "one over", "root of", "log of", "sigmoid of", "softplus of"
PIVOTS = 6  # terms of a sum up to which a power of e is taken out of it


@dataclass(frozen=True, slots=True)
class Content:
    """`number * product(factors) * exp(power) * rest`; the first term of `rest` has the coefficient 1."""

    number: Fraction
    factors: tuple[Factor, ...]
    power: Poly
    rest: Poly


def power(exponent: Poly) -> Poly:
    """exp(exponent) as it stands."""
    return factor(Fn(EXP, (Body((), exponent),))) if exponent.terms else constant(1)


def content(value: Poly) -> Content:
    """What all terms of a nonzero sum have as a factor, by distributivity. `rest` is 1 if the sum is a product.

    Factors may not depend on what a term sums over. Where terms have different powers of e, the one is taken out that
    leaves the least sum.
    """
    parts = [apart(term) for term, _ in value.terms]
    counts = {a for inside, _, _ in parts for a in inside if isinstance(a, Count)}
    least = {a.atom: min(_power_of(a.atom, inside) for inside, _, _ in parts) for a in counts}
    common = Counter[Factor](f for f in parts[0][0] if not isinstance(f, Count))
    for inside, _, _ in parts[1:]:
        common &= Counter(inside)
    taken = [f for f in common.elements() if not isinstance(f, Count)]
    sizes = tuple(Count(atom, by) for atom, by in sorted(least.items()) if by)
    left = []
    for (term, number), (inside, exponent, outside) in zip(value.terms, parts, strict=True):
        mine = list(inside)
        for f in taken:
            mine.remove(f)
        mine += [Count(c.atom, -c.power) for c in sizes]
        left.append((SymbolicTerm(term.variables, (*outside, *mine)), number, exponent))
    best: tuple[str, Poly, Poly] | None = None
    exponents = list(dict.fromkeys(e for _, _, e in left))
    for pivot in exponents if len(exponents) <= PIVOTS else [Poly()]:
        made = Poly()
        for term, number, exponent in left:
            scalar = SymbolicTerm((), tuple(f for f in term.factors if not _uses(f, term)))
            inner = SymbolicTerm(term.variables, tuple(f for f in term.factors if _uses(f, term)))
            base = of_terms([(scalar, Fraction(1))]) * power(exponent + pivot.times(-1))
            made = made + (base * of_terms([(inner, number)]))
        found = repr([t for t, _ in made.terms]), pivot, made
        best = found if best is None or found[0] < best[0] else best
    assert best is not None
    number = best[2].terms[0][1]
    return Content(number, (*taken, *sizes), best[1], best[2].times(1 / number))


def _uses(f: Factor, term: SymbolicTerm) -> bool:
    return any(v in free(f) for v, _ in term.variables)


def apart(term: SymbolicTerm) -> tuple[tuple[Factor, ...], Poly, tuple[Factor, ...]]:
    """(factors that do not depend on bound variables, the exponent of such powers of e, the other factors)."""
    bound = {v for v, _ in term.variables}
    inside, outside, exponent = list[Factor](), list[Factor](), Poly()
    for f in term.factors:
        if isinstance(f, Fn) and f.name == EXP:
            free_part, rest = split_free(f.arguments[0].value, bound)
            exponent = exponent + free_part
            if rest.terms:
                outside.append(Fn(EXP, (Body((), rest),)))
        elif free(f) & bound:
            outside.append(f)
        else:
            inside.append(f)
    return tuple(inside), exponent, tuple(outside)


def split_free(value: Poly, bound: set[str]) -> tuple[Poly, Poly]:
    """A sum as (the terms without these variables, those with)."""
    without = tuple(pair for pair in value.terms if not free_of(Poly((pair,))) & bound)
    return Poly(without), Poly(tuple(pair for pair in value.terms if pair not in without))


def _power_of(atom: str, factors: tuple[Factor, ...]) -> int:
    return sum(f.power for f in factors if isinstance(f, Count) and f.atom == atom)


def components(value: Poly) -> list[Poly]:
    """A sum of products as a product of sums, where what it sums over comes apart: sum(i, j) a[i] b[j]."""
    if len(value.terms) != 1:
        return [value]
    ((term, number),) = value.terms
    bound = {v for v, _ in term.variables}
    factors = list[Factor]()
    for f in term.factors:
        if isinstance(f, Fn) and f.name == EXP:
            factors += [
                g for pair in f.arguments[0].value.terms for t, _ in power(Poly((pair,))).terms for g in t.factors
            ]
        else:
            factors.append(f)
    groups: list[tuple[frozenset[str], list[Factor]]] = []
    for f in factors:
        mine, together = free(f) & bound, [f]
        for group in [g for g in groups if g[0] & mine]:
            groups.remove(group)
            mine, together = mine | group[0], [*group[1], *together]
        groups.append((mine, together))
    if len(groups) < 2:
        return [value]
    parts = [
        of_terms([(SymbolicTerm(tuple(v for v in term.variables if v[0] in names), tuple(fs)), Fraction(1))])
        for names, fs in groups
    ]
    return [parts[0].times(number), *parts[1:]]


def is_number(value: Poly) -> Fraction | None:
    """The number that a value is; None for others."""
    if not value.terms:
        return Fraction(0)
    (term, number), *more = value.terms
    return number if not more and not term.factors and not term.variables else None


def positive(value: Poly) -> bool:
    """True if a value is known to be above 0: a sum of numbers that are not below 0, one of them above."""
    above = any(c > 0 and all(_positive(f) or _sums_keys(f, t) for f in t.factors) for t, c in value.terms)
    return above and not_negative(value)


def _sums_keys(f: Factor, term: SymbolicTerm) -> bool:
    """True for a causal mask in a sum over all keys: each query sees the first key at least."""
    if not isinstance(f, Fn) or f.name != NOT_LATER or len(f.places) != 2:
        return False
    query, key = f.places
    return bool(query.terms) and any(key == Place.of(name) for name, _ in term.variables)


def not_negative(value: Poly) -> bool:
    """True if a value is known not to be below 0."""
    for term, number in value.terms:
        odd = [f for f, times in Counter(term.factors).items() if times % 2]
        if number < 0 or not all(_positive(f) or _not_negative(f) for f in odd):
            return False
    return True


def _positive(f: Factor) -> bool:
    if isinstance(f, Count):
        return True
    if not isinstance(f, Fn):
        return False
    if f.name in (INVERSE, ROOT):
        return positive(f.arguments[0].value)
    if f.name == MAX:
        return any(positive(b.value) for b in f.arguments)
    return f.name in (EXP, SIGMOID, SOFTPLUS)


def _not_negative(f: Factor) -> bool:
    if isinstance(f, Guard):
        return True
    if not isinstance(f, Fn):
        return False
    if f.name == MAX:
        return any(not_negative(b.value) for b in f.arguments)
    if f.name in (INVERSE, ROOT):
        return not_negative(f.arguments[0].value)
    return f.name in CONDITIONS or f.name.startswith(NOT_LATER)


def leading(value: Poly) -> Fraction:
    """The coefficient of the first term."""
    return value.terms[0][1]


def sigmoid(value: Poly) -> Poly:
    """sigmoid(-a) = 1 - sigmoid(a)."""
    if not value.terms:
        return constant(Fraction(1, 2))
    if leading(value) < 0:
        return constant(1) + opaque(SIGMOID, value.times(-1)).times(-1)
    return opaque(SIGMOID, value)


def softplus(value: Poly) -> Poly:
    """softplus(-a) = softplus(a) - a."""
    if value.terms and leading(value) < 0:
        return opaque(SOFTPLUS, value.times(-1)) + value
    return opaque(SOFTPLUS, value)
