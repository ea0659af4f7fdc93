"""Z3 decides whether two values are equal at every point, at all sizes.

Inputs and opaque functions are uninterpreted functions of whole-numbered places. Every sum of the source's value gets
an unknown of its own, a function of the places outside of it. A sum of the target's value shares one only after Z3 has
proved their integrands equal at every point (`unsat` of unequal); the normal forms merely say which pairs to try. Rows
that opaque functions take are told alike in the same way. A last query, a polynomial over all these unknowns, decides.

Trusted are thus that finite sums are functions of their integrands and may be reordered, and what operators mean.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ...formulation.substitution.symbolic.terms import Body, Count, Factor, Guard, Place, Poly, Read, Term, free_of
from ..z3check import checked

TRIES = 8  # sums of the source that a sum of the target is compared with


class Decider:
    """One rule's proof. Its Z3 context lives as long as it does."""

    def __init__(self, seconds: float = 10.0) -> None:
        import z3

        self.z3, self.until = z3, time.perf_counter() + seconds
        self.context = z3.Context()
        self.solver = z3.Solver(ctx=self.context)
        self.queries = 0
        self._symbols: dict[tuple[str, int, int], Any] = {}
        self._sums: list[tuple[Term, Any]] = []  # of the source: a sum, and its unknown
        self._bodies: list[tuple[Body, Any]] = []
        self._known: dict[Term | Body, Any] = {}
        self._target = False

    def equal(self, source: Poly, target: Poly) -> bool:
        """Whether Z3 proves two values equal. False says nothing but that it does not."""
        self._target, self._known = False, {}
        left = self._value(source)
        self._target, self._known = True, {}
        right = self._value(target)
        return self._proved(left, right)

    def _proved(self, left: Any, right: Any, variables: Sequence[tuple[str, str]] = ()) -> bool:
        """Whether two expressions are equal at every point, the variables being within their atoms."""
        self.queries += 1
        unequal = self.z3.simplify(left != right, som=True)
        if self.z3.is_false(unequal):  # Z3's rewriting alone decides most
            return True
        self.solver.push()
        try:
            for name, atom in variables:
                place = self._variable(name)
                self.solver.add(place >= 0, place < self._count(atom))
            self.solver.add(unequal)
            return checked(self.solver, self.until) == "unsat"
        finally:
            self.solver.pop()

    def _value(self, poly: Poly) -> Any:
        z3 = self.z3
        terms = []
        for term, coefficient in poly.terms:
            number = z3.RealVal(str(coefficient), self.context)
            if term.variables:
                outside = [f for f in term.factors if isinstance(f, Count)]
                inside = Term(term.variables, tuple(f for f in term.factors if not isinstance(f, Count)))
                terms.append(self._product(number, [*map(self._factor, outside), self._sum(inside)]))
            else:
                terms.append(self._product(number, list(map(self._factor, term.factors))))
        return z3.Sum(terms) if terms else z3.RealVal(0, self.context)

    def _product(self, number: Any, factors: list[Any]) -> Any:
        for f in factors:
            number = number * f
        return number

    def _integrand(self, term: Term) -> Any:
        return self._product(self.z3.RealVal(1, self.context), list(map(self._factor, term.factors)))

    def _sum(self, term: Term) -> Any:
        """The unknown that a sum is."""
        if term not in self._known:
            found = self._like(term) if self._target else None
            if found is None:
                found = self._unknown("sum", sorted(free_of(Poly(((term, 1),)))))  # type: ignore[arg-type]
                if not self._target:
                    self._sums.append((term, found))
            self._known[term] = found
        return self._known[term]

    def _like(self, term: Term) -> Any | None:
        """The unknown of a sum of the source with the same integrand, by Z3."""
        atoms = [a for _, a in term.variables]
        candidates = [(t, s) for t, s in self._sums if [a for _, a in t.variables] == atoms]
        candidates.sort(key=lambda pair: pair[0] != term)
        mine = self._integrand(term)
        for other, symbol in candidates[:TRIES]:
            if other.variables == term.variables and self._proved(self._integrand(other), mine, term.variables):
                return symbol
        return None

    def _body(self, body: Body) -> Any:
        """The unknown that stands for a row, as an argument; for a number it is the number."""
        if not body.variables:
            return self._value(body.value)
        if body not in self._known:
            found = None
            if self._target:
                same = [(b, s) for b, s in self._bodies if b.variables == body.variables]
                same.sort(key=lambda pair: pair[0] != body)
                mine = self._value(body.value)
                for other, symbol in same[:TRIES]:
                    if self._proved(self._value(other.value), mine, body.variables):
                        found = symbol
                        break
            if found is None:
                bound = {v for v, _ in body.variables}
                found = self._unknown("row", sorted(free_of(body.value) - bound))
                if not self._target:
                    self._bodies.append((body, found))
            self._known[body] = found
        return self._known[body]

    def _unknown(self, kind: str, outside: Sequence[str]) -> Any:
        return self._call(f"{kind} {len(self._symbols)}", [], [self._variable(name) for name in outside])

    def _factor(self, f: Factor) -> Any:
        z3 = self.z3
        if isinstance(f, Read):
            return self._call(f"read {f.tensor}", [], [self._place(p) for p in f.places])
        if isinstance(f, Guard):
            place = self._place(f.place)
            inside = z3.And(place >= 0, place < self._count(f.atom))
            return z3.If(inside, z3.RealVal(1, self.context), z3.RealVal(0, self.context))
        if isinstance(f, Count):
            # Powers of a size are together in a normal form, so the inverse is an unknown like any other.
            base = z3.ToReal(self._count(f.atom)) if f.power > 0 else self._call(f"inverse {f.atom}", [], [])
            return self._product(z3.RealVal(1, self.context), [base] * abs(f.power))
        arguments = [self._body(body) for body in f.arguments]
        return self._call(f"fn {f.name}", arguments, [self._place(p) for p in f.places])

    def _call(self, name: str, values: list[Any], places: list[Any]) -> Any:
        z3, key = self.z3, (name, len(values), len(places))
        if key not in self._symbols:
            real, integer = z3.RealSort(self.context), z3.IntSort(self.context)
            sorts = [real] * len(values) + [integer] * len(places) + [real]
            text = f"{name}/{len(values)}/{len(places)}"
            self._symbols[key] = z3.Function(text, *sorts) if len(sorts) > 1 else z3.Const(text, real)
        symbol = self._symbols[key]
        return symbol(*values, *places) if values or places else symbol

    def _count(self, atom: str) -> Any:
        """The size of an atom."""
        return self.z3.Int(f"size {atom}", self.context)

    def _variable(self, name: str) -> Any:
        return self.z3.Int(name, self.context)

    def _place(self, place: Place) -> Any:
        value = self.z3.IntVal(place.offset, self.context)
        for name, times in place.terms:
            value = value + self._variable(name) * times
        return value
