"""Sizes and degrees as polynomials over symbols: `2*n`, `n + m`, `d*e`, with integer coefficients."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ...model.errors import PartitaError

Monomial = tuple[str, ...]  # names of symbols, sorted; a power is a repetition


@dataclass(frozen=True, slots=True)
class Size:
    """A sum of monomials with nonzero integer coefficients; `terms` are sorted."""

    terms: tuple[tuple[Monomial, int], ...] = ()

    @staticmethod
    def of(value: Size | str | int) -> Size:
        """A size from a number or an expression. Raises PartitaError if it cannot be parsed."""
        if isinstance(value, Size):
            return value
        if isinstance(value, int):
            return Size((((), value),)) if value else Size()
        return parse_size(value)

    @staticmethod
    def collect(terms: Iterator[tuple[Monomial, int]]) -> Size:
        total: dict[Monomial, int] = {}
        for monomial, factor in terms:
            total[monomial] = total.get(monomial, 0) + factor
        return Size(tuple(sorted((m, c) for m, c in total.items() if c)))

    def __add__(self, other: Size | int) -> Size:
        return Size.collect(iter((*self.terms, *Size.of(other).terms)))

    def __mul__(self, other: Size | int) -> Size:
        right = Size.of(other).terms
        return Size.collect((tuple(sorted(a + b)), c * k) for a, c in self.terms for b, k in right)

    def __sub__(self, other: Size | int) -> Size:
        return self + Size.of(other) * -1

    def __str__(self) -> str:
        words = ["*".join([*([str(c)] if c != 1 or not m else []), *m]) for m, c in self.terms]
        return "+".join(words).replace("+-", "-") or "0"

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset(name for monomial, _ in self.terms for name in monomial)

    @property
    def number(self) -> int | None:
        """The value if there are no symbols, otherwise None."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    def divided(self, other: Size) -> Size | None:
        """The quotient by a monomial if exact, otherwise None."""
        if len(other.terms) != 1:
            return Size.of(1) if self == other else None
        ((under, by),) = other.terms
        out = []
        for monomial, factor in self.terms:
            left = list(monomial)
            if factor % by:
                return None
            for name in under:
                if name not in left:
                    return None
                left.remove(name)
            out.append((tuple(left), factor // by))
        return Size.collect(iter(out))

    def rounded_up(self, by: int) -> Size | None:
        """The quotient by a number, rounded up, if it is a polynomial, otherwise None."""
        left = dict(self.terms).get((), 0)
        exact = (self - left).divided(Size.of(by))
        return None if exact is None else exact + -(-left // by)

    def substitute(self, values: Mapping[str, Size]) -> Size:
        """Replace symbols by sizes."""
        total = Size()
        for monomial, factor in self.terms:
            product = Size.of(factor)
            for name in monomial:
                product = product * values.get(name, Size((((name,), 1),)))
            total = total + product
        return total

    def at(self, values: Mapping[str, int]) -> int:
        """The value at given values of all symbols."""
        total = 0
        for monomial, factor in self.terms:
            for name in monomial:
                factor *= values[name]
            total += factor
        return total


_TOKEN = re.compile(r"\s*([A-Za-z_]\w*|\d+|[-+*()])")


@lru_cache(maxsize=4096)
def parse_size(text: str) -> Size:
    """Parse `2*n`, `n+m`, `d*(k-1)`. Raises PartitaError that quotes the offending text."""
    tokens, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if not match:
            raise PartitaError(f"size {text!r}: cannot read {text[at:]!r}")
        tokens.append(match[1])
        at = match.end()
    size, rest = _sum(tokens, text)
    if rest:
        raise PartitaError(f"size {text!r}: cannot read {''.join(rest)!r}")
    return size


def _sum(tokens: list[str], text: str) -> tuple[Size, list[str]]:
    negative = tokens[:1] == ["-"]
    size, rest = _product(tokens[1:] if negative else tokens, text)
    size = size * -1 if negative else size
    while rest and rest[0] in "+-":
        term, left = _product(rest[1:], text)
        size, rest = (size + term if rest[0] == "+" else size - term), left
    return size, rest


def _product(tokens: list[str], text: str) -> tuple[Size, list[str]]:
    size, rest = _factor(tokens, text)
    while rest[:1] == ["*"]:
        factor, rest = _factor(rest[1:], text)
        size = size * factor
    return size, rest


def _factor(tokens: list[str], text: str) -> tuple[Size, list[str]]:
    if not tokens or tokens[0] in "+-*)":
        raise PartitaError(f"size {text!r}: expected a number or a name, found {tokens[0] if tokens else 'the end'!r}")
    head, rest = tokens[0], tokens[1:]
    if head == "(":
        size, rest = _sum(rest, text)
        if rest[:1] != [")"]:
            raise PartitaError(f"size {text!r}: a parenthesis is not closed")
        return size, rest[1:]
    return (Size.of(int(head)) if head.isdigit() else Size((((head,), 1),))), rest
