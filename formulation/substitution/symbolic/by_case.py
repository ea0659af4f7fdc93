"""Functions of what is chosen by a condition or read from a table: f(where(c, a, b)) = where(c, f(a), f(b))."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from .terms import HIT, Factor, Fn, Place, Poly, conditional, factor, free_of, of_terms, rename, variable
from .terms import SymbolicTerm as Term

MAX_CASES = 3  # conditions by which a function is taken case by case


def by_case(function: Callable[..., Poly], values: tuple[Poly, ...]) -> Poly:
    """A function of values that are chosen by conditions, or read from a table, in each case."""
    conditions = dict.fromkeys(f for v in values for t, _ in v.terms for f in t.factors if _decides(f, t))
    if 0 < len(conditions) <= MAX_CASES:
        chosen = next(iter(conditions))
        yes = by_case(function, tuple(_given(v, chosen, True) for v in values))
        no = by_case(function, tuple(_given(v, chosen, False) for v in values))
        return no + (yes + no.times(-1)) * factor(chosen)
    return _through_lookup(function, values)


def _decides(f: Factor, term: Term) -> bool:
    bound = {v for v, _ in term.variables}
    return conditional(f) and not (isinstance(f, Fn) and f.name == HIT) and not bound & _free(f)


def _free(f: Factor) -> frozenset[str]:
    return free_of(factor(f))


def _given(value: Poly, condition: Factor, holds: bool) -> Poly:
    """A value where a condition holds, or where it does not."""
    kept = [(t, c) for t, c in value.terms if holds or condition not in t.factors]
    return of_terms((Term(t.variables, tuple(f for f in t.factors if f != condition)), c) for t, c in kept)


def _through_lookup(function: Callable[..., Poly], values: tuple[Poly, ...]) -> Poly:
    """f(sum(v) hit(id, v) w[v]) = sum(v) hit(id, v) f(w[v]), as exactly one row is hit."""
    hits = [(f, a) for v in values for t, _ in v.terms for f, a in _hits(t)]
    if not hits:
        return function(*values)
    first, atom = hits[0]
    name, inside = variable(), list[Poly]()
    for value in values:
        terms = list[tuple[Term, Fraction]]()
        for term, number in value.terms:
            mine = [f for f, a in _hits(term) if (f.arguments, a) == (first.arguments, atom)]
            if len(mine) > 1:
                return function(*values)
            if mine:
                old = mine[0].places[0].terms[0][0]
                factors = tuple(rename(f, {old: name}) for f in term.factors if f != mine[0])
                term = Term(tuple(v for v in term.variables if v[0] != old), factors)
            terms.append((term, number))
        inside.append(of_terms(terms))
    hit = factor(Fn(HIT, first.arguments, (Place.of(name),)))
    return (by_case(function, tuple(inside)) * hit).total(((name, atom),))


def _hits(term: Term) -> list[tuple[Fn, str]]:
    """The hits of a term by ids that do not depend on its sums, with the atoms of their tables."""
    bound = dict(term.variables)
    return [
        (f, bound[f.places[0].terms[0][0]])
        for f in term.factors
        if isinstance(f, Fn) and f.name == HIT and f.places[0].terms[0][0] in bound
        if not free_of(f.arguments[0].value) & bound.keys()
    ]
