"""Z3 decides whether two values are equal at every point, at all sizes.

Inputs and opaque functions are uninterpreted functions of whole-numbered places. Every sum of the source's value
becomes an unknown function of the places outside it. A sum of the target's value shares one only after Z3 has
proved their integrands equal at every point (`unsat` of unequal); normal forms only suggest which pairs to try. Rows
that opaque functions take are matched the same way. A last query, a polynomial over all unknowns, decides.

The trusted base: finite sums are functions of their integrands and may be reordered, and the operators' meanings.
"""

import time
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from ...formulation.substitution.sizes import Size
from ...formulation.substitution.symbolic.content import (
    INVERSE,
    ROOT,
    SIGMOID,
    SOFTPLUS,
    apart,
    components,
    leading,
    not_negative,
    positive,
    power,
)
from ...formulation.substitution.symbolic.maxima import INSIDE
from ...formulation.substitution.symbolic.terms import (
    EXP,
    HIT,
    IS_POSITIVE,
    MAX,
    POSITION,
    SIZE,
    Body,
    Count,
    Factor,
    Fn,
    Guard,
    Place,
    Poly,
    Read,
    SymbolicTerm,
    conditional,
    free_of,
    of_terms,
    size_poly,
)
from ...formulation.substitution.symbolic.types import Unifier
from ..backends.z3_thread import checked

TRIES = 8  # sums of the source to compare with each sum of the target


class Decider:
    """The proof of one rule, with its own Z3 context."""

    def __init__(self, unifier: Unifier, seconds: float = 10.0, defined: bool = False) -> None:
        import z3

        self.unifier, self.defined = unifier, defined
        self.z3, self.until = z3, time.perf_counter() + seconds
        self.context = z3.Context()
        self.solver = z3.Solver(ctx=self.context)
        self._symbols: dict[tuple[str, int, int], Any] = {}
        self._sums: list[tuple[SymbolicTerm, Any]] = []  # of the source: a sum, and its unknown
        self._bodies: list[tuple[Body, Any]] = []
        self._of_source: dict[SymbolicTerm | Body, Any] = {}
        self._known = self._of_source
        self._target = False
        self._counts: dict[str, Any] = {}
        self._ids: dict[str, list[tuple[tuple[Place, ...], Any]]] = {}

    def learn(self, ids: Body, rows: Size) -> None:
        """Assume that elements of an input are row numbers; ids that are not plain input elements teach nothing."""
        read = _element(ids)
        if read is not None:
            self._ids.setdefault(read.tensor, []).append((read.places, self._value(size_poly(rows))))

    def assume(self, large: Poly, small: Poly) -> None:
        """Assume that a number is not below another one."""
        self.solver.add(self._value(large) >= self._value(small))

    def within(self, ids: Body, rows: Size) -> bool:
        """True if Z3 proves that ids are row numbers."""
        self._target, self._known = True, {}
        number, count = self._value(ids.value), self._value(size_poly(rows))
        return self._never(self.z3.Or(number < 0, number >= count), ids.variables)

    def equal(self, source: Poly, target: Poly, variables: Sequence[tuple[str, str]] = ()) -> bool:
        """True if Z3 proves two values equal for all variables within their atoms; False proves nothing.

        The variables' names must be new.
        """
        self.solver.add(*self._inside(variables))
        self._target, self._known = False, self._of_source
        left = self._value(source)
        self._target, self._known = True, {}
        right = self._value(target)
        return self._proved(left, right)

    def _proved(self, left: Any, right: Any, variables: Sequence[tuple[str, str]] = ()) -> bool:
        """True if two expressions are equal at every point within the variables' atoms."""
        unequal = self.z3.simplify(left != right, som=True)
        return bool(self.z3.is_false(unequal)) or self._never(unequal, variables)  # rewriting alone decides most

    def _never(self, condition: Any, variables: Sequence[tuple[str, str]] = ()) -> bool:
        """True if a condition holds nowhere within the variables' atoms."""
        inside = self._inside(variables)
        self.solver.push()
        try:
            self.solver.add(*inside, condition)
            return checked(self.solver, self.until) == "unsat"
        finally:
            self.solver.pop()

    def _inside(self, variables: Sequence[tuple[str, str]]) -> list[Any]:
        places = [(self._variable(name), self._count(atom)) for name, atom in variables]
        return [self.z3.And(place >= 0, place < count) for place, count in places]

    def _value(self, poly: Poly) -> Any:
        z3 = self.z3
        terms = []
        for term, coefficient in poly.terms:
            number = z3.RealVal(str(coefficient), self.context)
            if term.variables:
                outside, sums = self._taken_out(term)
                terms.append(self._factors(self._product(number, list(map(self._sum, sums))), outside))
            else:
                terms.append(self._factors(number, term.factors))
        return z3.Sum(terms) if terms else z3.RealVal(0, self.context)

    def _taken_out(self, term: SymbolicTerm) -> tuple[list[Factor], list[SymbolicTerm]]:
        """Factors before the sum, and the sum; with definitions, all that do not depend on it, and several sums."""
        if not self.defined:
            outside: list[Factor] = [f for f in term.factors if isinstance(f, Count)]
            return outside, [SymbolicTerm(term.variables, tuple(f for f in term.factors if not isinstance(f, Count)))]
        free, exponent, bound = apart(term)
        powers = [f for t, _ in power(exponent).terms for f in t.factors]
        sums = components(of_terms([(SymbolicTerm(term.variables, bound), Fraction(1))]))
        return [*free, *powers], [only for part in sums for only, _ in part.terms]

    def _product(self, number: Any, factors: list[Any]) -> Any:
        for f in factors:
            number = number * f
        return number

    def _factors(self, number: Any, factors: Sequence[Factor]) -> Any:
        """A product that is 0 unless all conditions among its factors hold."""
        product = self._product(number, [self._factor(f) for f in factors if not conditional(f)])
        conditions = [self._condition(f) for f in factors if conditional(f)]
        if not conditions:
            return product
        return self.z3.If(self.z3.And(conditions), product, self.z3.RealVal(0, self.context))

    def _integrand(self, term: SymbolicTerm) -> Any:
        return self._factors(self.z3.RealVal(1, self.context), term.factors)

    def _sum(self, term: SymbolicTerm) -> Any:
        """The unknown that stands for a sum."""
        if term not in self._known:
            found = self._like(term) if self._target else None
            conditions = [self._condition(f) for f in term.factors if conditional(f)]
            if found is None and conditions and self._never(self.z3.And(conditions), term.variables):
                found = self.z3.RealVal(0, self.context)
            elif found is None:
                found = self._unknown("sum", sorted(free_of(Poly(((term, 1),)))))  # type: ignore[arg-type]
                if not self._target:
                    self._sums.append((term, found))
            self._known[term] = found
        return self._known[term]

    def _like(self, term: SymbolicTerm) -> Any | None:
        """The unknown of a source sum whose integrand Z3 proves equal; None if there is none."""
        atoms = [a for _, a in term.variables]
        candidates = [(t, s) for t, s in self._sums if [a for _, a in t.variables] == atoms]
        candidates.sort(key=lambda pair: (pair[0] != term, _unconditional(pair[0]) != _unconditional(term)))
        mine = self._integrand(term)
        for other, symbol in candidates[:TRIES]:
            if other.variables == term.variables and self._proved(self._integrand(other), mine, term.variables):
                return symbol
        return None

    def _body(self, body: Body) -> Any:
        """The unknown that stands for a row as an argument; a single number stands for itself."""
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
            read = self._call(f"read {f.tensor}", [], [self._place(p) for p in f.places])
            for places, rows in self._ids.get(f.tensor, ()):
                if all(p.terms or p == q for p, q in zip(places, f.places, strict=True)):
                    self.solver.add(read >= 0, read < rows)
            return read
        if conditional(f):
            return z3.If(self._condition(f), z3.RealVal(1, self.context), z3.RealVal(0, self.context))
        if isinstance(f, Count):
            # A normal form collects powers of a size, so an inverse is an independent unknown.
            base = z3.ToReal(self._count(f.atom)) if f.power > 0 else self._call(f"inverse {f.atom}", [], [])
            return self._product(z3.RealVal(1, self.context), [base] * abs(f.power))
        assert isinstance(f, Fn)
        if f.name == POSITION:
            return z3.ToReal(self._place(f.places[0]))
        if f.name in (MAX, INSIDE):
            return self._largest(f)
        arguments = [self._body(body) for body in f.arguments]
        made = self._call(f"fn {f.name}", arguments, [self._place(p) for p in f.places])
        for fact in self._facts(f, made, arguments):
            self.solver.add(fact)
        return made

    def _largest(self, f: Fn) -> Any:
        """The largest of numbers, of unknowns for rows, and of numbers that count where their guards are 1."""
        z3 = self.z3
        if f.name == MAX:
            counted = [(z3.BoolVal(True, self.context), self._most(body)) for body in f.arguments]
        else:
            pairs = zip(f.arguments[::2], f.arguments[1::2], strict=True)
            counted = [(self._value(guard.value) == 1, self._value(body.value)) for body, guard in pairs]
        some, best = counted[0]
        for counts, value in counted[1:]:
            best = z3.If(counts, z3.If(z3.And(some, best >= value), best, value), best)
            some = z3.Or(some, counts)
        return best

    def _most(self, body: Body) -> Any:
        return self._call("largest of a row", [self._body(body)], []) if body.variables else self._value(body.value)

    def _facts(self, f: Fn, made: Any, arguments: list[Any]) -> list[Any]:
        """What holds of a defined function at every point."""
        if f.name == EXP:
            exponent = f.arguments[0].value
            opposite = [made * self._value(power(exponent.times(-1))) == 1] if leading(exponent) < 0 else []
            return [made > 0, *opposite]
        if f.name == SIGMOID:
            risen = self._value(power(f.arguments[0].value))
            return [made > 0, made < 1, made * (1 + risen) == risen]
        if f.name == SOFTPLUS:
            return [made > 0, made > arguments[0]]
        if f.name == INVERSE and positive(f.arguments[0].value):
            return [made > 0, made * arguments[0] == 1]
        if f.name == ROOT and not_negative(f.arguments[0].value):
            return [made >= 0, arguments[0] >= 0, made * made == arguments[0]]
        if f.name == ROOT:
            return [self.z3.Implies(arguments[0] >= 0, self.z3.And(made >= 0, made * made == arguments[0]))]
        return []

    def _condition(self, f: Factor) -> Any:
        """The condition under which a factor that is 1 or 0 is 1."""
        if isinstance(f, Guard):
            place = self._place(f.place)
            return self.z3.And(place >= 0, place < self._count(f.atom))
        assert isinstance(f, Fn)
        whole = self._whole(f.arguments[0].value)
        value = self._value(f.arguments[0].value) if whole is None else whole
        if f.name == HIT:
            return value == self.z3.ToReal(self._place(f.places[0]))
        return value > 0 if f.name == IS_POSITIVE else value == 0

    def _whole(self, value: Poly) -> Any | None:
        """A sum of places as a whole number; None for others."""
        total = self.z3.IntVal(0, self.context)
        for term, number in value.terms:
            places = [f.places[0] for f in term.factors if isinstance(f, Fn) and f.name == POSITION]
            if number.denominator > 1 or term.variables or len(term.factors) > 1 or len(places) < len(term.factors):
                return None
            total = total + int(number) * (self._place(places[0]) if places else 1)
        return total

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
        """The size of an atom, at least 1, with the known facts asserted."""
        if atom not in self._counts:
            count = self._counts[atom] = self.z3.Int(f"size {atom}", self.context)
            self.solver.add(count >= 1)
            if atom in self.unifier.sizes:
                self.solver.add(count == self._size(self.unifier.size((atom,))))
            elif atom in self.unifier.quotients:
                length, by = self.unifier.quotient(atom)
                self.solver.add(by * (count - 1) < self._size(length), self._size(length) <= by * count)
        return self._counts[atom]

    def _size(self, size: Size) -> Any:
        total = self.z3.IntVal(0, self.context)
        for monomial, factor in size.terms:
            total = total + self._product(self.z3.IntVal(factor, self.context), list(map(self._count, monomial)))
        return total

    def _variable(self, name: str) -> Any:
        if name.startswith(SIZE):
            return self._count(name.removeprefix(SIZE))
        return self.z3.Int(name, self.context)

    def _place(self, place: Place) -> Any:
        value = self.z3.IntVal(place.offset, self.context)
        for name, times in place.terms:
            value = value + self._variable(name) * times
        return value


def _unconditional(term: SymbolicTerm) -> set[Factor]:
    return {f for f in term.factors if not conditional(f)}


def _element(ids: Body) -> Read | None:
    """The input element that a row is, if it is one whose other places are numbers; otherwise None."""
    terms = ids.value.terms
    if len(terms) != 1 or terms[0][1] != 1 or terms[0][0].variables or len(terms[0][0].factors) != 1:
        return None
    (read,) = terms[0][0].factors
    if not isinstance(read, Read):
        return None
    counted = [p for p in read.places if p.terms]
    plain = all(p == Place.of(p.terms[0][0]) for p in counted)
    return read if plain and len(set(counted)) == len(counted) else None
