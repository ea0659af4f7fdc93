"""The number that a symbolic value stands for, at given sizes and inputs: normal forms and axioms must keep it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from partita.formulation.substitution.symbolic.content import INVERSE, LOG, ROOT, SIGMOID, SOFTPLUS
from partita.formulation.substitution.symbolic.indices import Index, every
from partita.formulation.substitution.symbolic.infer import Typed
from partita.formulation.substitution.symbolic.maxima import INSIDE
from partita.formulation.substitution.symbolic.terms import (
    EXP,
    HIT,
    IS_POSITIVE,
    IS_ZERO,
    MAX,
    NOT_LATER,
    POSITION,
    SIZE,
    Body,
    Count,
    Factor,
    Fn,
    Guard,
    Place,
    Poly,
)
from partita.formulation.substitution.symbolic.types import Cases, Type
from partita.formulation.substitution.symbolic.values import Symbolic

Env: TypeAlias = Mapping[str, int]


class UnknownFunctionError(Exception):
    """A value has a function that is only a name."""


def _even_part(name: str, x: float) -> float:
    if name.endswith("tanh"):
        whole = 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    else:
        whole = 0.5 * x * (1 + math.erf(x / math.sqrt(2)))
    return whole - x / 2


_KNOWN = {
    EXP: math.exp,
    "exp": math.exp,
    INVERSE: lambda x: 1 / x if x else 0.0,
    "reciprocal": lambda x: 1 / x if x else 0.0,
    LOG: lambda x: math.log(x) if x > 0 else math.nan,
    "log": lambda x: math.log(x) if x > 0 else math.nan,
    ROOT: lambda x: math.sqrt(x) if x >= 0 else math.nan,
    SIGMOID: lambda x: 1 / (1 + math.exp(-x)),
    SOFTPLUS: lambda x: math.log1p(math.exp(x)),
    IS_ZERO: lambda x: float(x == 0),
    IS_POSITIVE: lambda x: float(x > 0),
    "erf": math.erf,
    "sin": math.sin,
    "cos": math.cos,
}


class Numbers:
    """Symbolic values of a rule at given sizes of its free atoms, and given inputs [replicas, *shape]."""

    def __init__(self, typed: Typed, sizes: Mapping[str, int], inputs: Mapping[str, Any]) -> None:
        self.unifier, self.sizes = typed.unifier, sizes
        self.elements: dict[tuple[str, tuple[int, ...]], float] = {}
        for name, value in typed.inputs.items():
            for indices, env in self._places((value.replicas, *value.dims)):
                ((term, _),) = value.at(indices[0], tuple(indices[1:])).terms
                (read,) = term.factors
                where = tuple(self._number(i, env) for i in indices)
                self.elements[read.tensor, tuple(self._at(p, env) for p in read.places)] = float(inputs[name][where])

    def array(self, value: Symbolic) -> np.ndarray[Any, Any]:
        """A value as an array [replicas, *shape]."""
        shape = [self._size(t) for t in (value.replicas, *value.dims)]
        made = np.full(shape, np.nan)
        for indices, env in self._places((value.replicas, *value.dims)):
            where = tuple(self._number(i, env) for i in indices)
            made[where] = self.value(value.at(indices[0], tuple(indices[1:])), env)
        return made

    def value(self, poly: Poly, env: Env) -> float:
        total = 0.0
        for term, number in poly.terms:
            for inner in self._assignments(term.variables):
                known = {**env, **inner}
                total += float(number) * math.prod(self._factor(f, known) for f in term.factors)
        return total

    def _factor(self, f: Factor, env: Env) -> float:
        if isinstance(f, Count):
            return float(self._size((f.atom,))) ** f.power
        if isinstance(f, Guard):
            return float(0 <= self._at(f.place, env) < self._size((f.atom,)))
        if not isinstance(f, Fn):
            key = f.tensor, tuple(self._at(p, env) for p in f.places)
            return self.elements.get(key, 0.0)  # guards are 0 outside
        if f.name == POSITION:
            return float(self._at(f.places[0], env))
        if f.name == HIT:
            return float(self.value(f.arguments[0].value, env) == self._at(f.places[0], env))
        if f.name == NOT_LATER and len(f.places) == 2:
            return float(self._at(f.places[1], env) <= self._at(f.places[0], env))
        if f.name == MAX:
            return max(v for body in f.arguments for v in self._row(body, env))
        if f.name == INSIDE:
            pairs = zip(f.arguments[::2], f.arguments[1::2], strict=True)
            return max(self.value(v.value, env) for v, guard in pairs if self.value(guard.value, env) == 1)
        if f.places or len(f.arguments) != 1 or f.arguments[0].variables:
            raise UnknownFunctionError(f.name)
        argument = self.value(f.arguments[0].value, env)
        if f.name.startswith("even part"):
            return _even_part(f.name, argument)
        if f.name not in _KNOWN:
            raise UnknownFunctionError(f.name)
        return _KNOWN[f.name](argument)

    def _row(self, body: Body, env: Env) -> Iterator[float]:
        for inner in self._assignments(body.variables):
            yield self.value(body.value, {**env, **inner})

    def _assignments(self, variables: Sequence[tuple[str, str]]) -> Iterator[dict[str, int]]:
        for choice in product(*(range(self._size((atom,))) for _, atom in variables)):
            yield {name: k for (name, _), k in zip(variables, choice, strict=True)}

    def _places(self, dims: Sequence[Type]) -> Iterator[tuple[tuple[Index, ...], Env]]:
        for choice in product(*(list(every(self.unifier.resolve(t))) for t in dims)):
            for env in self._assignments([v for _, variables in choice for v in variables]):
                yield tuple(index for index, _ in choice), env

    def _size(self, type_: Type) -> int:
        total = 1
        for radix in self.unifier.resolve(type_):
            if isinstance(radix, str) and radix in self.unifier.quotients:
                length, by = self.unifier.quotient(radix)
                total *= -(-length.at({n: self._size((n,)) for n in length.symbols}) // by)
            elif isinstance(radix, str) and radix in self.sizes:
                total *= self.sizes[radix]
            elif isinstance(radix, int):
                total *= radix
            elif isinstance(radix, str):
                size = self.unifier.size((radix,))
                if size.symbols == {radix}:
                    raise UnknownFunctionError(f"the size of {radix}")
                total *= size.at({n: self._size((n,)) for n in size.symbols})
            else:
                total *= sum(self._size(e) for e in radix.elements)
        return total

    def _number(self, index: Index, env: Env) -> int:
        total = 0
        for radix, digit in index:
            if isinstance(digit, Place):
                mine = self._at(digit, env)
            else:
                assert isinstance(radix, Cases)
                before = sum(self._size(e) for e in radix.elements[: digit[0]])
                mine = before + self._number(digit[1], env)
            total = total * self._size((radix,)) + mine
        return total

    def _at(self, place: Place, env: Env) -> int:
        sizes = {name: self._size((name.removeprefix(SIZE),)) for name, _ in place.terms if name.startswith(SIZE)}
        return place.offset + sum(k * {**env, **sizes}[name] for name, k in place.terms)
