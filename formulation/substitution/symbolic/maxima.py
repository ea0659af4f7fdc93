"""Maxima of numbers and rows in a normal form: `offset + scale * max(candidates)`.

    max(max(a, b), c) = max(a, b, c); max(a, b) of equal or smaller candidates drops them
    max(a + c, b + c) = max(a, b) + c; max(k a, k b) = k max(a, b) > k above 0, the same at all places of a row
    max(f(a), f(b)) = f(max(a, b)) > f does not decrease; min > f does not increase
    max over a row of what does not depend on its place is that

Two candidates a, b are b + max(a - b, 0), with the difference whose first term is positive: |x| = 2 relu(x) - x.
A candidate may be guarded, as the taps of a window are that lie in the padding; one candidate at least is then inside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations, product

from .content import SIGMOID, SOFTPLUS, leading, not_negative, positive, power, sigmoid, softplus, split_free
from .terms import (
    EXP,
    MAX,
    Body,
    Factor,
    Fn,
    Poly,
    SymbolicTerm,
    constant,
    factor,
    free_of,
    of_terms,
    rename_poly,
    row,
    variable,
)

INSIDE = "largest of those inside"
PIVOTS = 3  # candidates up to which differences are taken
MAX_CANDIDATES = 128
ONE = constant(1)
_GROWS: Mapping[str, Callable[[Poly], Poly]] = {EXP: power, SIGMOID: sigmoid, SOFTPLUS: softplus}

Variables = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A number, or a row of them; `guard` is 1 where it counts."""

    value: Poly
    variables: Variables = ()
    guard: Poly = ONE


def largest(values: Iterable[Poly]) -> Poly:
    return maximum([Candidate(v) for v in values])


def maximum(candidates: Sequence[Candidate]) -> Poly:
    """The largest of the candidates; one is inside at least."""
    found = _without_smaller(_flat(candidates))
    if len(found) == 1 and not found[0].variables:
        return found[0].value
    offset, found = _without_offset(found)
    times, found = _without_factors(found)
    scale, found = _without_scale(found)
    outer = _through_function(found)
    if outer is None:
        apart, found = _differences(found)
        more, found = _without_scale(found)
        outer = apart + _in_normal_form(found).times(more)
    return offset + outer.times(scale) * times


def _flat(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Maxima with positive factors inside a candidate are joined with it."""
    out = list[Candidate]()
    for candidate in candidates:
        choices: list[list[Candidate]] = []
        rest = candidate.value
        for term, number in candidate.value.terms:
            inner = [f for f in term.factors if isinstance(f, Fn) and f.name in (MAX, INSIDE)]
            if len(inner) != 1 or term.variables or number < 0:
                continue
            others = SymbolicTerm((), tuple(f for f in term.factors if f != inner[0]))
            times = Poly(((others, number),))
            if not positive(times) or (inner[0].name == INSIDE and candidate.variables):
                continue
            rest = rest + Poly(((term, -number),))
            choices.append([Candidate(times * c.value, c.variables, c.guard) for c in _candidates(inner[0])])
        count = 1
        for choice in choices:
            count *= len(choice)
        if not choices or count > MAX_CANDIDATES:
            out.append(candidate)
            continue
        for chosen in product(*choices):
            value, guard, variables = rest, candidate.guard, candidate.variables
            for c in chosen:
                value, guard, variables = value + c.value, guard * c.guard, (*variables, *c.variables)
            out.append(Candidate(value, variables, guard))
    return out


def _candidates(f: Fn) -> list[Candidate]:
    if f.name == INSIDE:
        pairs = zip(f.arguments[::2], f.arguments[1::2], strict=True)
        return [Candidate(value.value, (), guard.value) for value, guard in pairs]
    found = list[Candidate]()
    for body in f.arguments:
        names = {v: variable() for v, _ in body.variables}
        found.append(Candidate(rename_poly(body.value, names), tuple((names[v], a) for v, a in body.variables)))
    return found


def _without_smaller(candidates: list[Candidate]) -> list[Candidate]:
    """Candidates that another one is never below are dropped; unused variables, too."""
    kept = list[Candidate]()
    for c in candidates:
        used = free_of(c.value)
        kept.append(Candidate(c.value, tuple(v for v in c.variables if v[0] in used), c.guard))
    kept = list(dict.fromkeys(kept))
    out = list[Candidate]()
    for number, c in enumerate(kept):
        others = [*out, *kept[number + 1 :]]
        if not any(_covers(other, c) for other in others):
            out.append(c)
    return out


def _covers(a: Candidate, b: Candidate) -> bool:
    """True if `a` is never below `b` where `b` counts."""
    if a.variables or b.variables or a.guard not in (ONE, b.guard):
        return False
    return not_negative(a.value + b.value.times(-1))


def _without_offset(candidates: list[Candidate]) -> tuple[Poly, list[Candidate]]:
    """What all candidates have as an addend."""
    common: set[tuple[SymbolicTerm, Fraction]] | None = None
    for c in candidates:
        mine = set(split_free(c.value, {v for v, _ in c.variables})[0].terms)
        common = mine if common is None else common & mine
    offset = sum((Poly((pair,)) for pair in common or ()), Poly())
    return offset, [Candidate(c.value + offset.times(-1), c.variables, c.guard) for c in candidates]


def _without_factors(candidates: list[Candidate]) -> tuple[Poly, list[Candidate]]:
    """What is above 0 and a factor of all candidates, the same at all of their places."""
    common: Counter[Factor] | None = None
    for c in candidates:
        for term, _ in c.value.terms:
            bound = {v for v, _ in (*c.variables, *term.variables)}
            mine = Counter(f for f in term.factors if not free_of(factor(f)) & bound and positive(factor(f)))
            common = mine if common is None else common & mine
    if not common:
        return ONE, candidates

    def rest(term: SymbolicTerm) -> SymbolicTerm:
        return SymbolicTerm(term.variables, tuple((Counter(term.factors) - common).elements()))

    return Poly(((SymbolicTerm((), tuple(common.elements())), Fraction(1)),)), [
        Candidate(of_terms((rest(term), number) for term, number in c.value.terms), c.variables, c.guard)
        for c in candidates
    ]


def _differences(candidates: list[Candidate]) -> tuple[Poly, list[Candidate]]:
    """The differences of few numbers to one of them, which is chosen so that they make the least text."""
    if len(candidates) > PIVOTS or any(c.variables or c.guard != ONE for c in candidates):
        return Poly(), candidates
    best: tuple[tuple[int, str], Poly, list[Candidate]] | None = None
    for pivot in candidates:
        moved = [Candidate(c.value + pivot.value.times(-1)) for c in candidates]
        negative = sum(bool(c.value.terms) and leading(c.value) < 0 for c in moved)
        text = negative, repr(_bodies(_without_scale(moved)[1]))
        if best is None or text < best[0]:
            best = text, pivot.value, moved
    assert best is not None
    return best[1:]


def _without_scale(candidates: list[Candidate]) -> tuple[Fraction, list[Candidate]]:
    """A positive number by which all candidates are multiplied: the least text decides which has the coefficient 1."""
    known = [c for c in candidates if c.value.terms]
    if not known:
        return Fraction(1), candidates

    def size(c: Candidate) -> Fraction:
        return abs(c.value.terms[0][1])

    first = min(known, key=lambda c: (repr(_body(Candidate(c.value.times(1 / size(c)), c.variables))), -size(c)))
    scale = size(first)
    return scale, [Candidate(c.value.times(1 / scale), c.variables, c.guard) for c in candidates]


def _through_function(candidates: list[Candidate]) -> Poly | None:
    """f(max), or f(min), if all candidates are multiples of f of something, and f grows."""
    names, signs, inner = set[str](), set[Fraction](), list[Candidate]()
    for c in candidates:
        if len(c.value.terms) != 1:
            return None
        ((term, number),) = c.value.terms
        only = term.factors[0] if len(term.factors) == 1 and not term.variables else None
        if not isinstance(only, Fn) or only.name not in _GROWS:
            return None
        names.add(only.name)
        signs.add(number)
        inner.append(Candidate(only.arguments[0].value, c.variables, c.guard))
    if len(names) != 1 or len(signs) != 1:
        return None
    (name,), (number,) = names, signs
    if number > 0:
        return _GROWS[name](maximum(inner)).times(number)
    lowest = maximum([Candidate(c.value.times(-1), c.variables, c.guard) for c in inner]).times(-1)
    return _GROWS[name](lowest).times(number)


def _in_normal_form(candidates: list[Candidate]) -> Poly:
    if all(c.guard == ONE for c in candidates):
        return factor(Fn(MAX, tuple(_bodies(candidates))))
    pairs = sorted({(row((), c.value), row((), c.guard)) for c in candidates}, key=repr)
    return factor(Fn(INSIDE, tuple(body for pair in pairs for body in pair)))


def _bodies(candidates: list[Candidate]) -> list[Body]:
    return sorted(dict.fromkeys(map(_body, candidates)), key=repr)


def _body(candidate: Candidate) -> Body:
    """The row whose order of variables gives the least text."""
    orders = permutations(candidate.variables) if len(candidate.variables) <= 4 else [candidate.variables]
    return min((row(tuple(order), candidate.value) for order in orders), key=repr)
